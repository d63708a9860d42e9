"""What one host of bench-net runs: trains with each config in turn, step by step, and measures.

  torchrun --nproc-per-node 2 host.py --configs stock ../../../configs/int8.yaml --out net.jsonl

Every rank runs this once. All configs train at the same time, each its own model on the same
batches: a step of the first, a step of the second, and so on, so that whatever else the machine
does falls on all alike. Options that are not listed here are those of train.py. Rank 0 appends one
JSON object a config to --out.

Bytes are those that the network interface sent ($GLOO_SOCKET_IFNAME, default lo), TCP's headers
included; `counted` is what trec_qcomm says it handed to the collectives. `step_s` is of the slowest
host. After the timed steps come some under torch's profiler, which only the breakdown is from.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

CRITEO = Path(__file__).resolve().parents[2] / "criteo"
sys.path.insert(0, str(CRITEO))

from data import Batches  # noqa: E402
from loop import Trainer  # noqa: E402
from report import TRAFFIC_KINDS, describe_run, gather, score  # noqa: E402
from train import (  # noqa: E402
    build_parser,
    build_trainer,
    check_options,
    load_dataset,
    silence_start,
)

# Options of train.py that would do nothing here.
UNUSED = (
    "tensorboard", "dump_rows", "eval_codec", "checkpoint_dir", "checkpoint_every", "resume",
    "epochs",
)  # fmt: skip
WARM_STEPS = 3  # not timed: kernels compile, thresholds and buckets settle
PROFILED_STEPS = 3


@dataclass
class Way:
    """A config and what its steps took. Args: seconds, nbytes: of this rank's timed steps."""

    name: str
    options: argparse.Namespace
    trainer: Trainer
    seconds: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    packets: list[int] = field(default_factory=list)
    counted: dict[str, Any] | None = None
    profiled: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Measure, and write rank 0's file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--configs", nargs="+", required=True, help="as train.py's --config")
    parser.add_argument("--steps", type=int, default=25, help="timed steps of each (default 25)")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--label", type=json.loads, default={}, help="JSON, part of each line")
    arguments, rest = parser.parse_known_args()
    if arguments.steps < 1:
        parser.error(f"steps {arguments.steps}: must be positive")
    try:
        every = parsed(arguments.configs, rest)
        for options in every:
            check_options(options)
    except ValueError as error:
        parser.error(str(error))
    interface = os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    silence_start()
    dist.init_process_group("gloo", timeout=timedelta(seconds=every[0].timeout))
    try:
        records = measure(every, arguments.steps, interface)
    finally:
        dist.destroy_process_group()
    if int(os.environ["RANK"]) == 0:
        with arguments.out.open("a") as file:
            for record in records:
                file.write(json.dumps(arguments.label | record) + "\n")


def parsed(configs: Sequence[str], rest: Sequence[str]) -> list[argparse.Namespace]:
    """Options of train.py for each config. Raises ValueError: one that would do nothing here."""
    parser = build_parser()
    every = [parser.parse_args(["--config", config, *rest]) for config in configs]
    for name in UNUSED:
        if any(getattr(options, name) != parser.get_default(name) for options in every):
            raise ValueError(f"{name}: an option that bench-net does not have")
    return every


def measure(every: list[argparse.Namespace], num_steps: int, interface: str) -> list[dict]:
    """One record a config. Collective."""
    dataset = load_dataset(every[0])
    ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    batches = Batches(dataset.train, every[0].batch_size, drop_last=True, **ranks)
    if not len(batches):
        size = every[0].batch_size * dist.get_world_size()
        raise ValueError(f"batch_size {every[0].batch_size}: no {size} rows to train on")
    ways = [
        Way(Path(o.config).stem, o, build_trainer(copy.copy(o), dataset.num_embeddings))
        for o in every
    ]
    quiet = dist.get_rank() != 0
    steps = range(WARM_STEPS + num_steps)  # where rows are used up they begin again
    for step in tqdm(steps, desc="steps of every config", disable=quiet):
        for way in ways:
            timed_step(way, batches, interface, timed=step >= WARM_STEPS)
    for way in ways:
        way.counted = None if way.trainer.qcomm is None else way.trainer.qcomm.stats().to_dict()
    tests = Batches(dataset.test, every[0].batch_size, drop_last=False, **ranks)
    records = []
    for way in tqdm(ways, desc="scores and profiles", disable=quiet):
        metrics = score(*way.trainer.predict(tests, exact=False))
        profile_steps(way, batches)
        records.append(record_of(way, metrics, num_steps))
    return records


