"""Trains the model of examples/sequences with several configs in turn: one host of bench-net.

`python -m examples.bench.net --workload sequences` runs it on each host; what it measures, and how,
is told in examples/criteo/in_turn.py. The default model is larger than that of the example: 256
users a host, 20,000 items of dim 64, so that a step sends megabytes.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist
from torchrec import KeyedJaggedTensor
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "criteo")]  # whose scripts import by name

from measured_command import TrainOptions, network_of, run  # noqa: E402
from measured_steps import (  # noqa: E402
    PROFILED_STEPS,
    WARM_STEPS,
    MeasuredTraining,
    profile_steps,
    record_of,
    take_steps,
)

from examples.sequences.data import Batches  # noqa: E402
from examples.sequences.options import (  # noqa: E402
    PIPELINES,
    STOCK,
    build_parser,
    check_options,
    load_sequences,
    setup_of,
)
from examples.sequences.trainer import Trainer, silence_start  # noqa: E402
from trec_qcomm import QComm  # noqa: E402
from trec_qcomm.lab.records import NetworkRecord  # noqa: E402

MODEL = ("--users", "4096", "--items", "20000", "--dim", "64", "--batch-size", "256")
# Options of train.py that would do nothing here.
UNUSED = ("epochs", "steps", "checkpoint_dir", "resume", "name", "part")


TRAIN_OPTIONS = TrainOptions(
    build_parser=build_parser,
    check=check_options,
    setup_of=setup_of,
    unused=UNUSED,
    pipelines=PIPELINES,
    defaults=MODEL,
)


class Feed:
    """Batches of this rank from a step on. They are made when they are asked for, in the step."""

    waited_s = 0.0

    def __init__(self, batches: Batches, first: int = 0) -> None:
        self._batches, self._step = batches, first

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        return self

    def __next__(self) -> KeyedJaggedTensor:
        self._step += 1
        return self._batches[self._step - 1]


def measure(
    every: list[argparse.Namespace], arguments: argparse.Namespace, interface: str
) -> list[NetworkRecord]:
    """Return one record a config. Collective."""
    sequences, trainings = load_sequences(every[0]), []
    for options in every:
        qcomm = None if options.config in STOCK else QComm.from_yaml(options.config)
        trainer = Trainer.build(copy.copy(options), sequences, qcomm)
        feed = Feed(trainer.batches)
        setup = setup_of(options)
        trainings.append(MeasuredTraining(options.config, setup, options.seed, trainer, feed))
    take_steps(trainings, arguments.num_steps, interface)
    made = []
    for training in tqdm(trainings, desc="scores and profiles", disable=dist.get_rank() != 0):
        metrics = training.trainer.score()
        first = WARM_STEPS + arguments.num_steps
        profile_steps(training, Feed(training.trainer.batches, first))
        assert first + PROFILED_STEPS == training.trainer.step
        made.append(record_of(training, metrics, **network_of(arguments)))
    return made


if __name__ == "__main__":
    silence_start()
    run(__doc__, TRAIN_OPTIONS, measure)
