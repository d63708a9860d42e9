"""What a guard costs: CPU seconds of its steps beside those of a training step, in one training.

  python examples/criteo/guard_cost.py --batch-size 512 --parts 8
  python examples/criteo/guard_cost.py --batch-size 512 --probes 4 --probe-size 64

All ranks are played in one process, which trains on synthetic rows by default. Of each cycle of 4
steps the last one is looked at and probed; the others are plain. Costs are medians over --cycles of
the sum over ranks, in training steps, and the last column is what `every: 200` costs of a training.
The options of data and model are those of accuracy.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median

import study_command
from data.dataset import Batches
from emulation.client import EmulatedTrainer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from trainer import Trainer

from trec_qcomm.config import read_config
from trec_qcomm.lab.guard.rule import GuardRule

CYCLE, EVERY = 4, 200
FIRST = 2  # cycles that are not counted: compilation, caches


def main() -> None:
    """Measure and print one row of a table."""
    parser = _parser()
    arguments, rest = parser.parse_known_args()
    try:
        train = EmulatedTrainer.from_words(rest)
        config = dataclasses.replace(
            read_config(arguments.config), guard=GuardRule(every=CYCLE, limit_ne=1e9)
        )
    except ValueError as error:
        parser.error(str(error))
    course = _Course(arguments)
    train.run(config, 0, 0.0, course)
    print("| probe batches of a rank | samples | parts | looked at | probe | counter | of 200 |")
    print("|" + "---|" * 7)
    print(course.row(train.options.batch_size))


class _Course:
    """The program of each rank: it trains with a guard and notes seconds by kind of step."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        # [cycle][kind]: seconds of all ranks
        self._seconds: list[dict[str, float]] = []

    def __call__(self, trainer: Trainer, rows: Batches, num_steps: int) -> None:
        arguments, last = self._arguments, len(rows) - self._arguments.probes
        size = arguments.probe_size or rows.batch_size
        guard = trainer.qcomm.guard(
            lambda batch: loss_of(trainer, batch, arguments.parts),
            [_first(rows, number, size) for number in range(last, len(rows))],
            parts=arguments.parts,
        )
        cycles = arguments.cycles + FIRST
        for step in range(min(CYCLE * cycles, last)):
            cycle, is_probed = step // CYCLE, step % CYCLE == CYCLE - 1
            if cycle == len(self._seconds):
                self._seconds.append(defaultdict(float))
            seconds = self._seconds[cycle]
            kinds = ("looked at", "probe") if is_probed else ("plain", "counter")
            seconds[kinds[0]] += _seconds_of(lambda: trainer.train_step(rows))
            seconds[kinds[1]] += _seconds_of(guard.step)

    def row(self, batch_size: int) -> str:
        """Return the medians as a row of the table."""
        arguments = self._arguments
        plain, steps = CYCLE - 1, self._seconds[FIRST:]
        step = median(s["plain"] / plain for s in steps)
        look = median((s["looked at"] - s["plain"] / plain) / step for s in steps)
        probe = median(s["probe"] / step for s in steps)
        counter = median(s["counter"] / plain / step for s in steps)
        share = (look + probe + (EVERY - 1) * counter) / EVERY
        size = arguments.probe_size or batch_size
        return (
            f"| {arguments.probes} | {size} | {arguments.parts} | {look:.2f} | {probe:.2f} | "
            f"{counter:.4f} | {100 * share:.2f} % |"
        )


def loss_of(trainer: Trainer, batch, parts: int) -> Tensor:
    """Return the loss of a batch, or of each of its samples where there are several parts."""
    loss, (_, logits, labels) = trainer.dmp(batch)
    if parts == 1:
        return loss
    return binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")


def _first(rows: Batches, number: int, size: int):
    """Return the first samples of a batch."""
    begin = (number * rows.world_size + rows.rank) * rows.batch_size
    return rows.rows[begin : begin + size].to_batch()


def _seconds_of(run: Callable[[], object]) -> float:
    """Return the CPU seconds of this rank's thread."""
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


def _parser() -> argparse.ArgumentParser:
    parser = study_command.make_parser(__doc__)
    add = parser.add_argument
    add("--config", default="best", help="a YAML file of trec_qcomm, or a preset (default best)")
    add("--probes", type=int, default=1, help="probe batches of a rank (default 1)")
    add("--probe-size", type=int, help="samples of each (default: as in training)")
    add("--parts", type=int, default=1, help="parts that each is cut into (default 1)")
    add("--cycles", type=int, default=12, help="probes that are timed (default 12)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
