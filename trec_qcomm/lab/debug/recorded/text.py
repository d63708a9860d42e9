"""What recorded runs say, for a terminal: what is wrong in one, and where two differ."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trec_qcomm.core.aligned import aligned
from trec_qcomm.lab.debug.findings import Finding, findings
from trec_qcomm.lab.debug.recorded.compare import Comparison, Difference
from trec_qcomm.lab.debug.recorded.noise import PlaceNoise, Tried, noisiest, tried_of
from trec_qcomm.lab.debug.recorded.run import ORDER, DebugRun, Place

GAIN_DB = 6.0  # what a shadow must gain to be named: half the error, as of one bit more
_WRONG_HEAD = ("step", "where", "ranks", "what")
_DIFFERENCE_HEAD = ("step", "where", "what", "size", "limit")
_NOISE_HEAD = (
    "dB", "least", "at step", "bits", "lost", "where", "codec", f"cheapest with {GAIN_DB:g} dB more"
)  # fmt: skip


@dataclass(frozen=True)
class Wrong:
    """What stands out at one place, on all ranks together.

    Args: first: the finding of the earliest step.  ranks: ranks that show it.
    """

    first: Finding
    ranks: tuple[int, ...]

    @property
    def where(self) -> str:
        """Name, direction, and the place of an all-reduce."""
        return str(Place(self.first.name, self.first.direction, self.first.site))


def wrong_of(run: DebugRun) -> list[Wrong]:
    """Return what stands out, the earliest step first, within a step in the order of sending."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings(run.records):
        groups.setdefault((one.name, one.direction, one.site, one.kind), []).append(one)
    every = [
        Wrong(min(same, key=lambda f: f.step), tuple(sorted({one.rank for one in same})))
        for same in groups.values()
    ]
    return sorted(
        every, key=lambda w: (w.first.step, ORDER.index(w.first.direction), -w.first.severity)
    )


def show_text(run: DebugRun, *, top: int) -> str:
    """Return what is wrong, the noisiest places, and last the first and the worst that is wrong.

    Args: run: the run.  top: number of lines to show of each.
    """
    wrong, parts = wrong_of(run), [str(run), ""]
    if ranks := run.ranks_without_records:
        missing = ", ".join(map(str, ranks))
        parts += [f"No records of ranks {missing}: what they received is not checked.", ""]
    if wrong:
        parts += ["What stands out, the first first:", "", _wrong_table(wrong[:top])]
        if len(wrong) > top:
            parts += [f"{len(wrong) - top} more; --top {len(wrong)} shows all"]
        parts += [""]
    if noisy := [noise for noise in noisiest(run) if noise.least < math.inf]:
        shown = _some_of_each(noisy, top)
        parts += ["The noisiest of each direction:", "", _noise_table(run, shown), ""]
    return "\n".join([*parts, *_last(wrong)])


def _wrong_table(wrong: Sequence[Wrong]) -> str:
    lines = [
        (str(one.first.step), one.where, ",".join(map(str, one.ranks)), one.first.what)
        for one in wrong
    ]
    return _with_advice(
        aligned([_WRONG_HEAD, *lines], right=(0,)), [one.first.advice for one in wrong]
    )


def _with_advice(table: str, advice: Sequence[str]) -> str:
    """Return a table with an advice below each of its lines. Args: advice: one a line."""
    head, *lines = table.splitlines()
    pairs = zip(lines, advice, strict=True)
    return "\n".join([head, *(f"{line}\n      -> {text}" for line, text in pairs)])


def _some_of_each(noisy: Sequence[PlaceNoise], top: int) -> list[PlaceNoise]:
    """Return the noisiest, equally many of each direction and `top` in all."""
    directions = {noise.place.direction for noise in noisy}
    most = -(-top // len(directions))
    by_direction = {d: [n for n in noisy if n.place.direction == d][:most] for d in directions}
    return [noise for noise in noisy if noise in by_direction[noise.place.direction]][:top]


def _noise_table(run: DebugRun, noisy: Sequence[PlaceNoise]) -> str:
    tried = tried_of(run)
    lines = [_noise_cells(run, noise, tried.get(noise.place, [])) for noise in noisy]
    return aligned([_NOISE_HEAD, *lines], right=(0, 1, 2, 3, 4))


def _noise_cells(run: DebugRun, noise: PlaceNoise, tried: Sequence[Tried]) -> tuple[str, ...]:
    least, at = min(
        (d, step) for d, step in zip(noise.decibels, run.steps, strict=True) if d is not None
    )
    better = [t for t in tried if not t.is_used and t.decibels >= noise.median + GAIN_DB]
    named = [f"{t.codec}: {t.decibels:.1f} dB, {t.bits:.2f} bits" for t in better[:1]]
    return (
        _decibels(noise.median), _decibels(least), str(at),
        "" if noise.bits is None else f"{noise.bits:.2f}",
        "" if noise.lost is None else f"{noise.lost:.0%}",
        str(noise.place), noise.codec, *(named or [""]),
    )  # fmt: skip


def _decibels(value: float) -> str:
    return "exact" if value == math.inf else f"{value:.1f}"


def _last(wrong: Sequence[Wrong]) -> list[str]:
    if not wrong:
        return ["Nothing stands out."]
    first, worst = wrong[0], max(wrong, key=lambda one: one.first.severity)
    is_worst = worst.first.severity == first.first.severity
    words = {"First": first} if is_worst else {"First": first, "Worst": worst}
    return [
        f"{word}: step {one.first.step}, {one.where}: {one.first.what}.\n"
        f"What to do: {one.first.advice}."
        for word, one in words.items()
    ]


def compare_text(a: DebugRun, b: DebugRun, comparison: Comparison, *, top: int) -> str:
    """Return the runs, the first difference of each place, and last the first of all.

    Args: a, b: the runs.  comparison: what differs.  top: number of places to show.
    """
    parts = [
        f"A     {a}", f"B     {b}", "",
        f"{len(comparison.steps)} steps in common. Ratios are compared by their logarithm to base "
        "2: 1 is twice or half.",
    ]  # fmt: skip
    parts += [
        f"{run.folder}: no records of ranks {_listed(ranks)}: what they received is not checked."
        for run in (a, b)
        if (ranks := run.ranks_without_records)
    ]
    missing = (("A lacks", comparison.only_b), ("B lacks", comparison.only_a))
    parts += [f"{what}: {_listed(places)}." for what, places in missing if places]
    first = comparison.first
    if not first:
        return "\n".join([*parts, "", "No difference beyond the limits."])
    table = aligned([_DIFFERENCE_HEAD, *map(_cells, first[:top])], right=(0, 3, 4))
    parts += ["", _with_advice(table, [difference.advice for difference in first[:top]])]
    if len(first) > top:
        parts += [f"{len(first) - top} more places differ later or less; --top {len(first)}"]
    place, what = first[0].place, first[0].what
    last = f"First difference: step {first[0].step}, {place}: {what}."
    return "\n".join([*parts, "", last, f"What to do: {first[0].advice}."])


def _cells(difference: Difference) -> tuple[str, ...]:
    size = "" if difference.size == math.inf else f"{difference.size:.3g}"
    limit = f"{difference.limit:.3g}" if difference.limit else "none"
    where = (str(difference.step), str(difference.place))
    return (*where, difference.what, size, limit)


def _listed(items: Sequence[Place] | Sequence[int], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(map(str, items[:most])) + more
