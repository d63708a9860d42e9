"""make chaos ARGS=long: hours of training under faults, compared with a training without any.

Four emulated hosts lose packets all the time. Now and then the network is cut for 2 s, or a rank
is killed and the training goes on from its checkpoint. Losses have to be those of an undisturbed
training, bit for bit, and memory has to stay. This needs root, iproute2 and nftables. The same
command goes on after Ctrl-C; a record for each preset is appended to --out.

Examples:
    python -m tests.chaos long                                     two hours, and what follows
    python -m tests.chaos long --minutes 2 --cut-every 20 --kill-every 45 --folder runs/try
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from examples.bench.net.hosts import Hosts
from tests.chaos.long_rank import Step, read_steps
from tests.chaos.run import ROOT, last_error
from trec_qcomm.lab import records

HOSTS, TIMEOUT_S, MAX_GROWTH = 4, 30.0, 0.02
AUTO = ROOT / "tests" / "chaos" / "auto.yaml"
CONFIGS = {"best": "best", "auto": str(AUTO)}
MODEL = (
    "--plan", "mixed", "--rows", "65536", "--batch-size", "32", "--embedding-dim", "16",
    "--dense-arch", "64-32", "--over-arch", "64-32", "--epochs", "1000000", "--timeout",
    str(TIMEOUT_S), "--checkpoint-every", "100", "--log-every", "1000",
)  # fmt: skip


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
        self.all.append({"at_s": round(self.now(), 1), "event": name} | more)
        with self.file.open("a") as file:
            print(json.dumps(self.all[-1]), file=file)
        minutes = self.all[-1]["at_s"] / 60
        words = ", ".join(f"{key} {value}" for key, value in more.items())
        print(f"{self.file.parent.name}: {minutes:.1f} min: {name} {words}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Soak every preset; the exit status is 0 where all is as it should be."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    verdicts = []
    for preset in options.presets:
        folder = (options.folder / preset).absolute()
        events = Events(folder / "events.jsonl")
        if events.now() < 60 * options.minutes:
            with Hosts(HOSTS, options.rate) as hosts:
                hosts.lose(options.loss)
                while events.now() < 60 * options.minutes:
                    _train_until_fault(hosts, folder / "faulty", events, options)
        _train_undisturbed(folder / "undisturbed", _last_step(folder / "faulty"), options)
        figures = compare(folder, events)
        records.append(options.out, _record(figures, options, preset))
        verdicts.append(verdict(preset, figures))
        print(verdicts[-1], flush=True)
    print(f"long: {'; '.join(verdicts)}; {options.out}")
    return int(not all(each.endswith(": good") for each in verdicts))


def _train_until_fault(hosts: Hosts, folder: Path, events: Events, options: Any) -> None:
    """Train until a rank is killed, a rank fails, or the time is over."""
    ranks = []
    try:
        ranks = [
            hosts.start(rank, _command(folder, rank, options), **_output(folder, rank))
            for rank in range(HOSTS)
        ]
        events.add("start")
        began, due = time.monotonic(), ""
        while not due and all(rank.poll() is None for rank in ranks):
            time.sleep(0.5)
            if events.now() >= 60 * options.minutes:
                due = "end"
            elif events.now() >= options.cut_every * (len(events.called("cut")) + 1):
                hosts.cut(options.cut_s)
                events.add("cut", seconds=options.cut_s)
            elif events.now() >= options.kill_every * (len(events.called("kill")) + 1):
                due = "kill"
            elif time.monotonic() - began > 60:
                began = time.monotonic()
                events.add("note", step=_last_step(folder))
        _end(ranks, folder, due, events)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _end(ranks: list[subprocess.Popen[bytes]], folder: Path, due: str, events: Events) -> None:
    """Let the fault or the end come, and note how every rank ends."""
    victim = len(events.called("kill")) % HOSTS if due == "kill" else None
    began = time.monotonic()
    for number, rank in enumerate(ranks):
        if due == "end" or number == victim:
            rank.send_signal(signal.SIGTERM if due == "end" else signal.SIGKILL)
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < began + 3 * TIMEOUT_S:
        time.sleep(0.1)
    status = [rank.returncode for rank in ranks]
    expected = {130} if due == "end" else {1}
    is_well = bool(due) and {s for n, s in enumerate(status) if n != victim} == expected
    words = [last_error((folder / f"rank{n}.log").read_text()) for n in range(HOSTS) if n != victim]
    events.add(
        due if is_well else "failed",
        rank=victim,
        status=status,
        ended_after_s=round(time.monotonic() - began, 1),
        words=words if due != "end" or not is_well else [],
    )
    if len(events.called("failed")) > 3:
        raise SystemExit(f"long: {folder}: a training fails again and again; see its logs")


def _last_step(folder: Path) -> int:
    return max([step.number for step in read_steps(folder / "rank0.txt")], default=0)


def _train_undisturbed(folder: Path, last: int, options: Any) -> None:
    """Train up to a step on this machine, without emulated hosts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(HOSTS)}
    places |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # as on hosts of one rank
    ranks = []
    print(f"{folder.parent.name}: undisturbed, up to step {last}", flush=True)
    try:
        for rank in range(HOSTS):
            command = [*_command(folder, rank, options), "--steps", str(last)]
            env = os.environ | places | {"RANK": str(rank)}
            ranks.append(subprocess.Popen(command, env=env, **_output(folder, rank)))
        if any(process.wait() for process in ranks):
            raise SystemExit(f"long: the training without a fault failed; see {folder}")
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _command(folder: Path, rank: int, options: Any) -> list[str]:
    checkpoints = folder / "checkpoints"
    return [
        sys.executable, "-m", "tests.chaos.long_rank", str(folder / f"rank{rank}.txt"),
        str(options.pause if folder.name == "faulty" else options.pause / 5),
        "--config", CONFIGS[folder.parent.name], *MODEL,
        "--checkpoint-dir", str(checkpoints), "--out", str(folder), "--name", "long",
        *(["--resume"] if any(checkpoints.glob("step_*/digests.json")) else []),
    ]  # fmt: skip


