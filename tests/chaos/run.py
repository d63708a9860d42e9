"""One case: a training with its fault, and what became of every rank; then a resumed one.

Knows: cases, the network. Does not know: what a rank computes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.cases import CHECKPOINT_EVERY, STEPS, Case
from tests.chaos.faults import read_marks
from tests.chaos.network import Network

ROOT = Path(__file__).parents[2]
TINY = (
    "--batch-size", "32", "--rows", "4000", "--embedding-dim", "4", "--dense-arch", "16-8",
    "--over-arch", "16-8", "--steps", str(STEPS), "--checkpoint-every", str(CHECKPOINT_EVERY),
    "--log-every", "1",
)  # fmt: skip
_TAG = "CHAOS_FOLDER"  # in the environment of all that a case starts
# train.py begins its one line with "error: ", and torch the lines of a rank's traceback with its
# number. "Exception raised from" is the trace of a C++ error that a warning shows.
_ERROR = re.compile(
    r"^(?:\[rank\d+\]: )?((?:error: |terminate called\b|"
    r"[\w.]*(?:Error|Exception|Interrupt)\b(?! raised from)).*)"
)


@dataclass(frozen=True)
class RankEnd:
    """End of one rank.

    Args:
        status: exit status, negative for a signal; None: it did not end, and was killed at last.
        after_s: seconds from the fault to its end; None where it did not end, or without a fault.
        phase: the last phase that it reached.
        words: the last line of its output that is an error, or "".
    """

    status: int | None
    after_s: float | None
    phase: str
    words: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case.

    Args:
        timeout_s: the ranks' collective timeout.
        ranks: ends of all ranks.
        orphans: number of processes that were left when all ranks had ended.
        resumed: "same", "none" where there was no checkpoint, or what differs.
    """

    name: str
    config: str
    commit: str
    timeout_s: float
    ranks: tuple[RankEnd, ...]
    orphans: int
    resumed: str
    seconds: float


@dataclass(frozen=True)
class Options:
    """What all cases share. folder: a scratch folder.  netlab: the command of the network."""

    config: str
    timeout_s: float
    netlab: Path
    rate: str
    folder: Path


