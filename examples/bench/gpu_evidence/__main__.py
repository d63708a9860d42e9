"""Run on a GPU what shows that this package is right there, and how fast: the parts, in order.

examples:
  make gpu-evidence                                      all parts that have not run yet
  make gpu-evidence ARGS='--minutes 9.5'                 as many as fit; again for the rest
  make gpu-evidence ARGS='--nccl /path/to/libnccl.so.2'  with 4 ranks on one GPU
  make gpu-evidence ARGS='--only table memcheck'         these, whether they ran or not
  make gpu-evidence ARGS=--list                          names, budgets and what came out
  make gpu-evidence ARGS=--dry-run                       the commands

Each part is a command with a limit of time. A line of JSON in OUT/records.jsonl says how it ended,
beside the lines that parts write themselves; OUT/log.txt has all that they print. A part that
passed or failed at this commit is finished and not run again; one that was stopped, or for which
something was missing, is. The exit status is 0 if all chosen parts have passed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from examples.bench.command import device_environment
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Environment

ROOT = Path(__file__).parents[3]
BENCH = "gpu_evidence"
FINISHED = ("passed", "failed")
TESTED = {
    "pytest": "pytest", "xdist": "pytest-xdist", "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis", "numba": "numba",
}  # fmt: skip
RUN = {"numba": "numba", "yaml": "PyYAML"}
TORCHREC = {"torchrec": "torchrec", "fbgemm_gpu": "fbgemm-gpu"}
RANKS = 4  # on one GPU


@dataclass(frozen=True, kw_only=True)
class Part:
    """One command of the evidence.

    Args:
        name: name in records and on the command line.
        about: what it shows, in a few words.
        budget_s: seconds after which it is stopped.
        command: words of the command.
        env: variables of its environment, beside those of all parts.
        modules: modules that it needs, and the package that has each.
        needs: what else is missing, in words; None where nothing is.
    """

    name: str
    about: str
    budget_s: int
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    needs: str | None = None

    def missing(self) -> str | None:
        """Return what this machine lacks for it, by name; None where it can run."""
        lacking = [] if shutil.which(self.command[0]) else [self.command[0]]
        for module, package in self.modules.items():
            if importlib.util.find_spec(module) is None:
                lacking.append(f"the Python package {package}")
        return ", ".join(lacking + ([self.needs] if self.needs else [])) or None

    def shown(self) -> str:
        """Return the command as a shell takes it."""
        return shlex.join([*(f"{name}={v}" for name, v in self.env.items()), *self.command])


def all_parts(out: Path, *, nccl: Path | None, workers: int, steps: int) -> list[Part]:
    """Return the parts in the order of their worth, in which they run.

    Args:
        out: folder of what they write.
        nccl: a libnccl.so.2 whose ranks may share a GPU, for the parts of several ranks.
        workers: processes of pytest.
        steps: steps of the stress.
    """
    to_records = ("--out", str(out / "records.jsonl"))
    bench = (sys.executable, "-m", "examples.bench.gpu")
    small = ("--check-only", "--rows", "4096", "--dim", "16", "--tables", "4", "--inputs", "1")
    # The allocator's own pool hides accesses beside a tensor.
    unpooled = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "WARN"}
    shared |= {} if nccl is None else {"LD_PRELOAD": str(nccl)}
    no_nccl = None if nccl is not None else "--nccl: a libnccl.so.2 of 2.30.3 or newer"

    def tests(name: str, about: str, budget_s: int, *folders: str, marks: str, **more: str) -> Part:
        spread = ("-n", str(workers), "--dist", "loadfile")
        words = (sys.executable, "-m", "pytest", "-q", *spread, "-m", marks, *folders)
        return Part(name=name, about=about, budget_s=budget_s, command=words, modules=TESTED | more)

    def ranks(program: str, about: str, budget_s: int, *options: str) -> Part:
        words = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                 str(RANKS), "-m", "examples.bench.gpu_evidence.ranks", program)  # fmt: skip
        return Part(
            name=program, about=about, budget_s=budget_s, command=(*words, *options, *to_records),
            env=shared, modules=RUN, needs=no_nccl,
        )  # fmt: skip

    def table(name: str, about: str, budget_s: int, *options: str) -> Part:
        words = (*bench, *options, *to_records)
        return Part(name=name, about=about, budget_s=budget_s, command=words, modules=RUN)

    def sanitized(name: str, about: str, budget_s: int, *codecs: str) -> Part:
        words = ("compute-sanitizer", "--tool", name, "--error-exitcode", "9")
        words = (*words, "--target-processes", "all", *bench, *small)
        chosen = ("--codecs", *codecs) if codecs else ()
        return Part(
            name=name, about=about, budget_s=budget_s, command=(*words, *chosen), env=unpooled,
            modules=RUN,
        )  # fmt: skip

    kernels, anything = ("tests/ops", "tests/codecs", "tests/wire"), "triton or gpu"
    profiled = ("ncu", "--kernel-name", "regex:_quantize", "--launch-count", "3", "--set", "full",
                "--csv", "--page", "details", *bench, "--check-only", "--rows", "1048576",
                "--inputs", "1", "--data", "trained", "--codecs", "rowwise 8")  # fmt: skip
    return [
        tests("tests-kernels", "kernels against their references", 300, *kernels, marks=anything),
        ranks("stress", f"{RANKS} ranks on one GPU against the CPU's bits", 240,
              "--steps", str(steps), "--seconds", "150"),
        table("table", "speed of all codecs and of others'", 200,
              "--rows", "1048576", "--dim", "64"),
        tests("tests-collectives", "collectives of 2 and 3 ranks", 180, "tests/comm",
              marks=anything),
        table("table-large", "speed on rows beyond any cache", 120, "--rows", "8388608", "--dim",
              "128", "--inputs", "2", "--repeats", "20", "--data", "trained"),
        sanitized("memcheck", "accesses beside memory", 100),
        sanitized("racecheck", "races in shared memory", 80),
        sanitized("initcheck", "reads of memory never written", 60,
                  "rowwise 8", "error_bounded bitpack", "threshold 1 %"),
        Part(name="ncu", about="what limits the row-wise quantizer", budget_s=80, command=profiled,
             modules=RUN),
        ranks("trace", "host time and gaps of each collective", 80,
              "--steps", "10", "--traces", str(out / "traces")),
        tests("tests-torchrec", "sharded models, pipelined and not", 120, "tests/integration",
              marks="gpu", **TORCHREC),
    ]  # fmt: skip


class Evidence:
    """The records of parts in a folder, and how a part is run.

    Args: out: the folder.  environment: commit, versions and machine of this run.
    """

    def __init__(self, out: Path, environment: Environment) -> None:
        self._out, self._environment = out, environment
        self._file = out / "records.jsonl"

    def outcomes(self) -> dict[str, str]:
        """Return how each part ended last, by name, at this commit and on such a GPU."""
        outcomes: dict[str, str] = {}
        for record in records.read(self._file) if self._file.exists() else []:
            if not isinstance(record, BenchRecord) or record.bench != BENCH:
                continue
            there, ours = record.environment or Environment(), self._environment
            if (there.commit, there.hardware) == (ours.commit, ours.hardware):
                outcomes[record.configuration] = str(record.figures["outcome"])
        return outcomes

    def note(self, part: Part, outcome: str, reason: str = "", seconds: float = 0.0) -> str:
        """Append the part's record; return the outcome."""
        figures: dict[str, str | int | float] = {"outcome": outcome, "seconds": round(seconds, 1)}
        records.append(
            self._file,
            BenchRecord(
                configuration=part.name,
                bench=BENCH,
                environment=self._environment,
                time=time.time(),
                case={"command": part.shown(), "budget_s": part.budget_s},
                figures=figures | ({"reason": reason} if reason else {}),
            ),
        )
        print(f"{part.name}: {outcome}{f', {reason}' if reason else ''}", flush=True)
        return outcome

    def run(self, part: Part) -> str:
        """Run the part within its budget, log what it prints; return how it ended."""
        begin, log = time.monotonic(), self._out / "log.txt"
        variables = {
            "OMP_NUM_THREADS": "1",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # so that forks may use the GPU
            "PYTHONUNBUFFERED": "1",
            "TRITON_CACHE_DIR": str(self._out / "triton"),
        }
        with log.open("ab") as file:
            file.write(f"\n== {part.name}: {part.shown()}\n".encode())
            file.flush()
            process = subprocess.Popen(
                part.command, cwd=ROOT, env=os.environ | variables | dict(part.env), stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(part.budget_s)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)  # and the ranks that it has started
                process.wait()
                took = time.monotonic() - begin
                if not isinstance(error, subprocess.TimeoutExpired):
                    self.note(part, "stopped", type(error).__name__, took)
                    raise
                return self.note(part, "stopped", f"after {part.budget_s} s, its budget", took)
        took = time.monotonic() - begin
        if status == 0:
            return self.note(part, "passed", "", took)
        return self.note(part, "failed", f"exit status {status}, see {log}", took)


