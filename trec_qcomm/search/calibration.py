"""Calibration: trainings in which all tables have one coarse codec, beside float32.

They show how noise, as the probes measure it, becomes loss: one table's codec is too small an
effect for a few trainings, all tables' at once is not.

Knows: studies. Does not know: budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, median, variance
from typing import Any

from trec_qcomm import quality
from trec_qcomm.config import Config, UniqueBagsChoice
from trec_qcomm.control.trials.paired import percent
from trec_qcomm.core.codec import Codec
from trec_qcomm.quality import StudyResult
from trec_qcomm.report.gates import BASELINE
from trec_qcomm.search.candidates import DIRECTIONS, Candidates, Direction, label
from trec_qcomm.search.choices import Pair, config_of_all
from trec_qcomm.search.model import NEGLIGIBLE, Change
from trec_qcomm.search.noise import Measured, Noise

MOST_NOISE = 0.5  # relative: beyond, a codec is so coarse that it says little of finer ones
Calibrated = dict[tuple[Direction, Codec], str]  # and the configuration's name
Cost = Callable[[Noise, Codec], float]


def to_calibrate(measured: Measured, candidates: Candidates, cost: Cost) -> Calibrated:
    """Return the codecs to calibrate with: of each kind the one with most noise.

    Of kinds that no model was scored with, gradients among them, one more with about a third of
    the noise: loss grows faster than noise. A kind is left out if on each table another codec costs
    less and has less noise, or if all its noise is negligible.
    """
    chosen: Calibrated = {}
    for direction in DIRECTIONS:
        codecs = candidates[direction]
        noise = {codec: _mean_noise(measured, direction, codec) for codec in codecs}
        kinds = dict.fromkeys(c.name for c in _useful(measured, direction, codecs, cost))
        for kind in kinds:
            levels = {codec: x for codec, x in noise.items() if codec.name == kind}
            if max(levels.values()) <= NEGLIGIBLE:
                continue
            coarse = max([x for x in levels.values() if x <= MOST_NOISE] or [min(levels.values())])
            wanted = [coarse]
            if direction == "backward" or not measured.effects:
                finer = [x for x in levels.values() if 0.1 * coarse <= x <= 0.4 * coarse]
                wanted += sorted(finer)[-1:]
            for level in wanted:  # of encoders with equal values the first, which is fastest
                codec = next(codec for codec, x in levels.items() if x == level)
                chosen[direction, codec] = f"{direction}_{label(codec)}"
    return chosen


def calibrate(
    codecs: Calibrated,
    metrics: Sequence[str],
    seeds: Sequence[int],
    path: Path,
    *,
    unique_bags: UniqueBagsChoice,
    **options: Any,
) -> tuple[dict[tuple[Direction, Codec], Change], dict[str, float]]:
    """Run what is missing; return the change of each, and the spread of changes by metric.

    Changes are the mean over metrics, of which one with less spread counts more: all of them are
    taken to change by as many percent.

    Args: options: arguments of quality.study.
    """
    configs: dict[str, Config] = {
        name: config_of_all(Pair(**{direction: codec}), unique_bags)
        for (direction, codec), name in codecs.items()
    }
    result = quality.study(
        configs=configs, seeds=seeds, path=path, name="calibration",
        limits=dict.fromkeys(metrics, quality.TRAINING),
        baseline=config_of_all(Pair(), unique_bags), **options,
    )  # fmt: skip
    changes = changes_of(result, metrics)
    spread = spreads(changes, metrics)
    weights = {metric: 1 / max(spread[metric], 1e-9) ** 2 for metric in metrics}
    total = sum(weights.values())
    joint = {
        name: [sum(weights[m] * by_metric[m][s] for m in metrics) / total for s in seeds]
        for name, by_metric in changes.items()
    }
    typical = median(variance(values) for values in joint.values())
    errors = {n: sqrt((variance(v) + typical) / 2 / len(seeds)) for n, v in joint.items()}
    return {c: Change(mean(joint[n]), errors[n]) for c, n in codecs.items()}, spread


def changes_of(
    result: StudyResult, metrics: Sequence[str]
) -> dict[str, dict[str, dict[int, float]]]:
    """Return changes in percent against float32 by configuration, metric and seed."""
    values: dict[str, dict[int, Mapping[str, float]]] = {}
    for record in result.records:
        if record.training is not None:
            values.setdefault(record.configuration, {})[record.seed] = record.training.metrics
    exact = values[BASELINE]
    return {
        name: {m: {s: percent(by_seed[s][m], exact[s][m]) for s in by_seed} for m in metrics}
        for name, by_seed in values.items()
        if name in result.study.configurations  # a file may hold others, of an earlier call
    }


def spreads(
    changes: Mapping[str, Mapping[str, Mapping[int, float]]], metrics: Sequence[str]
) -> dict[str, float]:
    """Return the standard deviation of one seed's change by metric: the median of configurations.

    Some are so coarse that their changes scatter by far more than those of any plan.
    """
    return {
        m: sqrt(median(variance(list(by[m].values())) for by in changes.values())) for m in metrics
    }


def _useful(
    measured: Measured, direction: Direction, codecs: Sequence[Codec], cost: Cost
) -> list[Codec]:
    """Return the codecs that on some table no other one beats in both cost and noise."""
    useful: dict[Codec, None] = {}
    for table in measured.tables:
        points = []
        for codec in codecs:
            noise = measured.noise.get((table, direction, codec))
            if noise is not None:
                points.append((cost(noise, codec), noise.relative, codec))
        for price, noise_, codec in points:
            if not any(p <= price and n <= noise_ and (p, n) != (price, noise_)
                       for p, n, _ in points):  # fmt: skip
                useful.setdefault(codec)
    return [codec for codec in codecs if codec in useful]


def _mean_noise(measured: Measured, direction: Direction, codec: Codec) -> float:
    there = (measured.noise.get((table, direction, codec)) for table in measured.tables)
    return mean(noise.relative for noise in there if noise is not None)
