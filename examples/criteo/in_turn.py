"""Trains with several configs in turn, step by step, and measures each step: what bench-net runs.

  torchrun --nproc-per-node 2 examples/criteo/in_turn.py --configs stock configs/int8.yaml \\
      --out net.jsonl

Every rank runs this once. All configs train at the same time, each its own model on the same
batches: a step of the first, a step of the second, and so on, so that whatever else the machine
does falls on all alike. With `--pipelines none sparse_dist` each config is there twice, by hand and
pipelined; with `--plans table_wise row_wise` once with each plan. Options that are not listed here
are those of train.py. Rank 0 appends one record a training to --out.

Bytes are those that the network interface sent ($GLOO_SOCKET_IFNAME, default lo), TCP's headers
included; `traffic` is what trec_qcomm says it handed to the collectives. `step_s` is that of the
slowest host. After the timed steps come some under torch's profiler, only for the breakdown.
"""

from __future__ import annotations

import argparse
import copy

import torch.distributed as dist
from data.dataset import Batches
from data.reader import BatchReader
from loop.pipelines import PIPELINES
from measured_command import TrainOptions, network_of, run
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

from trec_qcomm.lab.records import NetworkRecord

# Options of train.py that would do nothing here.
UNUSED = (
    "tensorboard", "dump_rows", "eval_codec", "checkpoint_dir", "checkpoint_every",
    "checkpoint_async", "resume",
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
        made.append(record_of(training, metrics, **network_of(arguments)))
    return made


if __name__ == "__main__":
    silence_start()
    run(__doc__, TRAIN_OPTIONS, measure)
