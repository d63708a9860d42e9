"""Whether the sync of replicas costs accuracy: paired trainings of TorchRec's 2D parallelism.

  python examples/criteo/replicas.py --data train.txt --seeds 20 --jobs 2
  python examples/criteo/replicas.py --syncs '{"codec": "float6", "every": 4}'

Each `sync` section is trained from each of the seeds 0, 1, ... in one process that plays 4 ranks as
2 replicas of 2 ranks, and is compared with stock's all-reduce of whole tables after each step
(`fp32`). Only the sync is coded. A run is one record in --out/runs.jsonl; after Ctrl-C, or for more
sections, give the command again. The options of data and model are those of train.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import study_command
from replicated.client import ReplicatedTrainer

from trec_qcomm import Config, quality
from trec_qcomm.config import config_from_dict

LIMITS = {"logloss": quality.TRAINING, "progressive_logloss": quality.TRAINING, "ne": None}
INT8 = '{"codec": {"codec": "rowwise", "bits": 8, "rounding": "stochastic"}}'


def main() -> int:
    """Run what is missing and show all; the exit status is 1 after an error, 130 after Ctrl-C."""
    return study_command.run(_parser(), "runs.jsonl", _complete, _show)


def _complete(
    arguments: argparse.Namespace, rest: Sequence[str], path: Path
) -> quality.StudyResult:
    train = ReplicatedTrainer.from_words(rest)
    configs = configs_of(arguments)
    train.check(configs)
    return quality.study(
        train=train, configs=configs, seeds=arguments.seeds, limits=LIMITS, setup=train.setup,
        num_ranks=train.options.ranks, stop_early=arguments.stop_early, jobs=arguments.jobs,
        path=path, name="replicas",
    )  # fmt: skip


def configs_of(arguments: argparse.Namespace) -> dict[str, Config]:
    """Return a config for each of --syncs by name. Raises ValueError naming the one that is bad."""
    return {
        f"sync{number}": config_from_dict({"sync": json.loads(text)}, source=text)
        for number, text in enumerate(arguments.syncs)
    }


def _show(result: quality.StudyResult, arguments: argparse.Namespace) -> None:
    for name, config in configs_of(arguments).items():
        print(f"{name}: {config.sync}")
    study_command.write_table(result.table(), arguments.out)
    print(result)


def _parser() -> argparse.ArgumentParser:
    parser = study_command.make_parser(__doc__)
    study_command.add_seeds(parser, seeds=20, out="runs/replicas")
    study_command.add_jobs(parser)
    syncs = "`sync` sections as JSON (default: 8 bits)"
    parser.add_argument("--syncs", nargs="+", default=[INT8], help=syncs)
    return parser


if __name__ == "__main__":
    sys.exit(main())
