"""The trainings of accuracy.py: train.py's own Trainer on played ranks, for quality.study.

Knows: options of train.py, played ranks. Does not know: seeds of a study, its records.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from data.dataset import FEATURES, Batches, Dataset
from data.endless import ENDLESS
from data.folder import is_preprocessed
from options import SETUP, build_parser, check_options, setup_of
from ranks import silence_start
from report import score
from stock import STOCK
from train import batches_of, load_dataset, shard
from trainer import Trainer

from trec_qcomm import Config, Identity, QComm, played_ranks

DEFAULTS = {"ranks": 4, "batch_size": 128}
NO_OPTIONS = ("device", "pipeline")  # one process on a CPU takes one step after another
USUAL_PLAN = "table_wise"  # that of records without a plan

Program = Callable[[Trainer, Batches, int], None]  # the trainer of this rank, its batches, steps


@dataclass
class EmulatedModel:
    """A trained model: a study's TrainedModel.

    Args:
        trained_with: config of the training.
        options: options of train.py.
        dataset: rows to train on and to score.
        ranks: the ranks that are played.
        trainers: the trainer of each rank, at the end of the training.
    """

    trained_with: Config
    options: argparse.Namespace
    dataset: Dataset
    ranks: Any
    trainers: list[Trainer]
    _exact: dict[str, float] | None = None  # metrics with exact rows, once they are known

    @property
    def losses(self) -> list[float]:
        """Training loss of each step, the mean over ranks."""
        by_rank = (trainer.losses for trainer in self.trainers)
        return [sum(losses) / len(losses) for losses in zip(*by_rank, strict=True)]

    @property
    def metrics(self) -> dict[str, float]:
        losses = self.losses
        progressive = {"progressive_logloss": sum(losses) / len(losses)}
        return self.evaluate(self.trained_with) | progressive

    def evaluate(self, config: Config) -> dict[str, float]:
        if all(isinstance(config.rule_for(table).forward, Identity) for table in tables()):
            if self._exact is None:
                self._exact = self._score(self.trainers, exact=True)
            return self._exact
        trainers = self.trainers
        if config != self.trained_with:
            configs = [config] * len(trainers)
            trainers = self.ranks.run(self._with_codecs_of, configs, trainers)
        return self._score(trainers, exact=False)

    def _score(self, trainers: list[Trainer], *, exact: bool) -> dict[str, float]:
        """Return the metrics of the test rows."""

        def predict(trainer: Trainer) -> Any:
            tests = batches_of(self.dataset, self.options, is_test=True)
            return trainer.predict(tests, exact=exact)

        predictions, labels = self.ranks.run(predict, trainers)[0]
        if labels.min() == labels.max():
            raise ValueError(f"the labels of all {len(labels)} test rows are {labels[0]:.0f}")
        return score(predictions, labels)

    def _with_codecs_of(self, config: Config, trained: Trainer) -> Trainer:
        """Return this rank's trainer with other codecs, at the step where the training ended.

        Classes and thresholds are found in the first batch of the test.
        """
        trainer = shard(self.options, self.dataset.num_embeddings, QComm(config))
        trainer.dmp.load_state_dict(trained.dmp.state_dict())
        first = batches_of(self.dataset, self.options, is_test=True)[0]
        trainer.dmp(first)  # with gradients, or nothing would be measured
        state = trainer.qcomm.state_dict()
        trainer.qcomm.load_state_dict(state | {"steps": trained.qcomm.state_dict()["steps"]})
        return trainer


def train_steps(trainer: Trainer, rows: Batches, num_steps: int) -> None:
    """Take so many steps on this rank."""
    for _ in range(num_steps):
        trainer.train_step(rows)


@dataclass(frozen=True)
class EmulatedTrainer:
    """Callback of a study: train the DLRM of these options. Args: options: options of train.py."""

    options: argparse.Namespace

    @classmethod
    def from_words(cls, words: Sequence[str]) -> EmulatedTrainer:
        """Return the trainer of options of train.py, with the defaults of a study.

        Raises: ValueError: an option that does nothing in a study.
        """
        parser = build_parser()
        parser.set_defaults(**DEFAULTS)
        rest = [word for word in words if word != "--"]  # which may set them apart
        options = parser.parse_args(["--config", STOCK, *rest])
        for name, value in vars(options).items():
            known = (*SETUP, "ranks", "ranks_per_node", "config")
            is_known = name in known and name not in NO_OPTIONS
            if not is_known and value != parser.get_default(name):
                raise ValueError(f"{name}: an option that accuracy.py does not have")
        data = options.data
        has_ids = data == ENDLESS or (data is not None and is_preprocessed(data))
        if options.hash_buckets is None and options.min_count is None and not has_ids:
            options.min_count = 1
        check_options(options)
        return cls(options)

    @property
    def setup(self) -> dict[str, Any]:
        """All that must be equal for two trainings to be compared; without the usual plan."""
        left_out = (*NO_OPTIONS, *(("plan",) if self.options.plan == USUAL_PLAN else ()))
        return {k: v for k, v in setup_of(self.options).items() if k not in left_out}

    def check(self, configs: Mapping[str, Config]) -> None:
        """Raise ValueError where the tables do not fit a config."""
        for config in configs.values():
            config.check_patterns(tables())

    def __call__(self, config: Config, seed: int, perturbation: float) -> EmulatedModel:
        """Return the model that a config gives from a seed; in one thread, as the table has it."""
        return self.run(config, seed, perturbation)

    def run(
        self, config: Config, seed: int, perturbation: float, program: Program = train_steps
    ) -> EmulatedModel:
        """Return the model that a training of one's own gives.

        Args: program: what each rank runs after sharding.
        """
        torch.set_num_threads(1)
        silence_start()
        scale = self.options.init_scale * (1 + perturbation)
        options = argparse.Namespace(**vars(self.options) | {"seed": seed, "init_scale": scale})
        dataset = loaded(options)
        ranks = played_ranks(options.ranks, ranks_per_node=options.ranks_per_node)

        def train() -> Trainer:
            trainer = self.shard(options, dataset.num_embeddings, config)
            rows = batches_of(dataset, options)
            program(trainer, rows, min(options.epochs * len(rows), options.steps or sys.maxsize))
            return trainer

        return EmulatedModel(config, options, dataset, ranks, ranks.run(train))

    def shard(
        self, options: argparse.Namespace, num_embeddings: list[int], config: Config
    ) -> Trainer:
        """Return the sharded model of this rank. Collective."""
        return shard(options, num_embeddings, QComm(config))


def tables() -> list[str]:
    """Return the names of the tables."""
    return [f"t_{feature}" for feature in FEATURES]


_loaded: dict[tuple[object, ...], Dataset] = {}  # the data set that this process loaded last


def loaded(options: argparse.Namespace) -> Dataset:
    """Return the rows, those of train.py --seed; real ones are read once a process."""
    names = ("data", "min_count", "hash_buckets", "num_embeddings", "multi_hot")
    key = tuple(getattr(options, name) for name in names)
    if options.data in (None, ENDLESS) or options.multi_hot is not None:
        key += (options.rows, options.seed)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = load_dataset(options)
    return _loaded[key]
