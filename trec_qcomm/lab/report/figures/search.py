"""Search: what plans of a search cost a model, expected and verified, over the bytes they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trec_qcomm.lab.records import Record, SearchRecord
from trec_qcomm.lab.report.figure import Cell, Figure, Finding, short
from trec_qcomm.lab.report.figures.quality.studies import StudySetup
from trec_qcomm.lab.report.runs import grouped
from trec_qcomm.lab.report.style import BAND, INK, MUTED, OURS, grid, label_points, plain_ticks

_VERIFIED = "#d55e00"
_LINEAR = 0.01  # percent; beyond, the axis is logarithmic
_TICKS = (-1, -0.1, -0.01, 0, 0.01, 0.1, 1, 10)


@dataclass(frozen=True)
class PlanPoint:
    """A plan of a search.

    Args:
        name: name of the plan.
        nbytes: bytes of all that was searched, of a rank and step.
        budget: loss in percent that it was made for; 0 for one that was not searched.
        expected, error: expected change in percent, and its standard error.
        verified: measured change by metric: mean, low, high.
        num_seeds: seeds of the verification.
    """

    name: str
    nbytes: float
    budget: float
    expected: float
    error: float
    verified: Mapping[str, tuple[float, float | None, float | None]]
    num_seeds: int

    @classmethod
    def from_record(cls, record: SearchRecord) -> PlanPoint:
        """Return the point of a record of stage "plan"."""
        figures = record.figures
        verified = {
            name.removesuffix(" mean"): (
                value,
                figures.get(name.removesuffix("mean") + "low"),
                figures.get(name.removesuffix("mean") + "high"),
            )
            for name, value in figures.items()
            if name.endswith(" mean")
        }
        return cls(
            record.configuration, figures["nbytes"], figures["budget"], figures["expected"],
            figures["error"], verified, int(figures.get("num_seeds", 0)),
        )  # fmt: skip


def build(records: Sequence[Record]) -> list[Figure]:
    """Return a figure for each search."""
    plans = [r for r in records if isinstance(r, SearchRecord) and r.stage == "plan"]
    figures: list[Figure] = []
    for setup, group in grouped(
        plans, lambda record: StudySetup(record.num_ranks, record.setup_key)
    ).items():
        latest = {record.configuration: record for record in group}
        points = sorted(map(PlanPoint.from_record, latest.values()), key=lambda p: -p.nbytes)
        key = "search" if not figures else f"search-{len(figures) + 1}"
        figures.append(_figure(key, str(setup), points, group[-1].figures["float32_nbytes"]))
    return figures


def _figure(key: str, title: str, points: Sequence[PlanPoint], float32_nbytes: float) -> Figure:
    metrics = list(dict.fromkeys(metric for point in points for metric in point.verified))
    return Figure(
        key=key,
        title=f"Plans of a search: {title}",
        caption=(
            "Each blue dot is the plan of fewest bytes for a budget of loss, at the change that "
            "the search expects; the band is its standard error. Left is cheaper, up is worse. "
            "Orange bars are changes of paired trainings with a plan, 95 % intervals. Grey squares "
            "are configurations that were not searched, at the change that the same model expects."
        ),
        alt="; ".join(
            f"{p.name}: {p.nbytes / 1e3:.1f} kB, expected {p.expected:+.4f} %" for p in points
        ),
        columns=(
            "plan", "budget [%]", "sent [kB a rank and step]", "share of float32 [%]",
            "expected [%]", "standard error [%]", "seeds",
            *(f"{metric}, {what} [%]" for metric in metrics for what in ("mean", "low", "high")),
        ),
        rows=[_row(point, metrics, float32_nbytes) for point in points],
        draw=lambda canvas: _draw(canvas, points),
        size=(9.2, 4.2),
        notes=[
            "Rows and gradients, and dense gradients where these were searched; float32 sends "
            f"{float32_nbytes / 1e3:.1f} kB.",
            f"The axis of changes is linear up to {_LINEAR} % and logarithmic beyond.",
        ],
        findings=_findings(points, float32_nbytes),
    )  # fmt: skip


def _row(point: PlanPoint, metrics: Sequence[str], float32_nbytes: float) -> list[Cell]:
    cells: list[Cell] = [
        point.name, point.budget, point.nbytes / 1e3, 100 * point.nbytes / float32_nbytes,
        point.expected, point.error, point.num_seeds or None,
    ]  # fmt: skip
    for metric in metrics:
        cells += point.verified.get(metric, (None, None, None))
    return cells


def _findings(points: Sequence[PlanPoint], float32_nbytes: float) -> list[Finding]:
    findings = []
    for point in points:
        if point.verified:
            changes = ", ".join(f"{m} {mean:+.3f} %" for m, (mean, _, _) in point.verified.items())
            findings.append(
                Finding(
                    f"The plan {point.name} sends {point.nbytes / float32_nbytes:.1%} of float32's "
                    f"bytes of rows and gradients; expected {point.expected:+.3f} %, verified over "
                    f"{point.num_seeds} seeds: {changes}."
                )
            )
    return findings


def _draw(canvas: Any, points: Sequence[PlanPoint]) -> None:
    axes = canvas.subplots()
    grid(axes)
    axes.axhline(0, color=INK, linewidth=1)
    front = [point for point in points if point.budget]
    others = [point for point in points if not point.budget]
    x = [point.nbytes / 1e3 for point in front]
    low, high = ([p.expected + sign * p.error for p in front] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=BAND, linewidth=0, zorder=0)
    axes.plot(x, [p.expected for p in front], "o-", color=OURS, label="expected of plans")
    axes.plot(
        [p.nbytes / 1e3 for p in others], [p.expected for p in others], "s", color=MUTED,
        label="expected, not searched",
    )  # fmt: skip
    has_label = False
    for point in points:
        for number, (mean, lowest, highest) in enumerate(point.verified.values()):
            at = point.nbytes / 1e3 * 1.012 ** (number + 1)
            if lowest is not None and highest is not None:
                axes.plot([at, at], [lowest, highest], color=_VERIFIED, linewidth=1.6)
            label = None if has_label else f"verified: {', '.join(point.verified)}"
            axes.plot([at], [mean], "D", color=_VERIFIED, markersize=5, label=label)
            has_label = True
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=_LINEAR)
    low_end, high_end = axes.get_ylim()
    inside = [tick for tick in _TICKS if low_end <= tick <= high_end]
    axes.set_yticks(inside, labels=[f"{tick:g}" for tick in inside])
    plain_ticks(axes.xaxis)
    axes.set_xlabel("rows and gradients that a rank sends in a step [kB]")
    axes.set_ylabel("change of the loss [%]")
    axes.margins(x=0.1)
    axes.legend(loc="best")
    canvas.draw_without_rendering()
    named = [(p.nbytes / 1e3, p.expected, short(p.name, 24), MUTED) for p in (*others, *front)
             if p.verified or not p.budget]  # fmt: skip
    label_points(axes, named)
