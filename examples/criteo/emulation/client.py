"""The trainings of accuracy.py: the callback that a study asks for a trained model.

Knows: options of train.py, the emulated training. Does not know: seeds of a study, its records.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass

from data.dataset import Dataset
from model import ModelConfig
from study.engine import Configuration
from train import load_dataset

from emulation.codecs import Codecs
from emulation.training import EmulatedTraining, train
from trec_qcomm import Identity
from trec_qcomm.config import config_from_dict, parse_yaml

NULL_FACTOR = 1 + 1e-6  # of the initial embeddings of a null run


@dataclass
class EmulatedModel:
    """A trained model: a study's TrainedModel.

    Args:
        trained_with: configuration of the training.
        training: the training, at its end.
        dataset: rows to score.
        batch_size: samples of a global batch.
    """

    trained_with: Configuration
    training: EmulatedTraining
    dataset: Dataset
    batch_size: int
    _exact: dict[str, float] | None = None  # metrics with exact rows, once they are known

    @property
    def losses(self) -> list[float]:
        return self.training.losses

    def evaluate(self, configuration: Configuration) -> dict[str, float]:
        codecs = codecs_of(configuration, self.training.config.embedding_dim)
        if configuration.config == self.trained_with.config:
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
    """A study's callback: train the DLRM of these options. Args: options: options of train.py."""

    options: argparse.Namespace

    def __call__(self, configuration: Configuration, seed: int) -> EmulatedModel:
        """Return the model that a configuration gives from a seed."""
        options, dataset = self.options, _load_dataset(self.options, seed)
        names = {f.name for f in dataclasses.fields(ModelConfig)} - {"seed"}
        model = ModelConfig(**{k: v for k, v in vars(options).items() if k in names}, seed=seed)
        if configuration.is_null:
            model = dataclasses.replace(model, init_scale=model.init_scale * NULL_FACTOR)
        codecs = codecs_of(configuration, options.embedding_dim)
        training = EmulatedTraining(model, dataset.num_embeddings, options.ranks, codecs)
        size = options.batch_size * options.ranks
        train(training, dataset, size, epochs=options.epochs, max_steps=options.steps)
        return EmulatedModel(configuration, training, dataset, size)


def codecs_of(configuration: Configuration, embedding_dim: int) -> Codecs:
    """Return new codecs of a configuration. Raises ValueError: the tables do not fit its config."""
    name = configuration.name
    config = config_from_dict(parse_yaml(configuration.config, name=name), source=name)
    return Codecs.from_config(config, embedding_dim)


_loaded: dict[str, Dataset] = {}  # the data set that this process loaded last


def _load_dataset(options: argparse.Namespace, seed: int) -> Dataset:
    """Load real rows once a process, synthetic ones once a seed, equal to train.py --seed's."""
    key = f"synthetic rows of seed {seed}" if options.data is None else str(options.data)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = load_dataset(argparse.Namespace(**vars(options) | {"seed": seed}))
    return _loaded[key]
