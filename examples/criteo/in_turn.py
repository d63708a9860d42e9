"""Trains with several configs in turn, step by step, and measures each step: what bench-net runs.

  torchrun --nproc-per-node 2 examples/criteo/in_turn.py --configs stock configs/int8.yaml \\
      --out net.jsonl

Every rank runs this once. All configs train at the same time, each its own model on the same
batches: a step of the first, a step of the second, and so on, so that whatever else the machine
does falls on all alike. With `--pipelines none sparse_dist` each config is there twice, by hand and
pipelined. Options that are not listed here are those of train.py. Rank 0 appends one record a
training to --out.

Bytes are those that the network interface sent ($GLOO_SOCKET_IFNAME, default lo), TCP's headers
included; `traffic` is what trec_qcomm says it handed to the collectives. `step_s` is that of the
slowest host. After the timed steps come some under torch's profiler, only for the breakdown.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist
from data.dataset import Batches
from data.reader import BatchReader
from failures import gather
from loop.pipelines import PIPELINES
from options import build_parser, check_options, setup_of
from ranks import silence_start
from report.metrics import score, step_seconds
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm
from train import build_trainer, load_dataset
from trainer import Trainer

from trec_qcomm import records
from trec_qcomm.core.stats import Stats
from trec_qcomm.records import Environment, NetworkRecord

# Options of train.py that would do nothing here.
UNUSED = (
    "tensorboard", "dump_rows", "eval_codec", "checkpoint_dir", "checkpoint_every",
    "checkpoint_async", "resume",
    "allow_changed_config", "epochs",
)  # fmt: skip
WARM_STEPS = 3  # not timed: kernels compile, thresholds and buckets settle
PROFILED_STEPS = 3


@dataclass
class MeasuredTraining:
    """A training with one config, and what this rank measured of its steps.

    Args:
        name: name of the config.
        options: options of train.py.
        trainer: the sharded model.
        feed: this rank's batches, of all steps but those under the profiler.
    Derived:
        seconds, nbytes, packets: seconds of each timed step, and what this host sent in it.
        reader_s: seconds of the timed steps that passed with waiting for batches.
        stats: QComm's counters of the timed steps; None of plain TorchRec.
        profiled: seconds of each part of a step.
    """

    name: str
    options: argparse.Namespace
    trainer: Trainer
    feed: BatchReader
    seconds: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    packets: list[int] = field(default_factory=list)
    reader_s: float = 0.0
    stats: Stats | None = None
    profiled: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Measure, and append rank 0's records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--configs", nargs="+", required=True, help="as train.py's --config")
    add(
        "--pipelines",
        nargs="+",
        choices=PIPELINES,
        help="each config with each of these (default: --pipeline)",
    )
    add("--steps", type=int, default=25, dest="num_steps", help="timed steps of each (default 25)")
    add("--rate", default="none", help="rate of each link, for the records (default none)")
    add("--delay", default=None, help="delay of each link, for the records")
    add("--out", type=Path, required=True, help="file of records, appended to")
    add(
        "--check",
        action="store_true",
        help="check the options and print the setup as JSON; train nothing",
    )
    arguments, rest = parser.parse_known_args()
    if arguments.num_steps < 1:
        parser.error(f"steps {arguments.num_steps}: must be positive")
    try:
        every = parsed(arguments.configs, rest, arguments.pipelines or [None])
    except ValueError as error:
        parser.error(str(error))
    if arguments.check:
        print(json.dumps(setup_of(every[0])))
        return
    interface = os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    silence_start()
    dist.init_process_group("gloo", timeout=timedelta(seconds=every[0].timeout))
    try:
        made = measure(every, arguments, interface)
    finally:
        dist.destroy_process_group()
    if int(os.environ["RANK"]) == 0:
        records.append(arguments.out, *made)


def parsed(
    configs: Sequence[str], rest: Sequence[str], pipelines: Sequence[str | None] = (None,)
) -> list[argparse.Namespace]:
    """Return options of train.py for each config with each pipeline; None: that of `rest`.

    Raises: ValueError: an option that does nothing here.
    """
    parser = build_parser()
    words = [[*rest, *(["--pipeline", pipeline] if pipeline else [])] for pipeline in pipelines]
    every = [parser.parse_args(["--config", c, *more]) for c in configs for more in words]
    for name in UNUSED:
        if any(getattr(options, name) != parser.get_default(name) for options in every):
            raise ValueError(f"{name}: an option that bench-net does not have")
    for options in every:
        check_options(options)
    return every


def measure(
    every: list[argparse.Namespace], arguments: argparse.Namespace, interface: str
) -> list[NetworkRecord]:
    """Return one record a config. Collective."""
    dataset = load_dataset(every[0])
    ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    batches = Batches(dataset.train, every[0].batch_size, drop_last=True, **ranks)
    if not len(batches):
        size = every[0].batch_size * dist.get_world_size()
        raise ValueError(f"batch_size {every[0].batch_size}: no {size} rows to train on")
    num_steps = WARM_STEPS + arguments.num_steps
    trainings = [
        MeasuredTraining(
            Path(o.config).stem,
            o,
            build_trainer(copy.copy(o), dataset.num_embeddings),
            BatchReader(batches, 0, num_steps),
        )
        for o in every
    ]
    quiet = dist.get_rank() != 0
    for step in tqdm(range(num_steps), desc="steps of every config", disable=quiet):
        for training in trainings:
            timed_step(training, interface, timed=step >= WARM_STEPS)
    for training in trainings:
        if training.trainer.qcomm is not None:
            training.stats = training.trainer.qcomm.stats()
    tests = Batches(dataset.test, every[0].batch_size, drop_last=False, **ranks)
    made = []
    for training in tqdm(trainings, desc="scores and profiles", disable=quiet):
        metrics = score(*training.trainer.predict(tests, exact=False))
        profile_steps(training, batches)
        made.append(record_of(training, metrics, arguments))
    return made


def timed_step(training: MeasuredTraining, interface: str, *, timed: bool) -> None:
    """Take one step and measure it.

    What is still in a queue when a rank's step ends is counted: the others must have it before
    they pass the second barrier. But for what a pipeline sends ahead, which may come later: in the
    place of it the step has what the step before sent ahead.
    """
    if timed and not training.seconds and training.trainer.qcomm is not None:
        training.trainer.qcomm.reset_stats()
    dist.barrier()
    before, begin, waited_s = sent(interface), time.perf_counter(), training.feed.waited_s
    training.trainer.train_next(training.feed)
    seconds = time.perf_counter() - begin
    dist.barrier()
    if timed:
        after = sent(interface)
        training.seconds.append(seconds)
        training.reader_s += training.feed.waited_s - waited_s
        training.nbytes.append(after[0] - before[0])
        training.packets.append(after[1] - before[1])


def sent(interface: str) -> tuple[int, int]:
    """Return the bytes and packets that have left by this interface."""
    folder = Path(f"/sys/class/net/{interface}/statistics")
    return tuple(int((folder / f"tx_{what}").read_text()) for what in ("bytes", "packets"))


def profile_steps(training: MeasuredTraining, batches: Batches) -> None:
    """Measure the seconds of a step in the parts that torch's profiler sees, on this rank."""
    dist.barrier()
    trainer, first = training.trainer, training.trainer.step
    with (
        BatchReader(batches, first, first + PROFILED_STEPS) as feed,
        profile(activities=[ProfilerActivity.CPU]) as trace,
    ):
        for _ in range(PROFILED_STEPS):
            trainer.train_next(feed)
    parts = {"lookup": 0.0, "stock codec": 0.0, "optimizer": 0.0, "dense": 0.0}
    for event in trace.key_averages():
        part = part_of(event.key)
        if part is not None:  # the optimizer's step counts with what it calls
            us = event.cpu_time_total if part == "optimizer" else event.self_cpu_time_total
            parts[part] += us / 1e6 / PROFILED_STEPS
    training.profiled = parts


