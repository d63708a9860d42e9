"""A training that is a formula: tables with planted sensitivities, and noise of each seed.

It writes the debug records that a config asks for, as a QComm would.
"""

import math
import random
from dataclasses import dataclass
from pathlib import Path

from trec_qcomm import Config, ErrorBounded, Float6, GradientRule, Identity, Rowwise
from trec_qcomm.config.gradients import parameter_patterns
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab import records
from trec_qcomm.lab.records import DebugRecord

DIM = 16
ROWS = {"a": 400, "b": 300, "c": 200, "d": 20}  # of a step
FORWARD = {"a": 0.02, "b": 5.0, "c": 0.02, "d": 0.2}  # percent a unit of relative noise
BACKWARD = {"a": 0.01, "b": 0.3, "c": 0.01, "d": 0.05}
VALUES = {"dense_arch.weight": 640, "over_arch.weight": 6400}  # of dense parameters
DENSE = {"dense_arch.weight": 0.4, "over_arch.weight": 0.04}
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


def dense_rule_for(config: Config, name: str) -> GradientRule | None:
    """Return the rule of a dense parameter."""
    if config.dense is None:
        return None
    return config.dense_rules[parameter_patterns(config.dense).number_of(name)]


def lost(rule: GradientRule | None) -> float:
    """Return the relative noise of a dense parameter."""
    if rule is None:
        return 0.0
    return noise(rule.codec) if rule.low_rank is None else 1 / rule.low_rank.rank


def loss_of(config: Config, seed: int, *, trained: bool) -> float:
    """Return the loss: planted effects, and noise of the seed where codecs were trained with."""
    percent = 0.0
    for table in ROWS:
        rule = config.rule_for(table)
        percent += FORWARD[table] * noise(rule.forward)
        percent += BACKWARD[table] * noise(rule.backward) * trained
    for name in VALUES:
        percent += DENSE[name] * lost(dense_rule_for(config, name)) * trained
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
            lines += _dense_records(config, step)
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


def _dense_records(config: Config, step: int) -> list[DebugRecord]:
    lines = []
    for name, num_values in VALUES.items():
        rule = dense_rule_for(config, name)
        if rule is None:
            continue
        sent = {name: num_values}
        if rule.low_rank is not None:  # of a matrix of 40 rows
            rank = rule.low_rank.rank
            sent = {
                f"{name} (left factor)": rank * 40,
                f"{name} (right factor)": rank * num_values // 40,
            }
        lines += [
            DebugRecord(
                configuration="planted", rank=0, step=step, name=part, direction="dense",
                codec=repr(rule.codec), site=site, num_values=size, rms=0.1,
                bits=bits(rule.codec),
                snr_db=-10 * math.log10(noise(rule.codec)) if noise(rule.codec) else None,
            )
            for part, size in sent.items() for site in ("contribution", "owner")
        ]  # fmt: skip
    return lines
