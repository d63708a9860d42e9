"""Trains with several configs in turn, step by step, and measures each step: what bench-net runs.

  torchrun --nproc-per-node 2 examples/criteo/studies/in_turn.py --out net.jsonl \\
      --configs stock configs/int8.yaml

Every rank runs this once. All configs train at the same time, each its own model on the same
batches: a step of the first, a step of the second, and so on, so that whatever else the machine
does falls on all alike. A config with `auto` trains alone before, until it has chosen. With
`--pipelines none sparse_dist` each config is there twice, by hand and pipelined; with `--plans
table_wise row_wise` once with each plan. Options that are not listed here are those of train.py.
Rank 0 appends one record a training to --out.

Bytes are those that the network interface sent ($GLOO_SOCKET_IFNAME, default lo), TCP's headers
included; `traffic` is what trec_qcomm says it handed to the collectives. `step_s` is that of the
slowest host. After the timed steps come some under torch's profiler, only for the breakdown, and
with --timeline some more for what rank 0 does at which time.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch.distributed as dist
from data.dataset import BatchReader
from options import build_parser, check_options, setup_of
from ranks import silence_start
from report import score
from tqdm import tqdm
from train import batches_of, build_trainer, load_dataset
from trainer import PIPELINES

from studies import timeline
from studies.measured import (
    PROFILED_STEPS,
    WARM_STEPS,
    MeasuredTraining,
    TrainOptions,
    profile_steps,
    record_of,
    run,
    settle,
    take_steps,
)
from trec_qcomm.lab import records
from trec_qcomm.lab.records import NetworkRecord

# Options of train.py that would do nothing here.
UNUSED = (
    "tensorboard", "dump_rows", "eval_codec", "checkpoint_dir", "checkpoint_every", "resume",
    "allow_changed_config", "epochs",
)  # fmt: skip
TRAIN_OPTIONS = TrainOptions(
    build_parser=build_parser,
    check=check_options,
    setup_of=setup_of,
    unused=UNUSED,
    pipelines=PIPELINES,
)


def measure(
    every: list[argparse.Namespace], arguments: argparse.Namespace, interface: str
) -> list[NetworkRecord]:
    """Return one record a config. Collective."""
    dataset, num_steps = load_dataset(every[0]), WARM_STEPS + arguments.num_steps
    batches = batches_of(dataset, every[0])
    trainings = []
    for options in every:
        trainer = build_trainer(copy.copy(options), dataset.num_embeddings)
        feed = BatchReader(batches, 0, num_steps)
        trained = (options.config, setup_of(options), options.seed)
        trainings.append(MeasuredTraining(*trained, trainer, feed))
    for training in trainings:
        with BatchReader(batches, 0, sys.maxsize) as endless:
            settle(training, endless)
    take_steps(trainings, arguments.num_steps, interface)
    tests, made = batches_of(dataset, every[0], is_test=True), []
    for training in tqdm(trainings, desc="scores and profiles", disable=dist.get_rank() != 0):
        metrics = score(*training.trainer.predict(tests, exact=False))
        with BatchReader(batches, num_steps, num_steps + PROFILED_STEPS) as feed:
            profile_steps(training, feed)
        if arguments.timeline is not None:
            with BatchReader(batches, num_steps, num_steps + timeline.NUM_STEPS) as feed:
                parts = timeline.timeline(training, feed, arguments.rate)
            if dist.get_rank() == 0:
                records.append(arguments.timeline, *parts)
        made.append(record_of(training, metrics, arguments))
    return made


if __name__ == "__main__":
    silence_start()
    run(__doc__, TRAIN_OPTIONS, measure)
