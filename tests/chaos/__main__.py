"""make chaos: hours of training under faults, compared with a training without any.

Four emulated hosts lose packets all the time. Now and then the network is cut for 2 s, or a rank
is killed and the training goes on from its checkpoint. Losses have to be those of an undisturbed
training, bit for bit, and memory has to stay. This needs root, iproute2 and nftables. The same
command goes on after Ctrl-C. A record for each preset is appended to records.jsonl in --folder.

Examples:
    python -m tests.chaos                                          two hours, and what follows
    python -m tests.chaos --minutes 3 --cut-every 40 --kill-every 80 --folder runs/try
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from examples.bench.net.hosts import Hosts
from tests.chaos.rank import ROOT, Step, read_steps
from trec_qcomm.lab import records

HOSTS, TIMEOUT_S, MAX_GROWTH = 4, 30.0, 0.02
NETWORK = {"rate": "20mbit", "loss_percent": 0.5, "cut_s": 2.0}
CONFIGS = {"best": "best", "auto": str(ROOT / "tests" / "chaos" / "auto.yaml")}
MODEL = (
    "--plan", "mixed", "--rows", "65536", "--batch-size", "32", "--embedding-dim", "16",
    "--dense-arch", "64-32", "--over-arch", "64-32", "--epochs", "1000000", "--timeout",
    str(TIMEOUT_S), "--checkpoint-every", "100", "--log-every", "1000",
)  # fmt: skip
Ranks = list[subprocess.Popen[bytes]]
# train.py begins its one line with "error: ", and torch the lines of a rank's traceback with its
# number. "Exception raised from" is the trace of a C++ error that a warning shows.
_ERROR = re.compile(
    r"^(?:\[rank\d+\]: )?((?:error: |terminate called\b|"
    r"[\w.]*(?:Error|Exception|Interrupt)\b(?! raised from)).*)"
)


class Events:
    """What happened so far, in a file; the clock of a training, which stands while none runs."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text().splitlines() if file.exists() else []
        self.all: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self._began = time.monotonic() - (self.all[-1]["at_s"] if self.all else 0.0)

    def now(self) -> float:
        """Return the seconds that the training has run."""
        return time.monotonic() - self._began

    def called(self, name: str) -> list[dict[str, Any]]:
        """Return the events of a name."""
        return [event for event in self.all if event["event"] == name]

    def add(self, name: str, **more: Any) -> None:
        """Write an event, and print it."""
        event = {"at_s": round(self.now(), 1), "event": name} | more
        self.all.append(event)
        with self.file.open("a") as file:
            print(json.dumps(event), file=file)
        print(f"{self.file.parent.name}: {json.dumps(event)}", flush=True)


