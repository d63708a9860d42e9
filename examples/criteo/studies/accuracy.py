"""Whether a codec costs accuracy: many paired trainings by emulation, and their statistics.

  python examples/criteo/studies/accuracy.py --configs int8 best --data train.txt
  python examples/criteo/studies/accuracy.py --configs my.yaml --seeds 10 --modes eval-only --jobs 2
  python examples/criteo/studies/accuracy.py --configs my.yaml --plan two_level --ranks-per-node 2

Each config is trained from each of the seeds 0, 1, ... in one process and one thread that plays the
ranks, as trec_qcomm.quality.study has it; emulation.py is its callback. The rows and their order
are those of train.py, and so are the plans. Modes: `training` trains with the codec and scores with
it on and off; `eval-only` switches it on for the fp32-trained model of the same seed.

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

sys.path.insert(0, str(Path(__file__).parents[1]))


from studies.command import parser_of, run
from studies.emulation import EmulatedTrainer
from trec_qcomm import quality

LIMITS = {"logloss": quality.TRAINING, "progressive_logloss": quality.TRAINING, "auc": None}
EVALUATION = {"ne": quality.EVALUATION}
MODES = ("training", "eval-only")


def main() -> int:
    """Run the study of the command line, and return the exit status."""
    parser = parser_of(__doc__, seeds=50, out="runs/accuracy")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="default: both")
    parser.add_argument("--stop-early", action="store_true", help="end where a verdict is sure")
    return run(parser, "runs.jsonl", study_arguments, show)


def show(arguments: argparse.Namespace, study: dict[str, Any], path: Path) -> None:
    """Run what is missing, write --out/table.md and print the verdicts."""
    result = quality.study(**study, path=path, jobs=arguments.jobs)
    (arguments.out / "table.md").write_text(result.table() + "\n")
    print(result)


def study_arguments(arguments: argparse.Namespace, rest: Sequence[str]) -> dict[str, Any]:
    """Return what quality.study takes. Raises ValueError naming the option that is wrong."""
    train = EmulatedTrainer.from_words(rest)
    configs = quality.configs_by_name(arguments.configs)
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


if __name__ == "__main__":
    sys.exit(main())
