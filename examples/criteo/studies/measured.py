"""Trains several configs in turn and measures their steps: time, bytes sent, parts of a step.

Knows: the command line of such a program, barriers, the counters of a network interface, torch's
profiler. Does not know: which train.py it belongs to, its model and its data.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from ranks import gather
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from trec_qcomm.core.stats import Stats
from trec_qcomm.lab import records
from trec_qcomm.lab.records import Environment, NetworkRecord, Percentiles

WARM_STEPS = 3  # not timed: kernels compile, thresholds and buckets settle
PROFILED_STEPS = 10  # of 3, the all-to-all's share differed by .15 between runs
_NETWORK = ("rate", "delay", "ranks_per_host")  # options that a record has

# Options of each training, those of the command line, the network interface -> a record each.
Measure = Callable[[list[argparse.Namespace], argparse.Namespace, str], list[NetworkRecord]]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a train.py, for a program that does not write what train.py writes.

    Args:
        build_parser: maker of train.py's parser.
        check: function that raises ValueError for options that make no sense.
        setup_of: function that returns the options that must be equal for two records to be
            compared.
        unused: names of options that would do nothing, and are refused.
        pipelines: choices of --pipeline.
    """

    build_parser: Callable[[], argparse.ArgumentParser]
    check: Callable[[argparse.Namespace], None]
    setup_of: Callable[[argparse.Namespace], dict[str, Any]]
    unused: Sequence[str]
    pipelines: Sequence[str]

    def parse(
        self,
        configs: Sequence[str],
        rest: Sequence[str],
        pipelines: Sequence[str] | None = None,
        plans: Sequence[str] | None = None,
    ) -> list[argparse.Namespace]:
        """Return the options of each config with each pipeline and plan; None: those of `rest`.

        Raises: ValueError: an option that does nothing here.
        """
        parser = self.build_parser()
        choices = [
            [(option, value) for value in values]
            for option, values in (("--pipeline", pipelines), ("--plan", plans))
            if values
        ]
        words = [[*rest, *itertools.chain(*chosen)] for chosen in itertools.product(*choices)]
        every = [parser.parse_args(["--config", c, *more]) for c in configs for more in words]
        for options in every:
            for name in self.unused:
                if getattr(options, name) != parser.get_default(name):
                    raise ValueError(f"{name}: an option that bench-net does not have")
            self.check(options)
        return every


def run(description: str | None, train_options: TrainOptions, measure: Measure) -> None:
    """Measure as the command line says, and append rank 0's records. Every rank calls it once."""
    parser = _parser(description, train_options)
    arguments, rest = parser.parse_known_args()
    num_ranks, ranks_per_host = int(os.environ["WORLD_SIZE"]), arguments.ranks_per_host
    if arguments.num_steps < 1:
        parser.error(f"steps {arguments.num_steps}: must be positive")
    if ranks_per_host < 1 or num_ranks % ranks_per_host:
        parser.error(f"ranks_per_host {ranks_per_host}: {num_ranks} ranks do not fill such hosts")
    try:
        every = train_options.parse(arguments.configs, rest, arguments.pipelines, arguments.plans)
    except ValueError as error:
        parser.error(str(error))
    if arguments.check:
        print(json.dumps([train_options.setup_of(options) for options in every]))
        return
    ranks_per_node = vars(every[0]).get("ranks_per_node")  # which not every training has
    if ranks_per_node is not None:
        os.environ["LOCAL_WORLD_SIZE"] = str(ranks_per_node)  # what TorchRec calls a node
    interface = os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", timeout=timedelta(seconds=every[0].timeout))
    try:
        made = measure(every, arguments, interface)
        dist.barrier()  # a thread of gloo that freed a Python tensor during exit would abort
    finally:
        dist.destroy_process_group()
    if int(os.environ["RANK"]) == 0:
        records.append(arguments.out, *made)


def _parser(description: str | None, train_options: TrainOptions) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--configs", nargs="+", required=True, help="as train.py's --config")
    each = "each config with each of these (default: that of train.py)"
    add("--pipelines", nargs="+", choices=train_options.pipelines, help=each)
    add("--plans", nargs="+", help=each)
    add("--steps", type=int, default=25, dest="num_steps", help="timed steps of each (default 25)")
    add("--ranks-per-host", type=int, default=1, help="for the records (default 1)")
    add("--rate", default="none", help="rate of each link, for the records (default none)")
    add("--delay", help="delay of each link, for the records")
    add("--out", type=Path, required=True, help="file of records, appended to")
    add("--timeline", type=Path, metavar="FILE", help="append records of one step's parts to this")
    add("--check", action="store_true", help="print the setup of each training as JSON, no more")
    return parser