def main() -> int:
    """Soak every preset; the exit status is 0 where all is as it should be."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    verdicts = []
    for preset in options.presets:
        folder = (options.folder / preset).absolute()
        events = Events(folder / "events.jsonl")
        if events.now() < 60 * options.minutes:
            with Hosts(HOSTS, NETWORK["rate"]) as hosts:
                hosts.lose(NETWORK["loss_percent"])
                while events.now() < 60 * options.minutes:
                    with _started(hosts, folder / "faulty", options.pause) as ranks:
                        due = _wait_for_fault(hosts, folder / "faulty", ranks, events, options)
                        _end(ranks, folder / "faulty", due, events)
        last = _last_step(folder / "faulty")
        print(f"{preset}: undisturbed, up to step {last}", flush=True)
        whole = folder / "undisturbed", options.pause / 5, "--steps", str(last)
        with Hosts(HOSTS, "none") as hosts, _started(hosts, *whole) as ranks:
            if any(process.wait() for process in ranks):
                raise SystemExit(f"chaos: the training without a fault failed; see {whole[0]}")
        figures = compare(folder, events)
        records.append(options.folder / "records.jsonl", _record(figures, options, preset))
        verdicts.append(verdict(preset, figures))
    print(f"chaos: {'; '.join(verdicts)}")
    return int(not all(each.endswith(": good") for each in verdicts))


@contextmanager
def _started(hosts: Hosts, folder: Path, pause_s: float, *more: str) -> Iterator[Ranks]:
    """Start or resume a training; what is left of it is killed at the end."""
    checkpoints, ranks = folder / "checkpoints", []
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [
        str(pause_s), "--config", CONFIGS[folder.parent.name], *MODEL, "--checkpoint-dir",
        str(checkpoints), "--out", str(folder), "--name", "long", *more,
        *(["--resume"] if any(checkpoints.glob("step_*/digests.json")) else []),
    ]  # fmt: skip
    try:
        for rank in range(HOSTS):
            program = [sys.executable, "-m", "tests.chaos.rank", folder / f"rank{rank}.txt"]
            with (folder / f"rank{rank}.log").open("ab") as log:
                how = {"cwd": ROOT, "stdout": log, "stderr": log}
                ranks.append(hosts.start(rank, [*program, *arguments], **how))
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _wait_for_fault(hosts: Hosts, folder: Path, ranks: Ranks, events: Events, options: Any) -> str:
    """Train until a "kill" or the "end" is due, or until a rank has failed: "".

    Neither comes before a new step, as ranks that only start have no handlers of signals yet, and
    may wait for a killed one for several timeouts.
    """
    events.add("start")
    noted, first = events.now(), _last_step(folder)
    while all(rank.poll() is None for rank in ranks):
        time.sleep(0.5)
        is_over = events.now() >= 60 * options.minutes
        is_kill = events.now() >= options.kill_every * (len(events.called("kill")) + 1)
        if (is_over or is_kill) and _last_step(folder) > first:
            return "end" if is_over else "kill"
        if events.now() >= options.cut_every * (len(events.called("cut")) + 1):
            hosts.cut(NETWORK["cut_s"])
            events.add("cut")
        elif events.now() - noted > 60:
            noted = events.now()
            events.add("note", step=_last_step(folder))
    return ""


def _end(ranks: Ranks, folder: Path, due: str, events: Events) -> None:
    """Let the kill or the end come, and note how every rank ends."""
    victim = len(events.called("kill")) % HOSTS if due == "kill" else None
    began = time.monotonic()
    for rank in ranks if due == "end" else () if victim is None else [ranks[victim]]:
        rank.send_signal(signal.SIGTERM if due == "end" else signal.SIGKILL)
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < began + 3 * TIMEOUT_S:
        time.sleep(0.1)
    status = [rank.returncode for number, rank in enumerate(ranks) if number != victim]
    seconds = round(time.monotonic() - began, 1)
    words = [last_error((folder / f"rank{n}.log").read_text()) for n in range(HOSTS)]
    name = due if set(status) == {"end": {130}, "kill": {1}}.get(due) else "failed"
    events.add(name, rank=victim, status=status, ended_after_s=seconds, words=words)
    if len(events.called("failed")) > 3:
        raise SystemExit(f"chaos: {folder}: a training fails again and again; see its logs")


def last_error(text: str) -> str:
    """Return the last line of a log that is an error of Python or C++; "" if there is none."""
    lines = text.replace("\r", "\n").split("\n")
    errors = [match[1].strip() for line in lines if (match := _ERROR.match(line))]
    return errors[-1] if errors else ""


def _last_step(folder: Path) -> int:
    return max([step.number for step in read_steps(folder / "rank0.txt")], default=0)


def compare(folder: Path, events: Events) -> dict[str, Any]:
    """Return the figures of a training under faults, beside those of the undisturbed one."""
    compared = different = 0
    growth, memory = [0.0], []
    for rank in range(HOSTS):
        steps = read_steps(folder / "faulty" / f"rank{rank}.txt")
        whole = read_steps(folder / "undisturbed" / f"rank{rank}.txt")
        expected = {step.number: step.loss for step in whole}
        compared += len(steps)
        different += sum(expected.get(step.number) != step.loss for step in steps)
        different += len(expected.keys() - {step.number for step in steps})
        growth += growths(steps)
        memory += [step.memory_kib for step in steps]
    kills = [kill["ended_after_s"] for kill in events.called("kill")]
    return {
        "minutes": round(events.all[-1]["at_s"] / 60), "steps": len(expected),
        "losses_compared": compared, "losses_different": different,
        "cuts": len(events.called("cut")), "kills": len(kills),
        "failures": len(events.called("failed")),
        "slowest_end_after_kill_s": max(kills, default=0.0),
        "memory_growth": round(max(growth), 4), "memory_mib": round(max(memory) / 1024),
    }  # fmt: skip


def growths(steps: Sequence[Step]) -> list[float]:
    """Return by how much the memory of each process of 100 steps or more has grown.

    It is the median of its last quarter over that of the second one, less 1.
    """
    memory = [[s.memory_kib for s in group] for _, group in groupby(steps, lambda s: s.process)]
    quarters = [(k[len(k) // 4 : len(k) // 2], k[-len(k) // 4 :]) for k in memory if len(k) >= 100]
    return [median(last) / median(second) - 1 for second, last in quarters]


def verdict(preset: str, figures: dict[str, Any]) -> str:
    """Return a line on a preset that ends with ": good" where all is as it should be."""
    is_good = figures["losses_compared"] > 0 and figures["memory_growth"] <= MAX_GROWTH
    is_good &= not figures["losses_different"] and not figures["failures"]
    told = ", ".join(f"{name} {value}" for name, value in figures.items())
    return f"{preset}, {told}: {'good' if is_good else 'NOT GOOD'}"


def _record(figures: dict[str, Any], options: Any, preset: str) -> records.BenchRecord:
    names = ("cut_every", "kill_every", "pause")
    return records.BenchRecord(
        configuration=preset,
        environment=records.Environment.current(repository=ROOT),
        time=time.time(),
        bench="long",
        setup={"hosts": HOSTS} | NETWORK | {name: getattr(options, name) for name in names},
        figures=figures,
    )


def _parser() -> argparse.ArgumentParser:
    how = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", **how)
    add = parser.add_argument
    add("--presets", nargs="+", choices=CONFIGS, default=list(CONFIGS), help="default both")
    add("--minutes", type=float, default=60.0, help="under faults, each preset; default 60")
    add("--cut-every", type=float, default=300.0, help="seconds; default 300")
    add("--kill-every", type=float, default=1200.0, help="seconds; default 1200")
    add("--pause", type=float, default=0.3, help="seconds before each step; default 0.3")
    add("--folder", type=Path, default=Path("runs/chaos/long"), help="for what it goes on from")
    return parser


if __name__ == "__main__":
    sys.exit(main())
