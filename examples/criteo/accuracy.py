"""Whether a codec costs accuracy: many paired trainings by emulation, and their statistics.

  python examples/criteo/accuracy.py --configs configs/int8.yaml configs/best.yaml --data train.txt
  python examples/criteo/accuracy.py --configs my.yaml --seeds 10 --modes eval-only --jobs 2
  python examples/criteo/accuracy.py --configs my.yaml --plan two_level --ranks-per-node 2

Each config is trained from each of the seeds 0, 1, ... in one process and one thread that plays the
ranks, as trec_qcomm.quality.study has it; emulation/client.py is its callback. The rows and their
order are those of train.py, and so are the plans. Modes: `training` trains with the codec and
scores with it on and off; `eval-only` switches it on for the fp32-trained model of the same seed.

A run is one record in --out/runs.jsonl; after Ctrl-C, or for more configs, give the command again.
The options of data and model are those of train.py; the defaults are those of the documents' table:
4 ranks x 128, every category kept, 50 seeds. Without --data the rows are synthetic, others for
every seed, and the figures are not those of the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import study_command
from emulation.client import EmulatedTrainer

from trec_qcomm import quality

LIMITS = {"logloss": quality.TRAINING, "progressive_logloss": quality.TRAINING, "auc": None}
EVALUATION = {"ne": quality.EVALUATION}
MODES = ("training", "eval-only")


def main() -> int:
    """Run what is missing and show all; the exit status is 1 after an error, 130 after Ctrl-C."""
    return study_command.run(_parser(), "runs.jsonl", _complete, _show)


def _complete(
    arguments: argparse.Namespace, rest: Sequence[str], path: Path
) -> quality.StudyResult:
    return quality.study(**study_arguments(arguments, rest), path=path, jobs=arguments.jobs)


def study_arguments(arguments: argparse.Namespace, rest: Sequence[str]) -> dict[str, Any]:
    """Return what quality.study takes. Raises ValueError naming the option that is wrong."""
    train = EmulatedTrainer.from_words(rest)
    configs = quality.configs_by_name(map(Path, arguments.configs))
    train.check(configs)
    return {
        "train": train,
        "configs": configs,
        "seeds": arguments.seeds,
        "limits": LIMITS if "training" in arguments.modes else None,
        "evaluation": EVALUATION if "eval-only" in arguments.modes else None,
        "setup": train.setup,
        "num_ranks": train.options.ranks,
        "stop_early": arguments.stop_early,
        "name": "accuracy",
    }


def _show(result: quality.StudyResult, arguments: argparse.Namespace) -> None:
    study_command.write_table(result.table(), arguments.out)
    print(result)
    try:
        result.plot(arguments.out / "accuracy.png")
    except ValueError as error:
        print(f"no plot: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = study_command.make_parser(__doc__)
    study_command.add_seeds(parser, seeds=50, out="runs/accuracy")
    study_command.add_jobs(parser)
    add = parser.add_argument
    add("--configs", nargs="+", required=True, help="YAML files of trec_qcomm")
    add("--modes", nargs="+", choices=MODES, default=MODES, help="default: both")
    return parser


if __name__ == "__main__":
    sys.exit(main())