@dataclass
class MeasuredTraining:
    """A training with one config, and what this rank measured of its steps.

    Args:
        config: a config's file, or a name of plain TorchRec.
        setup: options that must be equal for two records to be compared.
        seed: seed of the training.
        trainer: the sharded model, with `train_next(feed)`, `losses` and `qcomm`.
        feed: batches of all steps but those under the profiler, and `waited_s`, the seconds that
            were spent with waiting for them.
        num_settling: number of steps before the others, see `settle`.
    Derived:
        seconds, nbytes, packets: seconds of each timed step, and what this host sent in it.
        reader_s: seconds of the timed steps that passed with waiting for batches.
        stats: QComm's counters of the timed steps; None of plain TorchRec.
        profiled: seconds of each part of a step.
    """

    config: str
    setup: Mapping[str, Any]
    seed: int
    trainer: Any
    feed: Any
    num_settling: int = 0
    seconds: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    packets: list[int] = field(default_factory=list)
    reader_s: float = 0.0
    stats: Stats | None = None
    profiled: dict[str, float] = field(default_factory=dict)


def settle(training: MeasuredTraining, feed: Any) -> None:
    """Train until the config's `auto` has chosen, alone, as it times steps. Collective.

    Args: feed: batches without end, for these steps alone.
    """
    qcomm = training.trainer.qcomm
    auto = None if qcomm is None else qcomm.session.extensions.get("auto")
    while auto is not None and auto.is_tuning:
        training.trainer.train_next(feed)
        training.num_settling += 1
    if auto is not None and dist.get_rank() == 0:
        print(auto.in_summary(), file=sys.stderr, flush=True)


def take_steps(trainings: Sequence[MeasuredTraining], num_steps: int, interface: str) -> None:
    """Train all of them, a step of each in turn. Collective.

    Args: num_steps: timed steps of each.  interface: the network interface whose bytes count.
    """
    steps = tqdm(
        range(WARM_STEPS + num_steps), desc="steps of every config", disable=dist.get_rank() != 0
    )
    for step in steps:
        for training in trainings:
            _take_step(training, interface, timed=step >= WARM_STEPS)
    for training in trainings:
        if training.trainer.qcomm is not None:
            training.stats = training.trainer.qcomm.stats()


def _take_step(training: MeasuredTraining, interface: str, *, timed: bool) -> None:
    """Take one step and measure it.

    What is still in a queue when a rank's step ends is counted: the others must have it before
    they pass the second barrier. But for what a pipeline sends ahead, which may come later: in the
    place of it the step has what the step before sent ahead.
    """
    if timed and not training.seconds and training.trainer.qcomm is not None:
        training.trainer.qcomm.reset_stats()
    dist.barrier()
    before, begin, waited_s = _sent(interface), time.perf_counter(), training.feed.waited_s
    training.trainer.train_next(training.feed)
    seconds = time.perf_counter() - begin
    dist.barrier()
    if timed:
        after = _sent(interface)
        training.seconds.append(seconds)
        training.reader_s += training.feed.waited_s - waited_s
        training.nbytes.append(after[0] - before[0])
        training.packets.append(after[1] - before[1])


def _sent(interface: str) -> tuple[int, ...]:
    """Return the bytes and packets that have left by this interface."""
    folder = Path(f"/sys/class/net/{interface}/statistics")
    return tuple(int((folder / f"tx_{what}").read_text()) for what in ("bytes", "packets"))


