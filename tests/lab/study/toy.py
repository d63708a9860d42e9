"""Trainings for studies of quality that take no time: functions that other processes can import."""

import random
from dataclasses import dataclass

from trec_qcomm import Config

TWO_BITS = {"codec": "rowwise", "bits": 2}
BAD = {"embedding": [{"tables": ["*"], "forward": TWO_BITS, "backward": TWO_BITS}]}
CALLS: list[tuple[int, int, float]] = []  # bits, seed and perturbation of each training here


def bits_of(config: Config) -> int:
    """Return the forward codec's bits; 32 where it is exact."""
    return getattr(config.embedding[0].forward, "bits", 32) if config.embedding else 32


def train(config: Config, seed: int, perturbation: float) -> dict[str, float]:
    """Return a loss that 2 bits make 1 % worse, with noise of .003 %."""
    CALLS.append((bits_of(config), seed, perturbation))
    noise = random.Random(f"{seed} {bits_of(config)} {perturbation}").gauss(0, 3e-5)
    noise *= perturbation > 0 or bits_of(config) < 32
    loss = (0.5 + 0.1 * seed) * (1 + noise + 0.01 * (bits_of(config) == 2))
    return {"loss": loss, "auc": 0.7 - 0.1 * (bits_of(config) == 2)}


@dataclass
class Scored:
    """A model whose score depends on the codec that it is scored with."""

    config: Config
    seed: int

    @property
    def metrics(self) -> dict[str, float]:
        return train(self.config, self.seed, 0.0)

    def evaluate(self, config: Config) -> dict[str, float]:
        return train(config, self.seed, 0.0)


def train_model(config: Config, seed: int, perturbation: float) -> Scored:
    """Return a model to be scored with other configs."""
    return Scored(config, seed)


def fail_from_seed_3(config: Config, seed: int, perturbation: float) -> dict[str, float]:
    """Raise an error from seed 3 on."""
    if seed >= 3:
        raise RuntimeError("the model is gone")
    return train(config, seed, perturbation)
