"""The parts of the evidence, in the order of their worth, and what each needs to run."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
        tools: programs that it needs.
        modules: modules that it needs, and the package that has each.
        needs: what else is missing, in words; None where nothing is.
    """

    name: str
    about: str
    budget_s: int
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    needs: str | None = None

    def missing(self) -> str | None:
        """Return what this machine lacks for it, by name; None where it can run."""
        lacking = [tool for tool in self.tools if shutil.which(tool) is None]
        for module, package in self.modules.items():
            if importlib.util.find_spec(module) is None:
                lacking.append(f"the Python package {package}")
        return ", ".join(lacking + ([self.needs] if self.needs else [])) or None


def all_parts(out: Path, *, nccl: Path | None, workers: int, steps: int) -> list[Part]:
    """Return the parts in the order in which they run.

    Args:
        out: folder of what they write.
        nccl: a libnccl.so.2 whose ranks may share a GPU, for the parts of several ranks.
        workers: processes of pytest.
        steps: steps of the stress.
    """
    records = str(out / "records.jsonl")
    python = (sys.executable,)
    bench = (*python, "-m", "examples.bench.gpu")
    small = ("--check-only", "--rows", "4096", "--dim", "16", "--tables", "4", "--inputs", "1")
    # The allocator's own pool hides accesses beside a tensor.
    unpooled = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    ranks = (
        *python, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(RANKS), "-m",
    )  # fmt: skip
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "WARN"}
    shared |= {} if nccl is None else {"LD_PRELOAD": str(nccl)}
    no_nccl = None if nccl is not None else "--nccl: a libnccl.so.2 of 2.30.3 or newer"

    def tests(*folders: str, marks: str = "triton or gpu") -> tuple[str, ...]:
        spread = ("-n", str(workers), "--dist", "loadfile")
        return (*python, "-m", "pytest", "-q", *spread, "-m", marks, *folders)

    def sanitized(tool: str, *codecs: str) -> tuple[str, ...]:
        words = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9")
        chosen = ("--codecs", *codecs) if codecs else ()
        return (*words, "--target-processes", "all", *bench, *small, *chosen)

    return [
        Part(
            name="tests-kernels", about="kernels against their references", budget_s=300,
            command=tests("tests/ops", "tests/codecs", "tests/wire"), modules=TESTED,
        ),
        Part(
            name="stress", about=f"{RANKS} ranks on one GPU against the CPU's bits", budget_s=240,
            command=(*ranks, "examples.bench.gpu_evidence.stress", "--steps", str(steps),
                     "--seconds", "150", "--out", records),
            env=shared, modules=RUN, needs=no_nccl,
        ),
        Part(
            name="table", about="speed of all codecs and of others'", budget_s=200,
            command=(*bench, "--rows", "1048576", "--dim", "64", "--out", records), modules=RUN,
        ),
        Part(
            name="tests-collectives", about="collectives of 2 and 3 ranks", budget_s=180,
            command=tests("tests/comm"), modules=TESTED,
        ),
        Part(
            name="table-large", about="speed on rows beyond any cache", budget_s=120,
            command=(*bench, "--rows", "8388608", "--dim", "128", "--inputs", "2", "--repeats",
                     "20", "--data", "trained", "--out", records),
            modules=RUN,
        ),
        Part(
            name="memcheck", about="accesses beside memory", budget_s=100,
            command=sanitized("memcheck"), env=unpooled, tools=("compute-sanitizer",), modules=RUN,
        ),
        Part(
            name="racecheck", about="races in shared memory", budget_s=80,
            command=sanitized("racecheck"), env=unpooled, tools=("compute-sanitizer",), modules=RUN,
        ),
        Part(
            name="initcheck", about="reads of memory never written", budget_s=60,
            command=sanitized("initcheck", "rowwise8", "error_bounded", "threshold"),
            env=unpooled, tools=("compute-sanitizer",), modules=RUN,
        ),
        Part(
            name="ncu", about="what limits the row-wise quantizer", budget_s=80,
            command=("ncu", "--kernel-name", "regex:_quantize", "--launch-count", "3", "--set",
                     "full", "--csv", "--page", "details", *bench, "--check-only", "--rows",
                     "1048576", "--inputs", "1", "--data", "trained", "--codecs", "rowwise8"),
            tools=("ncu",), modules=RUN,
        ),
        Part(
            name="trace", about="host time and gaps of each collective", budget_s=80,
            command=(*ranks, "examples.bench.gpu_evidence.trace", "--out", records, "--traces",
                     str(out / "traces")),
            env=shared, modules=RUN, needs=no_nccl,
        ),
        Part(
            name="tests-torchrec", about="sharded models, pipelined and not", budget_s=120,
            command=tests("tests/integration", marks="gpu"), modules=TESTED | TORCHREC,
        ),
    ]  # fmt: skip
