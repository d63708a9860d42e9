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
from pathlib import Path

from options import FAILED, INTERRUPTED
from replicated.client import ReplicatedTrainer

from trec_qcomm import quality
from trec_qcomm.config import config_from_dict

LIMITS = {"logloss": quality.TRAINING, "progressive_logloss": quality.TRAINING, "ne": None}
INT8 = '{"codec": {"codec": "rowwise", "bits": 8, "rounding": "stochastic"}}'


def main() -> int:
    """Run what is missing and show all; the exit status is 1 after an error, 130 after Ctrl-C."""
    parser = _parser()
    arguments, rest = parser.parse_known_args()
    path: Path = arguments.out / "runs.jsonl"
    try:
        train = ReplicatedTrainer.from_words(rest)
        configs = {
            f"sync{number}": config_from_dict({"sync": json.loads(text)}, source=text)
            for number, text in enumerate(arguments.syncs)
        }
        train.check(configs)
        result = quality.study(
            train=train, configs=configs, seeds=arguments.seeds, limits=LIMITS, setup=train.setup,
            num_ranks=train.options.ranks, stop_early=arguments.stop_early, jobs=arguments.jobs,
            path=path, name="replicas",
        )  # fmt: skip
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {path}", file=sys.stderr)
        return INTERRUPTED
    except quality.TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    for name, config in configs.items():
        print(f"{name}: {config.sync}")
    (arguments.out / "table.md").write_text(result.table() + "\n")
    print(result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--syncs", nargs="+", default=[INT8], help="`sync` sections as JSON (default: 8 bits)")
    add("--seeds", type=int, default=20, help="how many, from 0 (default 20)")
    add("--stop-early", action="store_true", help="end a section when its verdict is sure")
    add("--jobs", type=int, default=1, help="processes of one thread each (default 1)")
    add("--out", type=Path, default=Path("runs/replicas"), help="folder (default runs/replicas)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
