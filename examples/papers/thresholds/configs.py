"""Configs of the trainings and measurements of thresholds, by the names that their records have.

Knows: configs. Does not know: records, claims.
"""

from __future__ import annotations

from collections.abc import Mapping

from emulation.dense_configurations import EXACT, configurations

from trec_qcomm import Config, GradientRule, TableRule, Threshold, TopK, load_preset
from trec_qcomm.codecs import ForwardMask
from trec_qcomm.config.gradients import Scope
from trec_qcomm.control.threshold import ThresholdRefresh

LIVES = (1, 50, 200, 1000)  # steps that a threshold is used for; 10 is `threshold_0.01`


def dense_rule(every: int, density: float = 0.01, scope: Scope = "layer") -> GradientRule:
    """Return the rule of the dense part: data parallel thresholding."""
    return GradientRule(
        codec=Threshold(1.0, values="int8"), algorithm="two_shot", block=1, error_feedback=True,
        refresh=ThresholdRefresh(every=every, density=density, sample="all"), scope=scope,
    )  # fmt: skip


def top_k_rule(density: float = 0.1) -> TableRule:
    """Return the rule of all tables: model parallel thresholding."""
    return TableRule(tables=("*",), forward=TopK(density), backward=ForwardMask())


def data_parallel() -> Mapping[str, Config]:
    """Return the data parallel configs."""
    return {n: c for n, c in configurations().items() if n.startswith("threshold_")}


def one_percent() -> Mapping[str, Config]:
    """Return the one of them that was also trained by plain gradient descent."""
    return {name: config for name, config in data_parallel().items() if name == "threshold_0.01"}


def model_parallel() -> Mapping[str, Config]:
    """Return the model parallel configs, that of configs/dct.yaml among them."""
    chosen = {name: c for name, c in configurations().items() if name.startswith("topk_")}
    return chosen | {"dct": load_preset("dct")}


def lives() -> Mapping[str, Config]:
    """Return thresholds of 1 % of the gradients that are used for more and fewer steps."""
    made = {f"life_{n}": Config(embedding=EXACT, dense=dense_rule(n)) for n in LIVES}
    return made | one_percent()


def hybrid() -> Mapping[str, Config]:
    """Return both at once."""
    return {"hybrid": Config(embedding=(top_k_rule(),), dense=dense_rule(10))}


def counted() -> Mapping[str, Config]:
    """Return configs whose bytes are counted."""
    made = {
        f"data parallel {density:g}": Config(embedding=EXACT, dense=dense_rule(10, density))
        for density in (0.01, 0.001)
    }
    made |= {
        f"model parallel {density:g}": Config(embedding=(top_k_rule(density),))
        for density in (0.1, 0.05, 0.02)
    }
    return made | {"hybrid 0.01 and 0.1": hybrid()["hybrid"]}
