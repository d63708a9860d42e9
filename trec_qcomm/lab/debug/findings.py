"""Findings: what stands out in records of the debugger, since which step, and what to do about it.

Each rule looks at the records of one table or parameter in one direction, step by step, or compares
records of one step: of several tables, or of both ends of an exchange where records of several
ranks are given. Shadows are left out, as nothing was trained with them.

Knows: records. Does not know: where they come from, how findings are shown.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

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
SAME_SQUARES = 1e-6  # float64 sums in another order differ by less
_DROPS_BY_DESIGN = ("TopK", "Threshold", "ForwardMask")

Series = Sequence[DebugRecord]  # of one table, direction, codec and rank, by step


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that stands out.

    Args:
        kind: the rule that it breaks: "nan", "promise", "received", "broken", "drift", "residual",
            "lost", "bias" or "snr".
        severity: higher is worse; of one kind and direction all are equal.
        rank, step, name, direction, site: place of the first record that shows it.
        what: what stands out, in words.
        advice: what to do about it.
    """

    kind: str
    severity: int
    rank: int
    step: int
    name: str
    direction: str
    site: str | None
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
        "promise", 95, lambda r: (r.error_over_bound or 0.0) > 1,
        "an error of {r.error_over_bound:.3g} times the bound",
        "the codec breaks its promise: report it with the rows (qcomm.capture_rows)",
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
    """Return what stands out: the worst first, and of equally bad ones the earliest."""
    used = [record for record in records if not record.is_shadow]
    series = _series(used)
    has_residual = {(r.rank, r.name) for r in used if r.direction == "residual"}
    every: list[Finding] = []
    for one in series:
        if one[0].direction == "residual":
            every += _growing_residual(one)
            continue
        is_made_up_for = (one[0].rank, one[0].name) in has_residual
        rules = _RULES if is_made_up_for else _RULES + _RULES_WITHOUT_RESIDUAL
        every += [finding for rule in rules if (finding := _first_of(one, rule))]
        every += _drift(one)
    every += _coarser_than_others(used)
    every += _received(used)
    return sorted(every, key=lambda f: (-f.severity, f.step))


def _series(records: Iterable[DebugRecord]) -> list[Series]:
    by_key: dict[tuple[object, ...], list[DebugRecord]] = defaultdict(list)
    for r in records:
        by_key[r.rank, r.name, r.direction, r.codec, r.site, r.module].append(r)
    return [sorted(one, key=lambda r: r.step) for one in by_key.values()]


def _finding(record: DebugRecord, kind: str, severity: int, what: str, advice: str) -> Finding:
    return Finding(
        kind=kind, severity=severity, rank=record.rank, step=record.step, name=record.name,
        direction=record.direction, site=record.site, what=what, advice=advice,
    )  # fmt: skip


def _first_of(series: Series, rule: _Rule) -> Finding | None:
    record = next((r for r in series if rule.holds(r)), None)
    if record is None:
        return None
    is_row = rule.kind == "lost" and record.direction == "forward"
    severity = 30 if is_row else rule.severity  # rows of rare ids are small at first
    what = rule.what.format(r=record, peak=record.peak or math.nan)
    return _finding(record, rule.kind, severity, what, rule.advice)


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
    if len(ratios) < 4 or ratios[-1] < LEAST_RESIDUAL:
        return
    if ratios[-1] < GROWTH * ratios[len(ratios) // 2]:
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
    told = set()
    for group in sorted(groups.values(), key=lambda group: group[0].step):
        for r in group if len(group) >= 3 else ():
            others = [o for o in group if o is not r]
            typical = median(o.snr_db or 0.0 for o in others)
            gap = typical - (r.snr_db or 0.0)
            key = r.rank, r.name, r.direction, r.site
            if gap >= SNR_GAP_DB and key not in told:
                told.add(key)
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


def _received(records: Sequence[DebugRecord]) -> Iterator[Finding]:
    """Yield tables whose rows are not what their sender sent, and means that ranks do not share."""
    sent: dict[tuple[object, ...], DebugRecord] = {
        (r.rank, r.step, r.name, r.direction, r.module): r for r in records if r.sent_squares
    }
    means: dict[tuple[object, ...], DebugRecord] = {}
    told = set()
    for r in sorted(records, key=lambda r: r.step):
        key = r.name, r.direction, r.site, r.module
        for scale, sender in _scales(r, sent, means):
            if (key, r.rank) not in told and abs(scale - 1) > SAME_SQUARES:
                told.add((key, r.rank))
                yield _finding(
                    r, "received", 90,
                    f"rank {r.rank} uses {scale:.4g} times what rank {sender} sent, in norm",
                    "something changes values behind the decoder: look at hooks on this rank, and "
                    "at its memory",
                )  # fmt: skip


def _scales(
    record: DebugRecord,
    sent: dict[tuple[object, ...], DebugRecord],
    means: dict[tuple[object, ...], DebugRecord],
) -> Iterator[tuple[float, int]]:
    """Yield the norm of what a rank uses over that of what another rank sent it, and that rank.

    Args: sent: records of senders.  means: the first record of each mean of an all-reduce, which
        this adds to.
    """
    if record.received_squares and not record.peers:
        first = means.setdefault((record.step, record.name, record.direction), record)
        yield _ratio(record.received_squares[0], first.received_squares[0]), first.rank
        return
    for peer, received in zip(record.peers, record.received_squares, strict=False):
        other = sent.get((peer, record.step, record.name, record.direction, record.module))
        if other is not None and record.rank in other.peers:
            expected = other.sent_squares[other.peers.index(record.rank)]
            yield _ratio(received, expected), peer


def _ratio(squares: float, expected: float) -> float:
    if squares == expected:
        return 1.0
    return math.sqrt(squares / expected) if expected > 0 else math.inf