def part_of(name: str) -> str | None:
    """Return the part of a step that an operator belongs to; None for waiting and the rest."""
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


def record_of(
    training: MeasuredTraining, metrics: dict[str, float], arguments: argparse.Namespace
) -> NetworkRecord:
    """Return the record of one config. Collective."""
    options, num_steps = training.options, arguments.num_steps
    slowest = np.max(gather(training.seconds), axis=0)
    losses = np.mean(gather(training.trainer.losses[: WARM_STEPS + num_steps]), axis=0)
    file = Path(options.config)
    stats = training.stats
    traffic = None if stats is None else tuple(gather(records.traffic_of(stats, num_steps)))
    return NetworkRecord(
        configuration=training.name,
        config=file.read_text() if file.is_file() else None,
        setup=setup_of(options),
        seed=options.seed,
        environment=Environment.current(repository=Path(__file__).parent),
        time=time.time(),
        num_hosts=dist.get_world_size(),
        rate=arguments.rate,
        delay=arguments.delay,
        num_steps=num_steps,
        step_s=step_seconds(list(slowest), skip=0),
        sent_nbytes=tuple(float(np.median(host)) for host in gather(training.nbytes)),
        sent_packets=tuple(float(np.median(host)) for host in gather(training.packets)),
        traffic=traffic,
        breakdown_s=breakdown(training, num_steps),
        metrics=metrics,
        losses=tuple(losses.tolist()),
        progressive_logloss=float(losses.mean()),
    )


def breakdown(training: MeasuredTraining, num_steps: int) -> dict[str, float]:
    """Return the seconds of each part of a step, the mean over hosts. Collective.

    encode, wire and decode are the codecs' clocks of the timed steps, and may overlap with the
    rest; TorchRec's own codecs are in `stock codec`. reader is the wait for batches.
    """
    seconds = dict(training.profiled)
    kinds = () if training.stats is None else training.stats.by_kind().values()
    seconds["encode"] = sum(sum(kind.encode_s.values()) for kind in kinds) / num_steps
    seconds["wire"] = sum(kind.wire_s for kind in kinds) / num_steps
    seconds["decode"] = sum(sum(kind.decode_s.values()) for kind in kinds) / num_steps
    seconds["reader"] = training.reader_s / num_steps
    hosts = gather(seconds)
    return {part: float(np.mean([host[part] for host in hosts])) for part in seconds}


if __name__ == "__main__":
    main()