def run_all(evidence: Evidence, parts: Sequence[Part], options: argparse.Namespace) -> list[str]:
    """Run what is not finished and fits into the time; return how each part ended."""
    finished = {} if options.only else evidence.outcomes()
    ends_at = time.monotonic() + 60 * options.minutes
    outcomes = []
    for part in parts:
        outcome, left = finished.get(part.name, ""), ends_at - time.monotonic()
        if outcome in FINISHED:
            print(f"{part.name}: {outcome} before", flush=True)
        elif not torch.cuda.is_available():
            outcome = evidence.note(part, "not run", "no CUDA device")
        elif missing := part.missing():
            outcome = evidence.note(part, "not run", f"missing: {missing}")
        elif part.budget_s > left:
            reason = f"{max(0, round(left))} s left of {part.budget_s}"
            outcome = evidence.note(part, "not run", reason)
        else:
            outcome = evidence.run(part)
        outcomes.append(outcome)
    return outcomes


def main(words: Sequence[str] | None = None) -> int:
    """Parse, list, show or run; return the exit status."""
    parser = _parser()
    options = parser.parse_args(words)
    options.out = options.out.resolve()
    parts = all_parts(options.out, nccl=options.nccl, workers=options.workers, steps=options.steps)
    unknown = set(options.only or ()) - {part.name for part in parts}
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: --list has the names")
    if options.nccl is not None and not options.nccl.is_file():
        parser.error(f"--nccl: {options.nccl} is no file")
    parts = [part for part in parts if not options.only or part.name in options.only]
    if options.dry_run:
        for part in parts:
            print(f"# {part.name}: {part.about}, at most {part.budget_s} s\n{part.shown()}")
        return 0
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    environment = device_environment(device, ("numba", "nvidia-nccl-cu13"))
    if options.commit:
        environment = replace(environment, commit=options.commit)
    evidence = Evidence(options.out, environment)
    if options.list:
        outcomes = evidence.outcomes()
        for part in parts:
            said = outcomes.get(part.name, "not run")
            print(f"{part.name:18} {part.budget_s:4} s  {said:8} {part.about}")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes = run_all(evidence, parts, options)
    counts = {name: outcomes.count(name) for name in ("passed", "failed", "stopped", "not run")}
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"gpu-evidence: {said}; {options.out}/records.jsonl")
    return 0 if counts["passed"] == len(parts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.bench.gpu_evidence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/gpu-evidence"), metavar="FOLDER",
        help="records, log and traces (default runs/gpu-evidence)")  # fmt: skip
    add("--minutes", type=float, default=30, help="time for all parts together (default 30)")
    add("--nccl", type=Path, metavar="FILE", help="libnccl.so.2, 2.30.3 or newer, of nvidia-nccl")
    add("--steps", type=int, default=500, help="steps of the stress (default 500)")
    add("--workers", type=int, default=min(12, os.cpu_count() or 1), help="processes of pytest")
    add("--commit", help="what records say of the commit, where there is no git checkout")
    add("--only", nargs="+", metavar="PART", help="these parts, whether they are finished or not")
    add("--list", action="store_true", help="list the parts and how they ended")
    add("--dry-run", action="store_true", help="print the commands and run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
