"""Findings: what stands out in records of the debugger, since which step, and what to do about it.

Each rule looks at the records of one table or parameter in one direction, step by step, or compares
tables in one step. Shadows are left out, because nothing was trained with them.

Knows: records. Does not know: where they come from, how findings are shown.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from trec_qcomm.lab.debug.recorded import Place, place_of
from trec_qcomm.lab.records import DebugRecord

# log2 of values over their running mean. In healthy trainings of the Criteo example on synthetic
# rows (best.yaml, two ranks, every second step) gradients of tables grow by up to 6.3 within the
# first steps, of which the running mean knows little, and move by 5.5 later.
DRIFT, EARLY_DRIFT = 6.5, 8.0
EARLY_STEPS = 5  # measured ones
LEAST_VALUES = 16  # of which a drift is told: few values are small by chance
# Normal values under 2 bits lose a fifth, with stochastic rounding two fifths. With 4 bits up to
# 0.61 were lost in those trainings, where one value dominates a row of gradients.
LOST_SHARE = 0.65
BIAS = 0.1
SNR_GAP_DB = 12.0  # below the median of the tables with such a codec: 4 times their error
GROWTH, LEAST_RESIDUAL = 1.3, 4.0
_DROPS_BY_DESIGN = ("TopK", "Threshold", "ForwardMask")

Series = Sequence[DebugRecord]  # of one table, direction, codec and rank, by step


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that stands out.

    Args:
        kind: broken rule: "nan", "broken", "drift", "residual", "lost", "bias" or "snr".
        severity: higher is worse; findings of one kind and direction have one severity.
        ranks: ranks that show it.
        step: step of the first record that shows it.
        place: the table or parameter.
        what: what stands out, in words.
        advice: what to do about it.
    """

    kind: str
    severity: int
    ranks: tuple[int, ...]
    step: int
    place: Place
    what: str
    advice: str


@dataclass(frozen=True)
class _Rule:
    """What the first record of a series that `holds` is told as. The words are format strings."""

    kind: str
    severity: int
    holds: Callable[[DebugRecord], bool]
    what: str
    advice: str


_RULES = (
    _Rule(
        "nan", 100, lambda r: bool((r.num_nan or 0) + (r.num_inf or 0)),
        "{r.num_nan} NaN and {r.num_inf} inf before the codec",
        "they are the model's: look at what makes this value, at the learning rate and at the step "
        "before",
    ),
    _Rule(
        "broken", 85, lambda r: bool(r.num_broken),
        "{r.num_broken} values are finite on one side of the codec only",
        "values beyond its range: take bf16 in place of fp16, rowwise, float6 or error_bounded",
    ),
)  # fmt: skip
# Error feedback makes up for these two.
_RULES_WITHOUT_RESIDUAL = (
    _Rule(
        "lost", 60,
        lambda r: not r.codec.startswith(_DROPS_BY_DESIGN) and (r.lost_share or 0.0) >= LOST_SHARE,
        "{r.lost_share:.0%} of the values arrive no better than 0 would (a row's largest value is "
        "{peak:.2g} times its rms)",
        "few large values make the step coarse: take more bits, or float6, which keeps small "
        "values beside large ones",
    ),
    _Rule(
        "bias", 45, lambda r: abs(r.bias or 0.0) >= BIAS,
        "errors do not cancel: their mean is {r.bias:.2g} of the mean |x|",
        "take stochastic rounding or more bits, or error feedback for dense gradients",
    ),
)  # fmt: skip


def findings(records: Iterable[DebugRecord]) -> list[Finding]:
    """Return what stands out, once for all ranks, the earliest step first.

    Within a step findings are in the order of sending, and then the worst comes first.
    """
    used = [record for record in records if not record.is_shadow]
    groups: dict[tuple[str, Place], list[Finding]] = defaultdict(list)
    for one in (*_of_series(used), *_coarser_than_others(used)):
        groups[one.kind, one.place].append(one)
    joined = (
        replace(min(same, key=lambda f: f.step), ranks=tuple(sorted({f.ranks[0] for f in same})))
        for same in groups.values()
    )
    return sorted(joined, key=lambda f: (f.step, f.place.order, -f.severity))


