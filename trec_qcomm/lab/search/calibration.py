"""Calibration: trainings in which all tables have one coarse codec, compared with float32.

They show how noise, which the probes measure, becomes loss. A few trainings cannot show the effect
of one table's codec, but they show the effect of all tables' codecs at once. One more training for
each direction leaves out the dearest tables (losses.py).

Knows: studies. Does not know: budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import sqrt
from pathlib import Path
from statistics import mean, median, variance
from typing import Any

from trec_qcomm.config import Config, UniqueBagsChoice
from trec_qcomm.config.tables import DIRECTIONS, Direction
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab import study as quality
from trec_qcomm.lab.search.candidates import Candidates, label
from trec_qcomm.lab.search.choices import Pair, config_of_all, config_of_some
from trec_qcomm.lab.search.losses import NEGLIGIBLE, Change, Rest, Shares, cheaper_half
from trec_qcomm.lab.search.noise import Measured, Noise
from trec_qcomm.lab.study import StudyResult
from trec_qcomm.lab.study.gates import BASELINE, NULL
from trec_qcomm.lab.study.paired import percent

MOST_NOISE = 0.5  # relative: beyond, a codec is so coarse that it says little of finer ones
SURE = 2.0  # standard errors
Cost = Callable[[Noise, Codec], float]
Case = tuple[Direction, Codec]
ChangesBySeed = Mapping[str, Mapping[str, Mapping[int, float]]]  # by configuration and metric


def to_calibrate(measured: Measured, candidates: Candidates, cost: Cost) -> list[Case]:
    """Return the codecs to calibrate with: for each name the codec with most noise.

    For gradients, and for rows if no model was scored, one more has about a third of the noise,
    because loss grows faster than noise. A name is left out if on each table another codec costs
    less and has less noise, or if all its noise is negligible.
    """
    chosen: list[Case] = []
    for direction in DIRECTIONS:
        codecs = candidates[direction]
        noise = {codec: _mean_noise(measured, direction, codec) for codec in codecs}
        for name in dict.fromkeys(c.name for c in _useful(measured, direction, codecs, cost)):
            levels = {codec: x for codec, x in noise.items() if codec.name == name}
            if max(levels.values()) <= NEGLIGIBLE:
                continue
            coarse = max([x for x in levels.values() if x <= MOST_NOISE] or [min(levels.values())])
            wanted = [coarse]
            if direction == "backward" or not measured.effects:
                finer = [x for x in levels.values() if 0.1 * coarse <= x <= 0.4 * coarse]
                wanted += sorted(finer)[-1:]
            for level in wanted:  # of encoders with equal values the first, which is fastest
                chosen.append((direction, next(c for c, x in levels.items() if x == level)))
    return chosen


@dataclass
class Calibration:
    """Trainings with coarse codecs, and the changes that they show. `run` trains what is missing.

    Args:
        measured: results of the probes.
        metrics: metrics. The metric with least spread counts: all are taken to change by as many
            percent.
        seeds: seeds of the trainings.
        path: file of the records.
        unique_bags: whether equal bags are sent once.
        options: arguments of quality.study.
    Derived:
        spread: standard deviation of one seed's change by metric, for a plan that costs little;
            from `run`.
    """

    measured: Measured
    metrics: Sequence[str]
    seeds: Sequence[int]
    path: Path
    unique_bags: UniqueBagsChoice
    options: Mapping[str, Any]
    spread: dict[str, float] = field(init=False)
    _configs: dict[str, Config] = field(default_factory=dict)  # of all trainings so far

    def run(self, cases: Mapping[Case, Sequence[str]]) -> dict[Case, Change]:
        """Return the changes by codecs on some tables, while all else is exact.

        Args: cases: names of the tables by direction and codec.
        """
        names = {case: self._add(*case, some) for case, some in cases.items()}
        result = quality.study(
            configs=self._configs, seeds=self.seeds, path=self.path, name="calibration",
            limits=dict.fromkeys(self.metrics, quality.TRAINING),
            baseline=config_of_all(Pair(), self.unique_bags), **self.options,
        )  # fmt: skip
        changes = changes_of(result, self.metrics)
        self.spread = spread = spread_of_fine(changes, self.metrics)
        metric = min(spread, key=lambda metric: spread[metric])
        seen = {n: [changes[n][metric][seed] for seed in self.seeds] for n in self._configs}
        typical = median(variance(values) for values in seen.values())
        errors = {n: sqrt((variance(v) + typical) / 2 / len(v)) for n, v in seen.items()}
        return {case: Change(mean(seen[name]), errors[name]) for case, name in names.items()}

    def rests(self, changes: Mapping[Case, Change], shares: Shares) -> dict[Direction, Rest]:
        """Return the cost of the cheaper half of the tables, by direction.

        It is trained with the codec whose change is surest, unless that change may be chance or
        there is no such half.
        """
        surest: dict[Direction, Codec] = {}
        for direction, codec in sorted(changes, key=lambda case: _certainty(changes[case])):
            if _certainty(changes[direction, codec]) > SURE:
                surest[direction] = codec
        cases = {
            (direction, codec): names
            for direction, codec in surest.items()
            if (names := cheaper_half(shares, self.measured, direction, codec))
        }
        rest = self.run({case: sorted(names) for case, names in cases.items()}) if cases else {}
        return {
            case[0]: Rest(case[1], names, all=changes[case], rest=rest[case])
            for case, names in cases.items()
        }

    def _add(self, direction: Direction, codec: Codec, names: Sequence[str]) -> str:
        """Add a training and return its name, which no other names of tables have."""
        name, tables = f"{direction}_{label(codec)}", self.measured.tables
        if set(names) < set(tables):
            name += f"_some_{sha256(repr(sorted(names)).encode()).hexdigest()[:6]}"
        pair = Pair(**{direction: codec})
        self._configs[name] = config_of_some(pair, names, tables, self.unique_bags)
        return name


def changes_of(
    result: StudyResult, metrics: Sequence[str]
) -> dict[str, dict[str, dict[int, float]]]:
    """Return changes in percent against float32, by configuration, metric and seed.

    The null run is among the configurations.
    """
    values: dict[str, dict[int, Mapping[str, float]]] = {}
    for record in result.records:
        if record.training is not None:
            values.setdefault(record.configuration, {})[record.seed] = record.training.metrics
    exact = values[BASELINE]
    return {
        name: {m: {s: percent(by_seed[s][m], exact[s][m]) for s in by_seed} for m in metrics}
        for name, by_seed in values.items()
        # A file may hold others, of an earlier call.
        if name in result.study.configurations or name == NULL
    }


def spread_of_fine(changes: ChangesBySeed, metrics: Sequence[str]) -> dict[str, float]:
    """Return the standard deviation of one seed's change, by metric.

    It is the larger of two: that of the null run, and that of the half of the configurations that
    change the metric least. Coarser configurations scatter more than any plan that is worth a
    verification.
    """
    spread = {}
    for metric in metrics:
        by_name = {name: list(by[metric].values()) for name, by in changes.items()}
        null = by_name.pop(NULL)
        gentle = sorted(by_name.values(), key=lambda values: abs(mean(values)))
        fine = [variance(values) for values in gentle[: len(gentle) // 2]]
        spread[metric] = sqrt(max(variance(null), mean(fine or [0.0])))
    return spread


def _certainty(change: Change) -> float:
    return change.mean / max(change.error, 1e-9)


def _useful(
    measured: Measured, direction: Direction, codecs: Sequence[Codec], cost: Cost
) -> list[Codec]:
    """Return the codecs that on some table no other one beats in both cost and noise."""
    useful: set[Codec] = set()
    for table in measured.tables:
        there = {codec: measured.noise.get((table, direction, codec)) for codec in codecs}
        points = {c: (cost(noise, c), noise.relative) for c, noise in there.items() if noise}
        useful |= {
            codec for codec, (x, y) in points.items()
            if not any(p != (x, y) and p[0] <= x and p[1] <= y for p in points.values())
        }  # fmt: skip
    return [codec for codec in codecs if codec in useful]


def _mean_noise(measured: Measured, direction: Direction, codec: Codec) -> float:
    there = (measured.noise.get((table, direction, codec)) for table in measured.tables)
    return mean(noise.relative for noise in there if noise is not None)
