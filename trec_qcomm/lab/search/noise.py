"""Noise: bytes and errors of every codec on every table, from the numeric debugger's records.

Knows: records. Does not know: trainings, what is chosen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import cast

from trec_qcomm.config.tables import DIRECTIONS, Direction
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.records import DebugRecord, SearchRecord
from trec_qcomm.lab.search.candidates import EXACT, Item
from trec_qcomm.lab.study.paired import percent

ALL = "*"  # in the place of a table
Case = tuple[str, Direction, str]  # table, direction, codec


@dataclass(frozen=True)
class Noise:
    """Bytes and errors of a codec on the rows of a table, or on their gradients.

    Args:
        nbytes: bytes that a rank sends in a step, to itself included.
        rows: rows that a rank sends in a step; distinct bags, if these are sent once.
        dim: values of a row.
        relative: sum of squares of the errors over that of the values; 0 if all arrive exactly.
    """

    nbytes: float
    rows: float
    dim: int
    relative: float


@dataclass(frozen=True)
class Measured:
    """Results of the probes of all seeds.

    Args:
        noise: bytes and noise by table, direction and codec, without codecs that refused values.
        effects: changes of the float32 model's metric in percent, one a seed, by table (ALL for all
            tables) and forward codec; empty if `train` returns only metrics.
    """

    noise: Mapping[tuple[str, Direction, Codec], Noise]
    effects: Mapping[tuple[str, Codec], Sequence[float]]

    @property
    def tables(self) -> list[str]:
        """Names of the tables, in order of their float32 bytes, most first."""
        exact = {t: n.nbytes for (t, d, c), n in self.noise.items() if (d, c) == ("forward", EXACT)}
        return sorted(exact, key=lambda table: (-exact[table], table))

    @property
    def items(self) -> list[Item]:
        """Items for which codecs are chosen: tables in both directions."""
        return [(table, direction) for table in self.tables for direction in DIRECTIONS]

    def different(self, direction: Direction, codecs: Iterable[Codec]) -> list[Codec]:
        """Return the codecs without EXACT; of codecs that decode to equal values, the first."""
        first: dict[tuple[float, ...], Codec] = {}
        for codec in codecs:
            there = (self.noise.get((table, direction, codec)) for table in self.tables)
            values = tuple(-1.0 if noise is None else noise.relative for noise in there)
            if any(values):
                first.setdefault(values, codec)
        return list(first.values())


def figures_of(lines: Iterable[DebugRecord]) -> dict[Case, dict[str, float]]:
    """Return for each table, direction and codec the figures of a rank and step.

    Step 0 shows rows as they were drawn, so it counts only if no other step was measured. A codec
    that refused values in a step is left out.
    """
    kept = [line for line in lines if line.direction in DIRECTIONS]
    steps, ranks = {line.step for line in kept}, {line.rank for line in kept}
    cases: dict[Case, list[DebugRecord]] = defaultdict(list)
    for line in kept:
        cases[line.name, cast(Direction, line.direction), line.codec].append(line)
    counted = steps - {0} or steps
    shares = len(counted) * len(ranks)
    figures = {}
    for case, of_case in cases.items():
        chosen = [line for line in of_case if line.step in counted]
        if chosen and all(line.num_values is not None for line in chosen):
            figures[case] = {name: x / shares for name, x in _sums(chosen).items()}
            figures[case]["dim"] = float((chosen[0].num_values or 0) // (chosen[0].num_rows or 1))
    return figures


def _sums(lines: Sequence[DebugRecord]) -> dict[str, float]:
    sums = {"nbytes": 0.0, "rows": 0.0, "energy": 0.0, "noise": 0.0}
    for line in lines:
        num_values = line.num_values or 0
        energy = (line.rms or 0.0) ** 2 * num_values
        sums["nbytes"] += (line.bits or 0.0) * num_values / 8
        sums["rows"] += line.num_rows or 0
        sums["energy"] += energy
        sums["noise"] += 0.0 if line.snr_db is None else energy * 10 ** (-line.snr_db / 10)
    return sums


def measured(
    lines: Iterable[SearchRecord], codecs: Iterable[Codec], metrics: Sequence[str]
) -> Measured:
    """Return the results of probes, the mean over seeds.

    Args:
        lines: records of probes; if two have one case and seed, the later one counts.
        codecs: codecs whose records count.
        metrics: metrics by priority; the first one that evaluations have gives the effects.
    """
    by_repr = {repr(codec): codec for codec in codecs}
    probes: dict[tuple[str, Direction, Codec], dict[int, Mapping[str, float]]] = defaultdict(dict)
    scores: dict[tuple[str, Codec], dict[int, Mapping[str, float]]] = defaultdict(dict)
    for line in lines:
        codec = by_repr.get(line.codec or "")
        if codec is None or line.table is None or line.direction is None:
            continue
        if line.stage == "probe":
            probes[line.table, line.direction, codec][line.seed] = line.figures
        elif line.stage == "evaluation":
            scores[line.table, codec][line.seed] = line.figures
    exact = scores.pop((ALL, EXACT), {})
    metric = next((m for m in metrics if all(m in score for score in exact.values())), None)
    if exact and metric is None:
        raise ValueError(f"evaluate(config) returned none of the metrics {', '.join(metrics)}")
    effects = {
        case: [percent(score[str(metric)], exact[seed][str(metric)])
               for seed, score in sorted(by_seed.items()) if seed in exact]
        for case, by_seed in scores.items()
    }  # fmt: skip
    seeds = max((len(by_seed) for by_seed in probes.values()), default=0)
    noise: dict[tuple[str, Direction, Codec], Noise] = {
        case: _mean_noise(list(by_seed.values()))
        for case, by_seed in probes.items()
        if len(by_seed) == seeds  # it refused nothing
    }
    return Measured(noise, effects)


def _mean_noise(figures: Sequence[Mapping[str, float]]) -> Noise:
    energy = sum(each["energy"] for each in figures)
    noise = sum(each["noise"] for each in figures)
    return Noise(
        nbytes=mean(each["nbytes"] for each in figures),
        rows=mean(each["rows"] for each in figures),
        dim=int(figures[0]["dim"]),
        relative=noise / energy if energy else 0.0,
    )


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; for one value the error is the value itself."""
    center = mean(values)
    return center, stdev(values) / sqrt(len(values)) if len(values) > 1 else abs(center)
