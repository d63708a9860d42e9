"""Configs of the trainings about quantized collectives, by the names that their records have.

Knows: configs. Does not know: records, claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulation.dense_configurations import EXACT, configurations

from trec_qcomm import Config, GradientRule, Identity, Rowwise, TableRule, load_preset
from trec_qcomm.ext.feedback.rule import RowFeedback

ALGORITHMS = ("ring", "recursive_doubling")
DIRECTIONS = ("forward", "backward", "both")
ALL_IDS = 10**9  # more than any table has rows, so that none is evicted
NUM_RANKS = (8, 16)  # besides 4, which all other trainings have
GRAINS = ("row", "32", "64", "128", "tensor")
RING_OF_BLOCKS = "ring_int4"  # blocks of 128, the library's default
# Rows and columns of train.py's dense layers; vectors have one row, those below 256 are float32.
LAYERS = {
    "dense_arch.model._mlp.0._linear": (512, 13), "dense_arch.model._mlp.1._linear": (256, 512),
    "dense_arch.model._mlp.2._linear": (16, 256), "over_arch.model.0._mlp.0._linear": (512, 367),
    "over_arch.model.0._mlp.1._linear": (512, 512), "over_arch.model.0._mlp.2._linear": (256, 512),
    "over_arch.model.1": (1, 256),
}  # fmt: skip


def collectives() -> Mapping[str, Config]:
    """Return the all-to-all in each direction, and the all-reduce, with 8, 4 and 2 bits."""
    wanted = ("a2a_", *(f"{algorithm}_" for algorithm in ALGORITHMS))
    chosen = {name: c for name, c in configurations().items() if name.startswith(wanted)}
    return chosen | {"int4": load_preset("int4")}  # a2a_both_int4 by another name, of more seeds


def together() -> Mapping[str, Config]:
    """Return all three collectives in 4 bits at once."""
    rows = TableRule(tables=("*",), forward=Rowwise(4), backward=Rowwise(4, "stochastic"))
    dense = GradientRule(codec=Rowwise(4), algorithm="recursive_doubling")
    return {"all_int4": Config(embedding=(rows,), dense=dense)}


def all_reduces() -> Mapping[str, Config]:
    """Return the all-reduce round a ring, as it was also trained by plain gradient descent."""
    wanted = [f"ring_int{bits}" for bits in (8, 4, 2)]
    wanted += [f"ring_int{bits}_feedback" for bits in (4, 2)]
    return {name: config for name, config in configurations().items() if name in wanted}


def by_grain() -> Mapping[str, Config]:
    """Return the all-reduce round a ring in 4 bits, by what shares a scale: `grain_row` ..."""
    return {name_of_grain(grain): _grain(grain) for grain in GRAINS}


def name_of_grain(grain: str) -> str:
    """Return the name of a grain's records; blocks of 128 are among those of `collectives`."""
    return RING_OF_BLOCKS if grain == "128" else f"grain_{grain}"


def by_algorithm() -> Mapping[str, Config]:
    """Return the all-reduce in 4 bits by ring and by recursive doubling."""
    wanted = [f"{algorithm}_int4" for algorithm in ALGORITHMS]
    return {name: config for name, config in configurations().items() if name in wanted}


def compensated_rows() -> Mapping[str, Config]:
    """Return the all-to-all of distinct bags with and without feedback by id."""
    configs: dict[str, Config] = {}
    for bits in (2, 3):
        for direction in ("backward", "forward"):
            for is_fed in (False, True):
                name = f"{direction}_{bits}" + "_compensated" * is_fed
                configs[name] = _rows(direction, Rowwise(bits), is_fed)  # type: ignore[arg-type]
    return configs


def _grain(grain: str) -> Config:
    if grain == "128":
        return configurations()[RING_OF_BLOCKS]
    if grain not in ("row", "tensor"):
        return Config(embedding=EXACT, dense=_ring(block=int(grain)))
    patterns: dict[int, list[str]] = {}
    for layer, (num_rows, num_columns) in LAYERS.items():
        for end, rows, columns in (("weight", num_rows, num_columns), ("bias", 1, num_rows)):
            block = columns if grain == "row" else rows * columns
            if rows * columns >= GradientRule.min_numel:
                patterns.setdefault(block, []).append(f"*{layer}.{end}")
    rules = [_ring(parameters=names, block=block) for block, names in sorted(patterns.items())]
    return Config(embedding=EXACT, dense=[*rules, _ring()])


def _ring(**options: Any) -> GradientRule:
    return GradientRule(codec=Rowwise(4), algorithm="ring", **options)


def _rows(direction: str, codec: Rowwise, is_fed: bool) -> Config:
    codecs: dict[str, Any] = {"forward": Identity(), "backward": Identity(), direction: codec}
    kept = RowFeedback(**{f"{direction}_rows": ALL_IDS}) if is_fed else None
    rule = TableRule(tables=("*",), unique_bags=True, error_feedback=kept, **codecs)
    return Config(embedding=(rule,))
