"""Whether the gap to float32 grows with the length of a training: long paired trainings.

  python examples/criteo/studies/length.py --configs int8 best --jobs 2
  python examples/criteo/studies/length.py --configs best --steps 20000 --seeds 4 --out runs/longer
  python examples/criteo/studies/length.py --configs int8 best --show      what the records say
  python examples/criteo/studies/length.py --configs best --data criteo --epochs 8 --out runs/passes

Each config trains on rows without end (data/endless.py), so every step's loss is one of fresh rows.
With --epochs over other rows, losses and AUC are those of the test rows after each pass.
Learning rates stay for half of the steps and then fall to zero in a line, as in practice.
gaps.py has the gap at a step, and its slope. Records, resuming and the null run are those of
trec_qcomm.quality.study, in --out/length.jsonl; --show also draws --out/length.png.
Other options are those of train.py; the defaults are 2 ranks x 256, and layers of 128 and 128-64,
with which a step takes less than half the time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from data.dataset import Batches
from data.endless import ENDLESS, TEST_ROWS
from report import score
from train import batches_of
from trainer import Trainer

from studies.command import parser_of, run
from studies.emulation import EmulatedTrainer, loaded
from studies.gaps import EVERY, LIMIT, WARM, gaps_of, picture, table
from trec_qcomm import Config, quality
from trec_qcomm.lab.report.style import render

DEFAULTS = "--data endless --ranks 2 --batch-size 256 --dense-arch 128 --over-arch 128-64"
STEADY = 0.5  # share of the steps before learning rates fall
AHEAD = 32  # batches of fresh rows on which AUC is taken, at every second point
LAST = "last_loss"  # mean of the last 2 EVERY steps, or of the test rows
LIMITS = {LAST: quality.Limits(mean=LIMIT, upper=0.05, seeds=8), "logloss": None, "auc": None}


@dataclass(frozen=True)
class LongTrainer(EmulatedTrainer):
    """Callback of a study: a long training, and its losses and AUC on the way."""

    @property
    def setup(self) -> dict[str, Any]:
        """All that must be equal for two trainings to be compared."""
        return super().setup | {"steady": STEADY}

    def __call__(self, config: Config, seed: int, perturbation: float) -> Any:
        """Return metrics by name; `loss_at_N` and `auc_at_N` are those at step N."""
        is_endless = self.options.data == ENDLESS
        scores: dict[int, dict[str, float]] = {}  # by step

        def program(trainer: Trainer, rows: Batches, num_steps: int) -> None:
            groups = trainer.optimizer.param_groups
            rates = [group["lr"] for group in groups]
            for step in range(1, num_steps + 1):
                left = (num_steps - step + 1) / num_steps / (1 - STEADY)
                for group, rate in zip(groups, rates, strict=True):
                    group["lr"] = rate * min(1.0, left)
                trainer.train_step(rows)
                if step % (2 * EVERY if is_endless else len(rows)) == 0:
                    ahead = _after(rows, step) if is_endless else self.tests()
                    scores[step] = score(*trainer.predict(ahead, exact=False))

        model = self.run(config, seed, perturbation, program)
        if is_endless:
            losses = np.array(model.losses)
            means = losses.reshape(-1, EVERY).mean(1)
            loss = {EVERY * (n + 1): float(mean) for n, mean in enumerate(means)}
            last = float(losses[-2 * EVERY :].mean())
        else:
            loss = {step: of_step["logloss"] for step, of_step in scores.items()}
            last = loss[max(loss)]
        on_the_way = {f"loss_at_{step}": value for step, value in loss.items()}
        on_the_way |= {f"auc_at_{step}": of_step["auc"] for step, of_step in scores.items()}
        return model.metrics | on_the_way | {LAST: last}

    def tests(self) -> Batches:
        """Return the batches of test rows of this rank."""
        return batches_of(loaded(self.options), self.options, is_test=True)


def _after(rows: Batches, step: int) -> Batches:
    """Return the batches of this rank that come after so many steps."""
    size = rows.batch_size * rows.world_size
    ahead = rows.rows[step * size : (step + AHEAD) * size]
    return Batches(ahead, rows.batch_size, rows.rank, rows.world_size, drop_last=False)


def main() -> int:
    """Run the study of the command line, and return the exit status."""
    parser = parser_of(__doc__, seeds=8, out="runs/length")
    add = parser.add_argument
    add("--steps", type=int, help="of each training (default 10000), on rows without end")
    add("--show", action="store_true", help="run nothing; show what the records say")
    return run(parser, "length.jsonl", study_arguments, show)


def show(arguments: argparse.Namespace, study: dict[str, Any], path: Path) -> None:
    """Run what is missing unless --show, print the table and draw --out/length.png."""
    if arguments.show:
        records = quality.plan(**study).read(path)
    else:
        result = quality.study(**study, path=path, jobs=arguments.jobs)
        records = list(result.records)
        print(result)
    if not gaps_of(records):
        raise ValueError(f"{path}: no pair of trainings yet")
    print(table(records))
    render(picture(records), arguments.out)


def study_arguments(arguments: argparse.Namespace, rest: Sequence[str]) -> dict[str, Any]:
    """Return what quality.study takes. Raises ValueError naming the option that is wrong."""
    train = LongTrainer.from_words((*DEFAULTS.split(), *rest))
    options = train.options
    if options.data == ENDLESS:
        options.steps = 10_000 if arguments.steps is None else arguments.steps
        if options.steps < 2 * WARM or options.steps % (2 * EVERY):
            raise ValueError(
                f"steps {options.steps}: expected a multiple of {2 * EVERY} from {2 * WARM} on"
            )
        options.rows = (options.steps + AHEAD) * options.ranks * options.batch_size + TEST_ROWS
    elif arguments.steps is not None or options.epochs < 3:
        raise ValueError(f"data {options.data}: expected --epochs of 3 or more, and no --steps")
    configs = quality.configs_by_name(arguments.configs)
    train.check(configs)
    return {
        "train": train,
        "configs": configs,
        "seeds": arguments.seeds,
        "limits": LIMITS,
        "setup": train.setup,
        "num_ranks": options.ranks,
        "name": "length",
    }


if __name__ == "__main__":
    sys.exit(main())
