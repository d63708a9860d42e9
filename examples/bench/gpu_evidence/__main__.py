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
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from examples.bench.gpu_evidence.parts import Part, all_parts
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Environment

ROOT = Path(__file__).parents[3]
BENCH = "gpu_evidence"
FINISHED = ("passed", "failed")


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
            there = record.environment or Environment()
            ours = self._environment
            if (there.commit, there.hardware) == (ours.commit, ours.hardware):
                outcomes[record.configuration] = str(record.figures["outcome"])
        return outcomes

    def note(self, part: Part, outcome: str, reason: str, seconds: float) -> str:
        """Append the part's record; return the outcome."""
        figures: dict[str, str | int | float] = {"outcome": outcome, "seconds": round(seconds, 1)}
        records.append(
            self._file,
            BenchRecord(
                configuration=part.name,
                bench=BENCH,
                environment=self._environment,
                time=time.time(),
                case={"command": _shown(part), "budget_s": part.budget_s},
                figures=figures | ({"reason": reason} if reason else {}),
            ),
        )
        print(f"{part.name}: {outcome}{f', {reason}' if reason else ''}", flush=True)
        return outcome

    def run(self, part: Part) -> str:
        """Run the part within its budget, log what it prints; return how it ended."""
        begin, log = time.monotonic(), self._out / "log.txt"
        with log.open("ab") as file:
            file.write(f"\n== {part.name}: {_shown(part)}\n".encode())
            file.flush()
            process = subprocess.Popen(
                part.command,
                cwd=ROOT,
                env=os.environ | _variables(self._out) | dict(part.env),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(part.budget_s)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)  # and the ranks that it has started
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    self.note(part, "stopped", type(error).__name__, time.monotonic() - begin)
                    raise
                reason = f"after {part.budget_s} s, its budget"
                return self.note(part, "stopped", reason, time.monotonic() - begin)
        took = time.monotonic() - begin
        if status == 0:
            return self.note(part, "passed", "", took)
        return self.note(part, "failed", f"exit status {status}, see {log}", took)


def _variables(out: Path) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # so that forks may use the GPU
        "PYTHONUNBUFFERED": "1",
        "TRITON_CACHE_DIR": str(out / "triton"),
    }


def _shown(part: Part) -> str:
    return shlex.join([*(f"{name}={value}" for name, value in part.env.items()), *part.command])


def run_all(evidence: Evidence, parts: Sequence[Part], options: argparse.Namespace) -> list[str]:
    """Run what is not finished and fits into the time; return how each part ended."""
    finished = {} if options.only else evidence.outcomes()
    ends_at = time.monotonic() + 60 * options.minutes
    outcomes = []
    for part in parts:
        outcome = finished.get(part.name, "")
        if outcome in FINISHED:
            print(f"{part.name}: {outcome} before", flush=True)
        elif not torch.cuda.is_available():
            outcome = evidence.note(part, "not run", "no CUDA device", 0.0)
        elif missing := part.missing():
            outcome = evidence.note(part, "not run", f"missing: {missing}", 0.0)
        elif time.monotonic() + part.budget_s > ends_at:
            left = max(0, round(ends_at - time.monotonic()))
            outcome = evidence.note(part, "not run", f"{left} s left of {part.budget_s}", 0.0)
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
            print(f"# {part.name}: {part.about}, at most {part.budget_s} s\n{_shown(part)}")
        return 0
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    evidence = Evidence(options.out, _environment(options.commit))
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


def _environment(commit: str | None) -> Environment:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    packages = (*records.environment.PACKAGES, "triton", "numba", "nvidia-nccl-cu13")
    environment = Environment.current(packages, repository=ROOT, hardware={"gpu": gpu})
    return replace(environment, commit=commit) if commit else environment


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
