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
from trec_qcomm.ext.dual_level.schedule import Exponential, Schedule

LIVES = (1, 50, 200, 1000)  # steps that a threshold is used for; 10 is `threshold_0.01`
EQUAL = {50: 0.031, 200: 0.09, 1000: 0.1}  # by life: density of equal bytes, anew every 10 steps
SPARSE = {50: 1e-4, 200: 1e-6, 1000: 1e-6}  # by life: density so small that less changes nothing
NUM_STEPS = 229  # of a training
START = 25.0  # times 1 % of the gradients: a quarter, as in Deep Gradient Compression
FALLS = (57, 115)  # steps after which the density has fallen to 1 %: 1/4 and 1/2 of a training
DENSITIES_OF_ROWS = (0.5, 0.1)


def dense_rule(
    every: int, density: float = 0.01, scope: Scope = "layer", schedule: Schedule | None = None
) -> GradientRule:
    """Return the rule of the dense part: data parallel thresholding."""
    refresh = ThresholdRefresh(every=every, density=density, sample="all", schedule=schedule)
    return GradientRule(
        codec=Threshold(1.0, values="int8"), algorithm="two_shot", block=1, error_feedback=True,
        refresh=refresh, scope=scope,
    )  # fmt: skip


def top_k_rule(density: float = 0.1) -> TableRule:
    """Return the rule of all tables: model parallel thresholding."""
    return TableRule(tables=("*",), forward=TopK(density), backward=ForwardMask())


def row_threshold_rule(density: float) -> TableRule:
    """Return model parallel thresholding by a threshold: rows keep more and fewer columns each."""
    return TableRule(
        tables=("*",), forward=TopK(threshold=1.0), backward=ForwardMask(),
        refresh=ThresholdRefresh(every=10, density=density, sample="all"),
    )  # fmt: skip


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
    """Return thresholds of 1 % of the gradients that are used for more and fewer steps.

    `equal_50` is anew every 10 steps, and lets through as many gradients as `life_50` does.
    """
    rules = {f"life_{n}": dense_rule(n) for n in LIVES}
    rules |= {f"equal_{n}": dense_rule(10, density) for n, density in EQUAL.items()}
    made = {name: Config(embedding=EXACT, dense=rule) for name, rule in rules.items()}
    return made | one_percent()


def warm_up() -> Mapping[str, Config]:
    """Return 1 % of the gradients after a density that falls to it, and controls.

    `even_57` has in every step the density that `warm_up_57` has in the mean.
    """
    rules = {
        f"warm_up_{end}": dense_rule(10, schedule=Exponential(start=START, end_step=end))
        for end in FALLS
    }
    rules[f"even_{FALLS[0]}"] = dense_rule(10, _mean_density(rules[f"warm_up_{FALLS[0]}"]))
    made = {name: Config(embedding=EXACT, dense=rule) for name, rule in rules.items()}
    return made | one_percent()


def scopes() -> Mapping[str, Config]:
    """Return 1 % of the gradients of all layers together, and 1 % of each layer's."""
    everywhere = Config(embedding=EXACT, dense=dense_rule(10, scope="global"))
    return {"scope_global": everywhere} | one_percent()


def trained() -> Mapping[str, Config]:
    """Return the thresholds of gradients by life, by a density that falls, and by scope.

    `sparse_50` is used for 50 steps as `life_50` is, with a density of next to nothing.
    """
    sparse = {
        f"sparse_{n}": Config(embedding=EXACT, dense=dense_rule(n, density))
        for n, density in SPARSE.items()
    }
    return {**lives(), **warm_up(), **scopes(), **sparse}


def row_thresholds() -> Mapping[str, Config]:
    """Return thresholds of rows, and as many columns of every row."""
    made = {
        f"row_threshold_{density:g}": Config(embedding=(row_threshold_rule(density),))
        for density in DENSITIES_OF_ROWS
    }
    return made | {n: c for n, c in model_parallel().items() if n in ("topk_0.5", "dct")}


def _mean_density(rule: GradientRule) -> float:
    """Return the mean over the steps of a training, each of which has its last update's density."""
    refresh = rule.refresh
    assert refresh is not None
    of_steps = [refresh.density_at(t - t % refresh.every) for t in range(NUM_STEPS)]
    return round(sum(of_steps) / NUM_STEPS, 4)


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
    made |= {
        f"by threshold {density:g}": Config(embedding=(row_threshold_rule(density),))
        for density in (0.1, 0.05, 0.02)
    }
    return made | {"hybrid 0.01 and 0.1": hybrid()["hybrid"]}