def _finding(record: DebugRecord, kind: str, severity: int, what: str, advice: str) -> Finding:
    return Finding(
        kind=kind, severity=severity, ranks=(record.rank,), step=record.step,
        place=place_of(record), what=what, advice=advice,
    )  # fmt: skip


def _of_series(records: Sequence[DebugRecord]) -> Iterator[Finding]:
    by_key: dict[tuple[object, ...], list[DebugRecord]] = defaultdict(list)
    for r in sorted(records, key=lambda r: r.step):
        by_key[r.rank, place_of(r), r.codec].append(r)
    has_residual = {(r.rank, r.name) for r in records if r.direction == "residual"}
    for series in by_key.values():
        if series[0].direction == "residual":
            yield from _growing_residual(series)
            continue
        is_made_up_for = (series[0].rank, series[0].name) in has_residual
        for rule in _RULES if is_made_up_for else _RULES + _RULES_WITHOUT_RESIDUAL:
            yield from _first_of(series, rule)
        yield from _drift(series)


def _first_of(series: Series, rule: _Rule) -> Iterator[Finding]:
    for r in [r for r in series if rule.holds(r)][:1]:
        is_row = rule.kind == "lost" and r.direction == "forward"
        severity = 30 if is_row else rule.severity  # rows of rare ids are small at first
        what = rule.what.format(r=r, peak=r.peak or math.nan)
        yield _finding(r, rule.kind, severity, what, rule.advice)


def _drift(series: Series) -> Iterator[Finding]:
    if max(r.num_values or 0 for r in series) < LEAST_VALUES:
        return
    limits = [EARLY_DRIFT] * EARLY_STEPS + [DRIFT] * len(series)
    jumps = (r for r, limit in zip(series, limits, strict=False) if abs(r.rms_drift or 0) >= limit)
    if r := next(jumps, None):
        assert r.rms_drift is not None
        yield _finding(
            r, "drift", 75, f"values are {2**r.rms_drift:.3g} times their running mean",
            "look at what changed at this step: learning rate, data, a loaded checkpoint",
        )  # fmt: skip


def _growing_residual(series: Series) -> Iterator[Finding]:
    """A residual that saturates is as it should be: it has stopped to grow by the end."""
    known = [r for r in series if r.residual_over_gradient is not None]
    ratios = [r.residual_over_gradient or 0.0 for r in known]
    if len(ratios) < 4 or ratios[-1] < max(LEAST_RESIDUAL, GROWTH * ratios[len(ratios) // 2]):
        return
    first = next(r for r, ratio in zip(known, ratios, strict=True) if ratio >= LEAST_RESIDUAL)
    yield _finding(
        first, "residual", 70,
        f"the residual grows without end: {ratios[-1]:.3g} times a gradient by step "
        f"{known[-1].step}",
        "it never gets through: take a higher density, a lower threshold or more bits",
    )  # fmt: skip


def _coarser_than_others(records: Iterable[DebugRecord]) -> Iterator[Finding]:
    """Yield tables that come far noisier than others of one step with codecs of the same kind."""
    groups: dict[tuple[object, ...], list[DebugRecord]] = defaultdict(list)
    for r in records:
        if r.snr_db is not None and r.direction != "residual":
            kind = r.codec.partition("(")[0]
            groups[r.rank, r.step, r.direction, r.site, r.module, kind].append(r)
    for group in groups.values():
        for r in group if len(group) >= 3 else ():
            others = [o for o in group if o is not r]
            typical = median(o.snr_db or 0.0 for o in others)
            if typical - (r.snr_db or 0.0) >= SNR_GAP_DB:
                yield _finding(
                    r, "snr", 40,
                    f"{r.snr_db:.1f} dB, where others of this direction have {typical:.1f} dB"
                    + _bound_of(r, others),
                    "give it a tighter bound or more bits, or see by its shadows what it needs",
                )  # fmt: skip


def _bound_of(record: DebugRecord, others: Sequence[DebugRecord]) -> str:
    known = [o.tolerance for o in others if o.tolerance is not None]
    if record.tolerance is None or not known or record.tolerance <= median(known):
        return ""
    return f"; its bound is {record.tolerance:.3g}, theirs {median(known):.3g}"
