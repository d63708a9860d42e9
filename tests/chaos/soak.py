"""A long training whose ranks are watched from outside: memory, threads, file descriptors.

Knows: processes in /proc, train.py's command line and progress records. Does not know: the model.
Every few seconds a line per rank goes to a file. The verdict is about all steps after the first
ones: a least-squares slope of the resident memory, and whether threads or descriptors became more.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

TRAIN = Path(__file__).parents[2] / "examples" / "criteo" / "train.py"
WARM_UP = 1000  # steps that the verdict leaves out
# The example keeps the loss and the seconds of every step: two floats in two lists, 64 bytes.
MAX_KB_PER_1000_STEPS = 256.0
TINY = (
    "--batch-size", "32", "--rows", "4000", "--embedding-dim", "4", "--dense-arch", "16-8",
    "--over-arch", "16-8", "--log-every", "100",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """Resources of one rank at one time. step: a multiple of 100, the last one recorded."""

    time: float
    rank: int
    step: int
    rss_kb: int
    threads: int
    fds: int


def run(config: str, *, steps: int, num_ranks: int, out: Path, every_s: float) -> int:
    """Train, write samples to out/soak.jsonl, print the verdict; return the exit status."""
    out.mkdir(parents=True, exist_ok=True)
    progress, file = out / "soak-training.jsonl", out / "soak.jsonl"
    for old in (progress, file):
        old.unlink(missing_ok=True)
    ranks = _start(config, steps, num_ranks, out)
    try:
        with file.open("a") as lines:
            while all(process.poll() is None for process in ranks):
                step = _last_step(progress)
                for rank, process in enumerate(ranks):
                    sample = sample_of(process.pid, rank, step)
                    if sample is not None:
                        print(json.dumps(asdict(sample)), file=lines, flush=True)
                time.sleep(every_s)
        statuses = [process.wait(timeout=60) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    print(f"soak: exit statuses {statuses}, samples in {file}")
    return max(int(any(statuses)), report(file, warm_up=min(WARM_UP, steps // 10)))


def _start(config: str, steps: int, num_ranks: int, out: Path) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, str(TRAIN), "--config", config, *TINY, "--epochs", str(steps),
        "--steps", str(steps), "--out", str(out), "--name", "soak-training",
    ]  # fmt: skip
    ranks = []
    for rank in range(num_ranks):
        env = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        log = (out / f"soak-rank{rank}.log").open("wb")
        ranks.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
    return ranks


def sample_of(pid: int, rank: int, step: int) -> Sample | None:
    """Return the resources of a process now; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fds = len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines())
    if "VmRSS" not in fields:  # a process that is ending
        return None
    return Sample(
        time=round(time.time(), 1),
        rank=rank,
        step=step,
        rss_kb=int(fields["VmRSS"].split()[0]),
        threads=int(fields["Threads"]),
        fds=fds,
    )


def _last_step(progress: Path) -> int:
    """Return the step of the last whole line of a file of records; 0 before the first."""
    if not progress.exists():
        return 0
    lines = progress.read_text().split("\n")[:-1]
    return next((s for line in reversed(lines) if (s := json.loads(line).get("step"))), 0)


def report(file: Path, *, warm_up: int = WARM_UP) -> int:
    """Print the verdict about a file of samples; return 0 if nothing grows."""
    samples = [Sample(**json.loads(line)) for line in file.read_text().splitlines()]
    by_rank: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.step >= warm_up:
            by_rank.setdefault(sample.rank, []).append(sample)
    problems = verdict(by_rank)
    for problem in problems:
        print(f"soak: {problem}")
    print("soak: " + ("FAILED" if problems else "nothing grows"))
    return int(bool(problems))


def verdict(by_rank: Mapping[int, Sequence[Sample]]) -> list[str]:
    """Return what grows, a line each, and print the figures that say so."""
    problems = [] if by_rank else ["no samples after the warm-up"]
    for rank, samples in sorted(by_rank.items()):
        first, last = samples[0], samples[-1]
        slope = kb_per_1000_steps(samples)
        print(
            f"soak: rank {rank}, steps {first.step} to {last.step}, {len(samples)} samples: "
            f"memory {first.rss_kb / 1024:.1f} -> {last.rss_kb / 1024:.1f} MB, "
            f"{slope:+.1f} KB per 1,000 steps; threads {first.threads} -> {last.threads}, "
            f"descriptors {first.fds} -> {last.fds}"
        )
        if slope > MAX_KB_PER_1000_STEPS:
            problems.append(f"rank {rank}: memory grows by {slope:.1f} KB per 1,000 steps")
        for name in ("threads", "fds"):
            counts = [getattr(sample, name) for sample in samples]
            half = len(counts) // 2
            if half and min(counts[half:]) > max(counts[:half]):
                problems.append(f"rank {rank}: {name} grow: {counts[0]} -> {counts[-1]}")
    return problems


def kb_per_1000_steps(samples: Sequence[Sample]) -> float:
    """Return the least-squares slope of the resident memory over the step; 0 of one step."""
    mean_step = sum(s.step for s in samples) / len(samples)
    mean_kb = sum(s.rss_kb for s in samples) / len(samples)
    square = sum((s.step - mean_step) ** 2 for s in samples)
    cross = sum((s.step - mean_step) * (s.rss_kb - mean_kb) for s in samples)
    return 1000 * cross / square if square else 0.0
