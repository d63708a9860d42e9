"""One case: a training with its fault, and what became of every rank; then a resumed one.

Knows: cases, the process that forks ranks, the network. Does not know: what a rank computes.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.chaos.cases import CHECKPOINT_EVERY, STEPS, Case
from tests.chaos.faults import read_marks
from tests.chaos.forks import Start
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


class Forks:
    """The process that forks ranks. Call `close` at last."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.chaos.forks"]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=ROOT, env=env, **pipes)
        self._lines: list[bytes] = []
        self._rest = b""
        self.ended: dict[int, tuple[int, float]] = {}  # pid -> exit status, time
        self._next_pid(timeout_s=300)

    def start(self, start: Start) -> int:
        """Start a rank; return its process id."""
        self._process.stdin.write(json.dumps(asdict(start)).encode() + b"\n")
        self._process.stdin.flush()
        return self._next_pid(timeout_s=30)

    def poll(self, timeout_s: float) -> None:
        """Read what has ended, at most so long."""
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if ready:
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise RuntimeError("the process that forks ranks has ended")
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += lines

    def _next_pid(self, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.poll(0.5)
            self.reap()
            if self._lines:
                return int(json.loads(self._lines.pop(0))["pid"])
        raise RuntimeError("the process that forks ranks does not answer")

    def reap(self) -> None:
        """Move what is known of ended ranks to `ended`."""
        lines, self._lines = self._lines, []
        for line in lines:
            message = json.loads(line)
            if "status" in message:
                self.ended[message["pid"]] = (message["status"], message["time"])
            else:
                self._lines.append(line)

    def wait(self, pids: Sequence[int], timeout_s: float) -> bool:
        """Wait until ranks have ended; return whether all have."""
        deadline = time.monotonic() + timeout_s
        while not all(pid in self.ended for pid in pids) and time.monotonic() < deadline:
            self.poll(0.1)
            self.reap()
        return all(pid in self.ended for pid in pids)

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait(timeout=30)


@dataclass(frozen=True)
class Options:
    """What all cases share. folder: a scratch folder.  netlab: the command of the network."""

    config: str
    timeout_s: float
    netlab: Path
    rate: str
    folder: Path


def run_case(
    case: Case, options: Options, forks: Forks, reference: dict[str, Any] | None
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
        ranks = [_start(forks, case, options, folder, rank, network) for rank in range(case.hosts)]
        ends = _wait(case, options, forks, folder, ranks)
        orphans = _end_tagged(folder)
    record = _record(folder / "faulty.jsonl")
    if record is not None and all(end.status == 0 for end in ends):
        resumed = "not needed" if reference is None else _difference(record, reference)
    else:
        resumed = _resume(case, options, forks, folder, reference)
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


def _start(
    forks: Forks, case: Case, options: Options, folder: Path, rank: int, network: Network
) -> int:
    is_victim = rank == case.victim and case.fault not in ("none", "loss")
    return forks.start(
        Start(
            arguments=_arguments(options, folder, "faulty"),
            env=network.environment(rank) | {_TAG: str(folder)},
            log=str(folder / f"rank{rank}.log"),
            marks=str(folder / f"marks{rank}"),
            network=network.placeholders[rank],
            fault=case.fault if is_victim else None,
            phase=case.phase,
        )
    )


def _arguments(options: Options, folder: Path, name: str) -> list[str]:
    return [
        "--config", options.config, *TINY, "--timeout", str(options.timeout_s),
        "--checkpoint-dir", str(folder / "checkpoints"), "--out", str(folder), "--name", name,
    ]  # fmt: skip


def _wait(
    case: Case, options: Options, forks: Forks, folder: Path, pids: Sequence[int]
) -> list[RankEnd]:
    """Wait until all ranks have ended, or no more of them can be expected to."""
    limit = 6 * options.timeout_s + 60
    others = [pid for rank, pid in enumerate(pids) if rank != case.victim]
    deadline = time.monotonic() + limit + 120  # a start that hangs
    fault_at: float | None = None
    while not all(pid in forks.ended for pid in pids) and time.monotonic() < deadline:
        forks.poll(0.1)
        forks.reap()
        if fault_at is None:
            fault_at = read_marks(folder / f"marks{case.victim}").get("fault")
            if fault_at is not None:
                deadline = time.monotonic() + limit
        if case.fault == "stop" and all(pid in forks.ended for pid in others):
            time.sleep(2)
            break
    ends = [_end_of(forks, pid, rank, folder, fault_at) for rank, pid in enumerate(pids)]
    for pid in pids:
        if pid not in forks.ended:
            os.kill(pid, signal.SIGKILL)  # a rank that was stopped, or hangs
    forks.wait(pids, timeout_s=30)
    return ends


def _end_of(forks: Forks, pid: int, rank: int, folder: Path, fault_at: float | None) -> RankEnd:
    status, ended_at = forks.ended.get(pid, (None, None))
    has_both = ended_at is not None and fault_at is not None
    phases = [name for name in read_marks(folder / f"marks{rank}") if name != "fault"]
    return RankEnd(
        status=status,
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


def _resume(
    case: Case,
    options: Options,
    forks: Forks,
    folder: Path,
    reference: dict[str, Any] | None,
) -> str:
    """Resume from the last checkpoint, on this machine; return how it compares."""
    if not list((folder / "checkpoints").glob("step_*/.metadata")):
        return "none"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(case.hosts)}
    pids = [
        forks.start(
            Start(
                arguments=[*_arguments(options, folder, "resumed"), "--resume"],
                env=places
                | {"RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
                | {_TAG: str(folder)},
                log=str(folder / f"resumed{rank}.log"),
                marks=str(folder / f"resumed-marks{rank}"),
                network=None,
                fault=None,
                phase="",
            )
        )
        for rank in range(case.hosts)
    ]
    has_ended = forks.wait(pids, timeout_s=120)
    _end_tagged(folder)
    record = _record(folder / "resumed.jsonl")
    if record is None or not has_ended:
        words = [last_error((folder / f"resumed{r}.log").read_text()) for r in range(case.hosts)]
        return f"failed: {'; '.join(filter(None, words)) or 'no end within 120 s'}"
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
