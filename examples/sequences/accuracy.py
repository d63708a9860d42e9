"""Whether a codec costs accuracy for sequences: paired trainings on played ranks, and a verdict.

  python -m examples.sequences.accuracy --configs int8 best --seeds 20
  python -m examples.sequences.accuracy --configs my.yaml --data ml-1m/ratings.dat --epochs 20

Each config trains the model of train.py from each of the seeds 0, 1, ... in one process and one
thread that plays the ranks, as trec_qcomm.quality.study has it. A run is one record in
--out/runs.jsonl; after Ctrl-C, or for more configs, give the command again. All other options are
those of train.py. Without --data every seed has synthetic users of its own.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from examples.criteo.studies.gaps import EVERY
from examples.sequences.options import SETUP, build_parser, check_options, load_sequences, setup_of
from examples.sequences.trainer import Trainer, silence_start
from trec_qcomm import Config, QComm, played_ranks, quality

# In percent; positive is worse. NDCG and hit rate are shown: their noise is too wide for a limit.
LOSS = quality.Limits(mean=0.05, upper=0.1, seeds=20)
LIMITS = {"loss": LOSS, "progressive_loss": LOSS, "ndcg_10": None, "hit_rate_10": None}


@dataclass(frozen=True)
class EmulatedTrainer:
    """Callback of a study: train the model of these options. Args: options: options of train.py."""

    options: argparse.Namespace

    @classmethod
    def from_words(cls, words: list[str]) -> EmulatedTrainer:
        """Return the trainer of options of train.py.

        Raises: ValueError: an option that does nothing in a study.
        """
        parser = build_parser()
        options = parser.parse_args(["--config", "stock", *words])
        for name, value in vars(options).items():
            if name not in (*SETUP, "ranks", "config") and value != parser.get_default(name):
                raise ValueError(f"{name}: an option that accuracy.py does not have")
        check_options(options)
        return cls(options)

    def __call__(self, config: Config, seed: int, perturbation: float) -> dict[str, float]:
        """Return metrics by name; `loss_at_N` is the mean of the EVERY steps up to step N."""
        torch.set_num_threads(1)
        silence_start()
        scale = self.options.init_scale * (1 + perturbation)
        options = argparse.Namespace(**vars(self.options) | {"seed": seed, "init_scale": scale})
        sequences = load_sequences(options)

        def train() -> dict[str, float]:
            trainer = Trainer.build(options, sequences, QComm(config))
            trainer.train()
            losses = trainer.mean_losses()
            ends = range(EVERY, len(losses) + 1, EVERY)
            on_the_way = {f"loss_at_{end}": sum(losses[end - EVERY : end]) / EVERY for end in ends}
            return trainer.score() | on_the_way | {"progressive_loss": sum(losses) / len(losses)}

        metrics: dict[str, float] = played_ranks(options.ranks).run(train)[0]
        return metrics


def main() -> int:
    """Run what is missing and show all."""
    parser = _parser()
    arguments, rest = parser.parse_known_args()
    try:
        train = EmulatedTrainer.from_words(rest)
        result = quality.study(
            train,
            quality.configs_by_name(arguments.configs),
            arguments.seeds,
            limits=LIMITS,
            path=arguments.out / "runs.jsonl",
            setup=setup_of(train.options),
            num_ranks=train.options.ranks,
            jobs=arguments.jobs,
            name="accuracy of sequences",
        )
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    (arguments.out / "table.md").write_text(result.table() + "\n")
    print(result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.sequences.accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--configs", nargs="+", required=True, help="YAML files, or names of configs that ship")
    add("--seeds", type=int, default=20, help="how many, from 0 (default 20)")
    add("--jobs", type=int, default=1, help="processes of one thread each (default 1)")
    add("--out", type=Path, default=Path("runs/sequences"), help="default runs/sequences")
    return parser


if __name__ == "__main__":
    sys.exit(main())