def run_case(
    case: Case, options: Options, reference: dict[str, Any] | None
) -> tuple[Outcome, dict[str, Any] | None]:
    """Run a case; return its outcome, and the record of its training if that came to the end.

    Args: reference: the record of the training without a fault on as many hosts.
    """
    began = time.monotonic()
    folder = options.folder / re.sub(r"\W+", "-", case.name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    loss = 1.0 if case.fault == "loss" else 0.0
    with Network(options.netlab, folder, hosts=case.hosts, loss=loss, rate=options.rate) as network:
        ranks = [_start_faulty(case, options, folder, rank, network) for rank in range(case.hosts)]
        ends = _wait(case, options, folder, ranks)
        orphans = _end_tagged(folder)
    record = _record(folder / "faulty.jsonl")
    if record is not None and all(end.status == 0 for end in ends):
        resumed = "not needed" if reference is None else _difference(record, reference)
    else:
        resumed = _resume(case, options, folder, reference)
    outcome = Outcome(
        name=case.name,
        config=options.config,
        commit=_commit(),
        timeout_s=options.timeout_s,
        ranks=tuple(ends),
        orphans=orphans,
        resumed=resumed,
        seconds=round(time.monotonic() - began, 1),
    )
    return outcome, record


def _start_faulty(
    case: Case, options: Options, folder: Path, rank: int, network: Network
) -> subprocess.Popen[bytes]:
    is_victim = rank == case.victim and case.fault not in ("none", "loss")
    return _start(
        _arguments(options, folder, "faulty"),
        network.environment(rank) | {_TAG: str(folder)},
        log=folder / f"rank{rank}.log",
        marks=folder / f"marks{rank}",
        fault=case.fault if is_victim else "none",
        phase=case.phase,
        network=network.placeholders[rank],
    )


def _start(
    arguments: list[str],
    env: dict[str, str],
    *,
    log: Path,
    marks: Path,
    fault: str = "none",
    phase: str = "end",
    network: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a rank, in the network of a process if one is given."""
    command = [sys.executable, "-m", "tests.chaos.faults", str(marks), fault, phase, *arguments]
    if network is not None:
        command = ["nsenter", f"--net=/proc/{network}/ns/net", *command]
    env = os.environ | {"OMP_NUM_THREADS": "1"} | env
    with log.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=file, stderr=file)


def _arguments(options: Options, folder: Path, name: str) -> list[str]:
    return [
        "--config", options.config, *TINY, "--timeout", str(options.timeout_s),
        "--checkpoint-dir", str(folder / "checkpoints"), "--out", str(folder), "--name", name,
    ]  # fmt: skip


def _wait(
    case: Case, options: Options, folder: Path, ranks: Sequence[subprocess.Popen[bytes]]
) -> list[RankEnd]:
    """Wait until all ranks have ended, or no more of them can be expected to."""
    limit = 6 * options.timeout_s + 60
    deadline = time.monotonic() + limit + 120  # a start that hangs
    fault_at: float | None = None
    ended: dict[int, float] = {}  # rank -> time
    while len(ended) < case.hosts and time.monotonic() < deadline:
        time.sleep(0.1)
        for rank, process in enumerate(ranks):
            if process.poll() is not None:
                ended.setdefault(rank, time.time())
        if fault_at is None:
            fault_at = read_marks(folder / f"marks{case.victim}").get("fault")
            if fault_at is not None:
                deadline = time.monotonic() + limit
        if case.fault == "stop" and ended.keys() >= {*range(case.hosts)} - {case.victim}:
            time.sleep(2)
            break
    ends = [
        _end_of(process, rank, ended.get(rank), folder, fault_at)
        for rank, process in enumerate(ranks)
    ]
    for process in ranks:
        process.kill()  # a rank that was stopped, or hangs
        process.wait(timeout=30)
    return ends


def _end_of(
    process: subprocess.Popen[bytes],
    rank: int,
    ended_at: float | None,
    folder: Path,
    fault_at: float | None,
) -> RankEnd:
    has_both = ended_at is not None and fault_at is not None
    phases = [name for name in read_marks(folder / f"marks{rank}") if name != "fault"]
    return RankEnd(
        status=process.returncode,
        after_s=round(ended_at - fault_at, 1) if has_both else None,
        phase=phases[-1] if phases else "",
        words=last_error((folder / f"rank{rank}.log").read_text(errors="replace")),
    )


def last_error(text: str) -> str:
    """Return the last line of a log that is an error of Python or C++; "" if there is none."""
    lines = text.replace("\r", "\n").split("\n")
    errors = [match[1].strip() for line in lines if (match := _ERROR.match(line))]
    return errors[-1] if errors else ""


def _end_tagged(folder: Path) -> int:
    """Kill what a case left behind; return how many processes these were."""
    tag, count = f"{_TAG}={folder}".encode(), 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_ours = tag in (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if is_ours:
                os.kill(int(entry.name), signal.SIGKILL)
                count += 1
    return count


def _resume(case: Case, options: Options, folder: Path, reference: dict[str, Any] | None) -> str:
    """Resume from the last checkpoint, on this machine; return how it compares."""
    if not list((folder / "checkpoints").glob("step_*/.metadata")):
        return "none"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(case.hosts)}
    places |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", _TAG: str(folder)}
    ranks = [
        _start(
            [*_arguments(options, folder, "resumed"), "--resume"],
            places | {"RANK": str(rank)},
            log=folder / f"resumed{rank}.log",
            marks=folder / f"resumed-marks{rank}",
        )
        for rank in range(case.hosts)
    ]
    deadline = time.monotonic() + 180
    while any(process.poll() is None for process in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
    has_ended = all(process.poll() is not None for process in ranks)
    _end_tagged(folder)
    for process in ranks:
        process.wait(timeout=30)
    record = _record(folder / "resumed.jsonl")
    if record is None or not has_ended:
        words = [last_error((folder / f"resumed{r}.log").read_text()) for r in range(case.hosts)]
        return f"failed: {'; '.join(filter(None, words)) or 'no end within 180 s'}"
    return "same" if reference is None else _difference(record, reference)


def _record(file: Path) -> dict[str, Any] | None:
    """Return the record of a whole training in a file of records; None if there is none."""
    if not file.exists():
        return None
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return next((record for record in reversed(records) if "metrics" in record), None)


def _difference(record: dict[str, Any], reference: dict[str, Any]) -> str:
    """Compare a training, or the end of one, with the whole one; "same" means equal bits."""
    losses = record.get("losses", [])  # not written if there is none
    expected = reference["losses"][len(reference["losses"]) - len(losses) :]
    different = [i for i, pair in enumerate(zip(losses, expected, strict=True)) if len({*pair}) > 1]
    if different:
        largest = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
        return (
            f"differs: {len(different)} of {len(losses)} losses, by at most {largest:.1e}, "
            f"from step {STEPS - len(losses) + different[0] + 1} on"
        )
    if record["metrics"] != reference["metrics"]:
        return "differs: metrics of the test alone"
    return "same"


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
