"""Search: what plans of a search cost a model, expected and verified, over the bytes they send."""

from collections.abc import Sequence
from typing import Any

from trec_qcomm.lab.records import Record, SearchRecord
from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Cell, Figure, numbered, short
from trec_qcomm.lab.report.figures.quality import study_title
from trec_qcomm.lab.report.runs import grouped

_LINEAR = 0.01  # percent; beyond, the axis is logarithmic


def plans(records: Sequence[Record]) -> list[Figure]:
    """Return a figure for each search: the last record of each plan."""
    every = [r for r in records if isinstance(r, SearchRecord) and r.stage == "plan"]
    figures: list[Figure] = []
    for group in grouped(every, lambda record: (record.num_ranks, record.setup_key)).values():
        latest = {record.configuration: record for record in group}
        points = sorted(latest.values(), key=lambda record: -record.figures["nbytes"])
        title = study_title(group[0].num_ranks, group[0].setup)
        figures.append(_figure(numbered("search", len(figures) + 1), title, points))
    return figures


def _metrics(record: SearchRecord) -> list[str]:
    """Return the metrics by which a plan was verified."""
    return [name.removesuffix(" mean") for name in record.figures if name.endswith(" mean")]


def _figure(key: str, title: str, points: Sequence[SearchRecord]) -> Figure:
    metrics = list(dict.fromkeys(metric for point in points for metric in _metrics(point)))
    float32_nbytes = points[-1].figures["float32_nbytes"]
    rows: list[Sequence[Cell]] = []
    for point in points:
        f = point.figures
        row: list[Cell] = [
            point.configuration, f["budget"], f["nbytes"] / 1e3, 100 * f["nbytes"] / float32_nbytes,
            f["expected"], f["error"], int(f.get("num_seeds", 0)) or None,
        ]  # fmt: skip
        rows.append([*row, *(f.get(f"{m} {w}") for m in metrics for w in ("mean", "low", "high"))])
    return Figure(
        key=key,
        title=f"Plans of a search: {title}",
        columns=(
            "plan", "budget [%]", "sent [kB a rank and step]", "share of float32 [%]",
            "expected [%]", "standard error [%]", "seeds",
            *(f"{metric}, {what} [%]" for metric in metrics for what in ("mean", "low", "high")),
        ),
        rows=rows,
        draw=lambda canvas: _draw(canvas, points),
        size=(9.2, 4.2),
        caption="Blue: plans of fewest bytes for a budget of loss, with the standard error of the "
        "expected change. Orange: changes of paired trainings with a plan, 95 % intervals. "
        f"Float32 sends {float32_nbytes / 1e3:.1f} kB of what was searched.",
    )  # fmt: skip


def _draw(canvas: Any, points: Sequence[SearchRecord]) -> None:
    axes = canvas.subplots()
    style.grid(axes)
    axes.axhline(0, color=style.INK, linewidth=1)
    front = [point.figures for point in points if point.figures["budget"]]
    x, expected = [f["nbytes"] / 1e3 for f in front], [f["expected"] for f in front]
    low, high = ([f["expected"] + sign * f["error"] for f in front] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=style.BAND, linewidth=0, zorder=0)
    axes.plot(x, expected, "o-", color=style.OURS, label="expected of plans")
    for number, point in enumerate(p for p in points if not p.figures["budget"]):
        marker, name = "sDv^PXp<>"[number % 9], short(point.configuration, 24)
        at = point.figures["nbytes"] / 1e3
        axes.plot(
            at, point.figures["expected"], marker, color=style.MUTED, label=f"{name}, not searched"
        )
    for point in points:
        for number, metric in enumerate(_metrics(point)):
            at = point.figures["nbytes"] / 1e3 * 1.012 ** (number + 1)
            ends = [point.figures.get(f"{metric} {what}") for what in ("low", "high")]
            if None not in ends:
                axes.plot([at, at], ends, color=style.WARNING, linewidth=1.6)
            mean = point.figures[f"{metric} mean"]
            axes.plot([at], [mean], "D", color=style.WARNING, markersize=5, label="verified, 95 %")
        if _metrics(point):
            axes.annotate(
                short(point.configuration, 24), (point.figures["nbytes"] / 1e3, 0.02),
                xycoords=("data", "axes fraction"), rotation=90, ha="right", fontsize=8.5,
            )  # fmt: skip
    axes.set_xscale("log")
    axes.margins(x=0.1)
    style.signed_log(axes, "y", _LINEAR)
    style.plain_ticks(axes.xaxis)
    axes.set_xlabel("rows and gradients that a rank sends in a step [kB]")
    axes.set_ylabel("change of the loss [%]")
    style.legend_beside(axes)
