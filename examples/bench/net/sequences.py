"""Trains the model of examples/sequences with several configs in turn: one host of bench-net.

`python -m examples.bench.net --workload sequences` runs it on each host; what it measures, and how,
is told in examples/criteo/in_turn.py. The default model is larger than that of the example: 256
users a host, 20,000 items of dim 64, so that a step sends megabytes.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torchrec import KeyedJaggedTensor
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "criteo")]  # whose scripts import by name

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
    STOCK,
    build_parser,
    check_options,
    load_sequences,
    setup_of,
)
from examples.sequences.trainer import Trainer, silence_start  # noqa: E402
from trec_qcomm import QComm, records  # noqa: E402
from trec_qcomm.records import NetworkRecord  # noqa: E402

MODEL = ("--users", "4096", "--items", "20000", "--dim", "64", "--batch-size", "256")
# Options of train.py that would do nothing here.
UNUSED = ("epochs", "steps", "checkpoint_dir", "resume", "name", "part")


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


def main() -> None:
    """Measure, and append rank 0's records."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--configs", nargs="+", required=True, help="as train.py's --config")
    add("--steps", type=int, default=25, dest="num_steps", help="timed steps of each (default 25)")
    add("--rate", default="none", help="rate of each link, for the records (default none)")
    add("--delay", default=None, help="delay of each link, for the records")
    add("--out", type=Path, required=True, help="file of records, appended to")
    add("--check", action="store_true", help="check the options and print the setup as JSON")
    arguments, rest = parser.parse_known_args()
    try:
        every = parsed(arguments.configs, rest)
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


def parsed(configs: Sequence[str], rest: Sequence[str]) -> list[argparse.Namespace]:
    """Return options of the example's train.py for each config.

    Raises: ValueError: an option that does nothing here.
    """
    parser = build_parser()
    every = [parser.parse_args(["--config", c, *MODEL, *rest]) for c in configs]
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
        made.append(record_of(training, metrics, rate=arguments.rate, delay=arguments.delay))
    return made


if __name__ == "__main__":
    main()
