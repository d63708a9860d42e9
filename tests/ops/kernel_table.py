"""The table of what each kernel takes of a GPU, in trec_qcomm/ops/README.md.

python -m tests.ops.kernel_table            compile every kernel once, and say how the table differs
python -m tests.ops.kernel_table --write    and write it to the table
python -m tests.ops.kernel_table --all      compile every form of each: dims of 1 to 512, sizes of
                                            1, 64-bit sizes, unaligned rows
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported

from tests.ops.compile_kernels import Compiled
from tests.ops.record_launches import CODECS, record_launches, variants

ROOT = Path(__file__).parents[2]
README = ROOT / "trec_qcomm/ops/README.md"
BEGIN, END = "<!-- by python -m tests.ops.kernel_table --write -->\n", "<!-- end -->"
HEAD = (
    "| kernel | warps | registers | stack | shared | instructions | for each value |\n"
    "|---|---|---|---|---|---|---|\n"
)
GROUP = 1024  # values that a program of ops.error_bound has at a time
VALUES = {"rows.gpu._count": None, "rows.gpu._number": None}


def representatives(launches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first launch of each kernel: at dim 64, with 16 bytes moved at once; and the first
    one at dim 1, which Triton makes a constant."""
    first: dict[Any, dict[str, Any]] = {}
    for launch in launches:
        first.setdefault((name_of(launch), launch["constants"].get("dim")), launch)
    return list(first.values())


def rows_are_aligned(launch: dict[str, Any]) -> bool:
    """Return whether rows, or their bits, begin at multiples of 16 bytes."""
    types = launch["types"]
    return all(name in launch["aligned"] for name in types if types[name] in ("*fp32", "*i32"))


def name_of(launch: dict[str, Any]) -> str:
    module = launch["module"].removeprefix("trec_qcomm.").removeprefix("ops.")
    module = module.removeprefix("batch.").removeprefix("ext.")
    return f"{module}.{launch['kernel']}"


def compile_launches(launches: list[dict[str, Any]], jobs: int = 1) -> list[Compiled]:
    """Compile launches in processes of their own, which are not under the interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment.setdefault("TRITON_CACHE_DIR", str(ROOT / ".pytest_cache/triton"))
    script = str(ROOT / "tests/ops/compile_kernels.py")
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for j in range(jobs):
            path = Path(folder, f"{j}.json")
            path.write_text(json.dumps(launches[j::jobs]))
            command = [sys.executable, script, str(path)]
            running.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            )
        printed = [process.communicate()[0] for process in running]
    assert all(process.returncode == 0 for process in running), "a compiling process failed"
    results: list[Compiled] = [Compiled()] * len(launches)
    for j, text in enumerate(printed):
        results[j::jobs] = [Compiled(**result) for result in json.loads(text.splitlines()[-1])]
    return results


def values_of(launch: dict[str, Any]) -> int | None:
    """Return how many values a program has at a time; None where it has none, but whole rows,
    segments, bags or frames."""
    constants, name = launch["constants"], name_of(launch)
    if name in VALUES:
        return VALUES[name]
    for pair in (("BLOCK_ROWS", "BLOCK_DIM"), ("CHUNK", "SEVERAL")):
        if all(constant in constants for constant in pair):
            return int(constants[pair[0]] * constants[pair[1]])
    if "VECTOR" not in constants:
        return None
    return int(constants.get("BLOCK", GROUP))


def row_of(launch: dict[str, Any], result: Compiled) -> str:
    warps, values = launch["options"].get("num_warps", 4), values_of(launch)
    each = "" if values is None else f"{result.instructions * warps / values:.1f}"
    numbers = result.registers, result.stack, result.shared, result.instructions
    return f"| {name_of(launch)} | {warps} | {' | '.join(map(str, numbers))} | {each} |"


def table_of(launches: list[dict[str, Any]], results: list[Compiled]) -> str:
    both = zip(launches, results, strict=True)
    rows = sorted(row_of(*pair) for pair in both if "dim" not in pair[0]["constants"])
    return HEAD + "".join(f"{row}\n" for row in rows) + f"\nTriton {triton_version()}.\n"


def triton_version() -> str:
    import triton

    return str(triton.__version__)


def table_in_readme() -> str:
    _, _, rest = README.read_text().partition(BEGIN)
    return rest.partition(END)[0]


def differences(table: str, now: str) -> list[str]:
    """Return the lines that only one of two tables has."""
    old, new = table.splitlines(), now.splitlines()
    gone = [f"- {line}" for line in old if line not in new]
    return gone + [f"+ {line}" for line in new if line not in old]


def problems_of(launches: list[dict[str, Any]], results: list[Compiled]) -> list[str]:
    return [
        f"{name_of(launch)} {launch['constants']} {launch['options']}: {result.problems}"
        for launch, result in zip(launches, results, strict=True)
        if result.problems
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.all:
        dims = dict.fromkeys(CODECS, (64, 1, 3, 512))
        odd = record_launches(dict.fromkeys(CODECS, (64,)), first=1)
        launches = variants(record_launches(dims)) + [
            launch for launch in odd if not rows_are_aligned(launch)
        ]
    else:
        launches = representatives(record_launches())
    results = compile_launches(launches, options.jobs)
    wrong = problems_of(launches, results)
    print(f"{len(launches)} compiled", *wrong, sep="\n")
    if not options.all:
        now = table_of(launches, results)
        print(*differences(table_in_readme(), now), sep="\n")
        if options.write:
            before, _, rest = README.read_text().partition(BEGIN)
            README.write_text(before + BEGIN + now + END + rest.partition(END)[2])
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
