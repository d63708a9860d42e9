"""The trainings of accuracy.py: the callback that quality.study asks for a trained model.

Knows: options of train.py, the emulated training. Does not know: seeds of a study, its records.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from data.dataset import Dataset
from model import ModelConfig
from options import SETUP, STOCK, build_parser, check_options, setup_of
from train import load_dataset

from emulation.codecs import Codecs
from emulation.training import EmulatedTraining, train
from trec_qcomm import Config, Identity

DEFAULTS = {"ranks": 4, "batch_size": 128}
NO_OPTIONS = ("plan", "device")  # one process on a CPU plays ranks with a table-wise plan


@dataclass
class EmulatedModel:
    """A trained model: a study's TrainedModel.

    Args:
        trained_with: config of the training.
        training: the training, at its end.
        dataset: rows to score.
        batch_size: samples of a global batch.
    """

    trained_with: Config
    training: EmulatedTraining
    dataset: Dataset
    batch_size: int
    _exact: dict[str, float] | None = None  # metrics with exact rows, once they are known

    @property
    def metrics(self) -> dict[str, float]:
        losses = self.training.losses
        progressive = {"progressive_logloss": sum(losses) / len(losses)}
        return self.evaluate(self.trained_with) | progressive

    def evaluate(self, config: Config) -> dict[str, float]:
        codecs = codecs_of(config, self.training.config.embedding_dim)
        if config == self.trained_with:
            codecs = self.training.codecs
        is_exact = all(isinstance(codec, Identity) for codec in codecs.exchange.forward)
        if is_exact and self._exact is not None:
            return self._exact
        metrics = self.training.predict(self.dataset.test, self.batch_size, codecs)
        if is_exact:
            self._exact = metrics
        return metrics


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
        options = parser.parse_args(["--config", STOCK, *words])
        for name, value in vars(options).items():
            is_known = name in (*SETUP, "ranks", "config") and name not in NO_OPTIONS
            if not is_known and value != parser.get_default(name):
                raise ValueError(f"{name}: an option that accuracy.py does not have")
        if options.hash_buckets is None and options.min_count is None:
            options.min_count = 1
        check_options(options)
        return cls(options)

    @property
    def setup(self) -> dict[str, Any]:
        """All that must be equal for two trainings to be compared."""
        return {k: v for k, v in setup_of(self.options).items() if k not in NO_OPTIONS}

    def check(self, configs: Mapping[str, Config]) -> None:
        """Raise ValueError where the tables do not fit a config."""
        for config in configs.values():
            codecs_of(config, self.options.embedding_dim)

    def __call__(self, config: Config, seed: int, perturbation: float) -> EmulatedModel:
        """Return the model that a config gives from a seed; in one thread, as the table has it."""
        torch.set_num_threads(1)
        options, dataset = self.options, _load_dataset(self.options, seed)
        names = {f.name for f in dataclasses.fields(ModelConfig)} - {"seed"}
        model = ModelConfig(**{k: v for k, v in vars(options).items() if k in names}, seed=seed)
        model = dataclasses.replace(model, init_scale=model.init_scale * (1 + perturbation))
        codecs = codecs_of(config, options.embedding_dim)
        training = EmulatedTraining(model, dataset.num_embeddings, options.ranks, codecs)
        size = options.batch_size * options.ranks
        train(training, dataset, size, epochs=options.epochs, max_steps=options.steps)
        return EmulatedModel(config, training, dataset, size)


def codecs_of(config: Config, embedding_dim: int) -> Codecs:
    """Return new codecs of a config. Raises ValueError: the tables do not fit it."""
    return Codecs.from_config(config, embedding_dim)


_loaded: dict[str, Dataset] = {}  # the data set that this process loaded last


def _load_dataset(options: argparse.Namespace, seed: int) -> Dataset:
    """Load real rows once a process, synthetic ones once a seed, equal to train.py --seed's."""
    key = f"synthetic rows of seed {seed}" if options.data is None else str(options.data)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = load_dataset(argparse.Namespace(**vars(options) | {"seed": seed}))
    return _loaded[key]