def timed_step(way: Way, batches: Batches, interface: str, *, timed: bool) -> None:
    """One step. What is still in a queue when a rank's step ends is counted: the others must have
    it before they pass the second barrier."""
    if timed and not way.seconds and way.trainer.qcomm is not None:
        way.trainer.qcomm.reset_stats()
    dist.barrier()
    before, begin = sent(interface), time.perf_counter()
    way.trainer.train_step(batches)
    seconds = time.perf_counter() - begin
    dist.barrier()
    if timed:
        after = sent(interface)
        way.seconds.append(seconds)
        way.nbytes.append(after[0] - before[0])
        way.packets.append(after[1] - before[1])


def sent(interface: str) -> tuple[int, int]:
    """Bytes and packets that have left by this interface."""
    folder = Path(f"/sys/class/net/{interface}/statistics")
    return tuple(int((folder / f"tx_{what}").read_text()) for what in ("bytes", "packets"))


def profile_steps(way: Way, batches: Batches) -> None:
    """Seconds of a step in the parts that torch's profiler sees, on this rank."""
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(PROFILED_STEPS):
            way.trainer.train_step(batches)
    parts = {"lookup": 0.0, "stock codec": 0.0, "optimizer": 0.0, "dense": 0.0}
    for event in trace.key_averages():
        part = part_of(event.key)
        if part is not None:  # of the optimizer's step with what it calls
            us = event.cpu_time_total if part == "optimizer" else event.self_cpu_time_total
            parts[part] += us / 1e6 / PROFILED_STEPS
    way.profiled = parts


def part_of(name: str) -> str | None:
    """Which part of a step an operator belongs to, None for waiting and the rest."""
    if name.startswith("Optimizer.step"):
        return "optimizer"
    if name.startswith(("fbgemm::Float", "fbgemm::Fused", "fbgemm::Half")):
        return "stock codec"
    if name.startswith("fbgemm::") and ("embedding" in name or "split" in name):
        return "lookup"
    if name in _DENSE:
        return "dense"
    return None


_DENSE = {f"aten::{n}" for n in (
    "addmm", "mm", "bmm", "relu", "threshold_backward", "index_put_", "index_select", "sum",
    "binary_cross_entropy_with_logits",
)}  # fmt: skip


def record_of(way: Way, metrics: dict[str, float], num_steps: int) -> dict[str, Any]:
    """What is reported of a way. Collective."""
    slowest = np.max(gather(way.seconds), axis=0)
    nbytes, packets = gather(way.nbytes), gather(way.packets)
    losses = np.mean(gather(way.trainer.losses[: WARM_STEPS + num_steps]), axis=0)
    described = describe_run(way.options)
    for name in ("config", "data"):  # files, whose folders are nobody's business
        if described["options"][name] is not None:
            described["options"][name] = Path(described["options"][name]).name
    return described | {
        "way": way.name,
        "num_steps": num_steps,
        "step_s": {f"p{q}": float(np.percentile(slowest, q)) for q in (20, 50, 80)},
        "sent_nbytes": [float(np.median(host)) for host in nbytes],
        "sent_packets": [float(np.median(host)) for host in packets],
        "counted": counted(way, num_steps),
        "breakdown_s": breakdown(way, num_steps),
        "metrics": metrics,
        "progressive_logloss": float(losses.mean()),
        "losses": losses.tolist(),
    }


def counted(way: Way, num_steps: int) -> dict[str, dict[str, list[float]]] | None:
    """Bytes a step that each host handed to the collectives, by kind. Collective."""
    if way.counted is None:
        return None
    hosts = gather({kind: way.counted[kind] for kind in TRAFFIC_KINDS})
    return {
        kind: {
            name: [host[kind][name] / num_steps for host in hosts]
            for name in ("raw_nbytes", "wire_nbytes")
        }
        for kind in TRAFFIC_KINDS
    }


def breakdown(way: Way, num_steps: int) -> dict[str, float]:
    """Seconds a step, the mean over hosts. encode, wire and decode are the codecs' own clocks of
    the timed steps, and may overlap with the rest; those of stock are in `stock codec`."""
    own = dict(way.profiled)
    for part in ("encode", "wire", "decode"):
        own[part] = 0.0
        for kind in TRAFFIC_KINDS if way.counted is not None else ():
            seconds = way.counted[kind].get(f"{part}_s", 0.0)
            total = sum(seconds.values()) if isinstance(seconds, dict) else seconds
            own[part] += total / num_steps
    hosts = gather(own)
    return {part: float(np.mean([host[part] for host in hosts])) for part in own}


if __name__ == "__main__":
    main()
