"""A training that is a formula: tables with planted sensitivities, and noise of each seed.

It writes the debug records that a config asks for, as a QComm would.
"""

import math
import random
from dataclasses import dataclass
from pathlib import Path

from trec_qcomm import Config, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab import records
from trec_qcomm.lab.records import DebugRecord

DIM = 16
ROWS = {"a": 400, "b": 300, "c": 200, "d": 20}  # of a step
FORWARD = {"a": 0.02, "b": 5.0, "c": 0.02, "d": 0.2}  # percent a unit of relative noise
BACKWARD = {"a": 0.01, "b": 0.3, "c": 0.01, "d": 0.05}
SPREAD = 1e-4  # of a training, a share of its loss
CALLS: list[tuple[Config, int, float]] = []


def bits(codec: Codec) -> float:
    """Return the bits a value."""
    if isinstance(codec, Identity):
        return 32.0
    if isinstance(codec, ErrorBounded):
        return {0.01: 6.0, 0.05: 3.5, 0.2: 2.0}[codec.bound]
    if isinstance(codec, Float6):
        return 6.0
    assert isinstance(codec, Rowwise)
    return codec.bits + 2.0


def noise(codec: Codec) -> float:
    """Return the relative noise."""
    if isinstance(codec, Identity):
        return 0.0
    return 4 ** -(bits(codec) - 1)


def loss_of(config: Config, seed: int, *, trained: bool) -> float:
    """Return the loss: planted effects, and noise of the seed where codecs were trained with."""
    percent = 0.0
    for table in ROWS:
        rule = config.rule_for(table)
        percent += FORWARD[table] * noise(rule.forward)
        percent += BACKWARD[table] * noise(rule.backward) * trained
    coded = percent > 0
    chance = random.Random(f"{seed} {percent:.9f}").gauss(0, SPREAD) * coded
    return (0.5 + 0.01 * seed % 7) * (1 + percent / 100 + chance * trained)


@dataclass
class Model:
    """A trained model."""

    config: Config
    seed: int

    @property
    def metrics(self) -> dict[str, float]:
        """The loss with the codecs it was trained with."""
        return {"loss": loss_of(self.config, self.seed, trained=True)}

    def evaluate(self, config: Config) -> dict[str, float]:
        """Return the loss with other codecs."""
        return {"loss": loss_of(config, self.seed, trained=False)}


def train(config: Config, seed: int, perturbation: float) -> Model:
    """Return a model; write the debug records that the config asks for."""
    CALLS.append((config, seed, perturbation))
    debug = config.debug
    if debug is not None and debug.folder is not None:
        lines = []
        for step in (0, debug.every):
            for table in ROWS:
                rule = config.rule_for(table)
                for direction, used in (("forward", rule.forward), ("backward", rule.backward)):
                    for codec in (used, *debug.shadow):
                        shadow = codec is not used
                        lines.append(_record(step, table, direction, codec, shadow))
        records.append(Path(debug.folder) / "debug-rank0.jsonl", *lines)
    return Model(config, seed)


def _record(step: int, table: str, direction: str, codec: Codec, is_shadow: bool) -> DebugRecord:
    rows = ROWS[table]
    return DebugRecord(
        configuration="planted", rank=0, step=step, name=table, direction=direction,
        codec=repr(codec), is_shadow=is_shadow, num_rows=rows,
        num_values=rows * DIM, rms=0.1, bits=bits(codec) * (1 if step else 2),
        snr_db=-10 * math.log10(noise(codec)) if noise(codec) else None,
    )  # fmt: skip
