"""The rate of the links up to which a configuration is faster than the baseline.

Between two rates that were measured a step is taken to be a + b / rate, which is exact where it is
compute and one transfer after another. So break-even is found on a straight line over 1 / rate,
where no limit is 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trec_qcomm.lab.report.runs import Run, baseline_of, by_configuration, rate_text


@dataclass(frozen=True)
class Crossing:
    """The rate at which two medians are equal.

    Args: is_clear: at the rates measured on either side of it the 20th to 80th percentiles of the
        two are apart, so it is no scatter.
    """

    rate_mbit: float
    is_clear: bool

    def __str__(self) -> str:
        return rate_text(self.rate_mbit) + ("" if self.is_clear else " (within the scatter)")


@dataclass(frozen=True)
class Crossings:
    """All crossings of a configuration with the baseline.

    Args:
        gains: (1 / rate in s / Mbit, seconds saved by the medians), by rising 1 / rate.
        rates: crossings by rising rate.
    """

    gains: Sequence[tuple[float, float]]
    rates: Sequence[Crossing]

    def __str__(self) -> str:
        if not self.rates:
            slower = all(gain <= 0 for _, gain in self.gains)
            return f"none, {'slower' if slower else 'faster'} at every rate measured"
        return " and ".join(map(str, self.rates))


def crossings(baseline: Sequence[Run], runs: Sequence[Run]) -> Crossings:
    """Return the crossings, from the rates that both have. Both are of one setup, a rate once."""
    ours = {inverse(run): run.step_s for run in runs}
    theirs = {inverse(run): run.step_s for run in baseline if inverse(run) in ours}
    gains = [(u, theirs[u]["p50"] - ours[u]["p50"]) for u in sorted(theirs)]
    rates = []
    for (u, gain), (v, next_gain) in pairwise(gains):
        if gain * next_gain < 0:
            rate = 1 / (u + (v - u) * gain / (gain - next_gain))
            rates.append(Crossing(rate, all(_are_apart(theirs[x], ours[x]) for x in (u, v))))
    return Crossings(gains, rates[::-1])


def all_crossings(runs: Sequence[Run]) -> dict[str, Crossings]:
    """Return the crossings of each configuration but the baseline; nothing without a baseline."""
    groups = by_configuration(runs)
    baseline = baseline_of(groups)
    if baseline is None:
        return {}
    by_name = {
        name: crossings(groups[baseline], group)
        for name, group in groups.items() if name != baseline
    }  # fmt: skip
    return {name: crossed for name, crossed in by_name.items() if crossed.gains}


def _are_apart(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one["p80"] < other["p20"] or other["p80"] < one["p20"]


def inverse(run: Run) -> float:
    """Return 1 / rate in seconds a Mbit; 0 without a limit."""
    return 0.0 if run.rate_mbit is None else 1 / run.rate_mbit
