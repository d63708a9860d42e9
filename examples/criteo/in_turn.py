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
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from data.dataset import Batches
from data.reader import BatchReader
from loop.pipelines import PIPELINES
from measured_steps import (
    PROFILED_STEPS,
    WARM_STEPS,
    MeasuredTraining,
    profile_steps,
    record_of,
    take_steps,
)
from options import build_parser, check_options, setup_of
from ranks import silence_start
from report.metrics import score
from tqdm import tqdm
from train import build_trainer, load_dataset

from trec_qcomm import records
from trec_qcomm.records import NetworkRecord

# Options of train.py that would do nothing here.
UNUSED = (
    "tensorboard", "dump_rows", "eval_codec", "checkpoint_dir", "checkpoint_every",
    "checkpoint_async", "resume",
    "allow_changed_config", "epochs",
)  # fmt: skip


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
            o.config,
            setup_of(o),
            o.seed,
            build_trainer(copy.copy(o), dataset.num_embeddings),
            BatchReader(batches, 0, num_steps),
        )
        for o in every
    ]
    take_steps(trainings, arguments.num_steps, interface)
    tests = Batches(dataset.test, every[0].batch_size, drop_last=False, **ranks)
    made = []
    for training in tqdm(trainings, desc="scores and profiles", disable=dist.get_rank() != 0):
        metrics = score(*training.trainer.predict(tests, exact=False))
        with BatchReader(batches, num_steps, num_steps + PROFILED_STEPS) as feed:
            profile_steps(training, feed)
        made.append(record_of(training, metrics, rate=arguments.rate, delay=arguments.delay))
    return made


if __name__ == "__main__":
    main()