def profile_steps(training: MeasuredTraining, feed: Any) -> None:
    """Measure the seconds of a step in the parts that torch's profiler sees. Collective.

    The seconds are this rank's. The last barrier is within the profile: a thread of gloo notes the
    end of an all-reduce after it has told the waiting thread, and needs the GIL in between (for
    hooks' futures). Were the profiler stopped before, it would write into memory that was freed.

    Args: feed: PROFILED_STEPS batches.
    """
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(PROFILED_STEPS):
            training.trainer.train_next(feed)
        dist.barrier()
    parts = {"lookup": 0.0, "stock codec": 0.0, "optimizer": 0.0, "dense": 0.0}
    for event in trace.key_averages():
        part = _part_of(event.key)
        if part is not None:  # the optimizer's step counts with what it calls
            us = event.cpu_time_total if part == "optimizer" else event.self_cpu_time_total
            parts[part] += us / 1e6 / PROFILED_STEPS
    spans = [e.time_range for e in trace.events() if e.name == _GLOO_ALL_TO_ALL]
    covered_us = covered([(span.start, span.end) for span in spans])
    training.profiled = {**parts, "all-to-all": covered_us / 1e6 / PROFILED_STEPS}


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length that spans of (start, end) cover together; where they overlap, once."""
    length, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


def _part_of(name: str) -> str | None:
    """Return the part of a step that an operator belongs to; None for waiting and the rest."""
    if name.startswith("Optimizer.step"):
        return "optimizer"
    if name.startswith(("fbgemm::Float", "fbgemm::Fused", "fbgemm::Half")):
        return "stock codec"
    if name.startswith("fbgemm::") and ("embedding" in name or "split" in name):
        return "lookup"
    return "dense" if name in _DENSE else None


_GLOO_ALL_TO_ALL = "gloo:all_to_all"  # noted by the thread that runs it, from its start on
_DENSE = {f"aten::{n}" for n in (
    "addmm", "mm", "bmm", "relu", "threshold_backward", "index_put_", "index_select", "sum",
    "binary_cross_entropy_with_logits",
)}  # fmt: skip


def record_of(
    training: MeasuredTraining, metrics: dict[str, float], arguments: argparse.Namespace
) -> NetworkRecord:
    """Return the record of one config. Collective. Args: arguments: those of the command line."""
    network = {name: getattr(arguments, name) for name in _NETWORK}
    num_steps, ranks_per_host = len(training.seconds), arguments.ranks_per_host
    slowest = np.max(gather(training.seconds), axis=0)
    first = training.num_settling
    ours = training.trainer.losses[first : first + WARM_STEPS + num_steps]
    losses = np.mean(gather(ours), axis=0)
    file, stats = Path(training.config), training.stats
    traffic = None if stats is None else tuple(gather(records.traffic_of(stats, num_steps)))
    counted = [gather(counts)[::ranks_per_host] for counts in (training.nbytes, training.packets)]
    sent_nbytes, sent_packets = (tuple(float(np.median(h)) for h in hosts) for hosts in counted)
    return NetworkRecord(
        configuration=file.stem,
        config=file.read_text() if file.is_file() else None,
        setup=dict(training.setup),
        seed=training.seed,
        environment=Environment.current(repository=Path(__file__).parent),
        time=time.time(),
        choice=records.choice_of(training.trainer.qcomm),
        num_hosts=dist.get_world_size() // ranks_per_host,
        num_steps=num_steps,
        step_s=Percentiles(**{f"p{q}": float(np.percentile(slowest, q)) for q in (20, 50, 80)}),
        sent_nbytes=sent_nbytes,
        sent_packets=sent_packets,
        traffic=traffic,
        breakdown_s=_breakdown(training, num_steps),
        metrics=metrics,
        losses=tuple(losses.tolist()),
        progressive_logloss=float(losses.mean()),
        **network,
    )


def _breakdown(training: MeasuredTraining, num_steps: int) -> dict[str, float]:
    """Return the seconds of each part of a step, the mean over hosts. Collective.

    encode, wire and decode are the codecs' clocks of the timed steps, and may overlap with the
    rest; TorchRec's own codecs are in `stock codec`. reader is the wait for batches. all-to-all is
    the time in which one of gloo was under way, with ids or rows, whoever asked for it.
    """
    kinds = () if training.stats is None else training.stats.by_kind().values()
    clocks = {
        "encode": sum(sum(kind.encode_s.values()) for kind in kinds),
        "wire": sum(kind.wire_s for kind in kinds),
        "decode": sum(sum(kind.decode_s.values()) for kind in kinds),
        "reader": training.reader_s,
    }
    hosts = gather(training.profiled | {name: s / num_steps for name, s in clocks.items()})
    return {part: float(np.mean([host[part] for host in hosts])) for part in hosts[0]}