def _output(folder: Path, rank: int) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / f"rank{rank}.log").open("ab")
    return {"cwd": ROOT, "stdout": file, "stderr": file}


def compare(folder: Path, events: Events) -> dict[str, Any]:
    """Return the figures of a training under faults, beside those of the undisturbed one."""
    compared = different = 0
    growth, steps = [0.0], []
    for rank in range(HOSTS):
        steps = read_steps(folder / "faulty" / f"rank{rank}.txt")
        expected = {
            s.number: s.loss for s in read_steps(folder / "undisturbed" / f"rank{rank}.txt")
        }
        compared += len(steps)
        different += sum(expected.get(step.number) != step.loss for step in steps)
        different += len(expected.keys() - {step.number for step in steps})
        growth += growths(steps)
    kills = events.called("kill")
    return {
        "minutes": round(events.all[-1]["at_s"] / 60), "steps": max(step.number for step in steps),
        "losses_compared": compared, "losses_different": different,
        "cuts": len(events.called("cut")), "kills": len(kills),
        "failures": len(events.called("failed")),
        "slowest_end_after_kill_s": max([kill["ended_after_s"] for kill in kills], default=0.0),
        "memory_growth": max(growth), "memory_mib": max(s.memory_kib for s in steps) / 1024,
    }  # fmt: skip


def growths(steps: Sequence[Step]) -> list[float]:
    """Return by how much the memory of each process of 100 steps or more has grown.

    It is the median of its last quarter over that of the second one, less 1.
    """
    by_process: dict[int, list[int]] = defaultdict(list)
    for step in steps:
        by_process[step.process].append(step.memory_kib)
    long = [kib for kib in by_process.values() if len(kib) >= 100]
    return [median(k[-len(k) // 4 :]) / median(k[len(k) // 4 : len(k) // 2]) - 1 for k in long]


def verdict(preset: str, figures: dict[str, Any]) -> str:
    """Return a line on a preset that ends with ": good" where all is as it should be."""
    is_good = figures["losses_compared"] > 0 and figures["memory_growth"] <= MAX_GROWTH
    is_good &= not figures["losses_different"] and not figures["failures"]
    return (
        f"{preset}, {figures['minutes']} min, {figures['steps']} steps, {figures['cuts']} cuts, "
        f"{figures['kills']} kills, {figures['failures']} failures: {figures['losses_different']} "
        f"of {figures['losses_compared']} losses differ, memory grows by "
        f"{100 * figures['memory_growth']:.1f} %: {'good' if is_good else 'NOT GOOD'}"
    )


def _record(figures: dict[str, Any], options: Any, preset: str) -> records.BenchRecord:
    setup = {"hosts": HOSTS, "rate": options.rate, "loss_percent": options.loss}
    setup |= {
        name: getattr(options, name) for name in ("cut_s", "cut_every", "kill_every", "pause")
    }
    return records.BenchRecord(
        configuration=preset,
        config=AUTO.read_text() if preset == "auto" else None,
        environment=records.Environment.current(repository=ROOT),
        time=time.time(),
        bench="long",
        setup=setup,
        figures=figures,
    )


def _parser() -> argparse.ArgumentParser:
    how = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="python -m tests.chaos long", **how)
    add = parser.add_argument
    add("--presets", nargs="+", choices=CONFIGS, default=list(CONFIGS), help="default both")
    add("--minutes", type=float, default=60.0, help="under faults, each preset; default 60")
    add("--rate", default="20mbit", help="of the hosts' links; default 20mbit")
    add("--loss", type=float, default=0.5, help="per cent of all packets; default 0.5")
    add("--cut-s", type=float, default=2.0, help="seconds of a cut; default 2")
    add("--cut-every", type=float, default=300.0, help="seconds; default 300")
    add("--kill-every", type=float, default=1200.0, help="seconds; default 1200")
    add("--pause", type=float, default=0.3, help="seconds before each step; default 0.3")
    add("--folder", type=Path, default=Path("runs/chaos/long"), help="for what it goes on from")
    add("--out", type=Path, default=Path("runs/chaos/long.jsonl"), help="file of records")
    return parser
