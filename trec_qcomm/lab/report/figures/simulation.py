"""Predictions of a model: beside measurements, and of steps on clusters that nobody measured."""

from collections.abc import Sequence
from typing import Any

from trec_qcomm.lab.records import Record, ScaleRecord, ValidationRecord
from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Figure, short
from trec_qcomm.lab.report.runs import grouped, rate_text
from trec_qcomm.lab.report.style import Looks

WITHIN = 0.2


def predictions(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Return figures of predictions and of steps on clusters, where there are records."""
    validation = [r for r in records if isinstance(r, ValidationRecord)]
    scale = [r for r in records if isinstance(r, ScaleRecord)]
    figures = [_validation(validation, looks)] if validation else []
    return [*figures, *([_scale(scale, looks)] if scale else [])]


def _validation(records: Sequence[ValidationRecord], looks: Looks) -> Figure:
    return Figure(
        key="predicted",
        title="Predicted against measured step (a model)",
        columns=(
            "configuration", "hosts", "link", "measured [ms]", "predicted [ms]", "error [%]",
            "fitted on it",
        ),
        rows=[
            (r.configuration, r.num_hosts, r.rate, 1e3 * r.measured_s, 1e3 * r.predicted_s,
             100 * (r.predicted_s / r.measured_s - 1), "yes" if r.is_fitted else "no")
            for r in records
        ],
        draw=lambda canvas: _draw_validation(canvas, records, looks),
        size=(9.2, 5.2),
        caption="A point is a configuration on a network that was measured. Only filled points "
        "test the model: hollow ones were used to fit it.",
    )  # fmt: skip


def _draw_validation(canvas: Any, records: Sequence[ValidationRecord], looks: Looks) -> None:
    axes = canvas.subplots()
    times = [1e3 * seconds for r in records for seconds in (r.measured_s, r.predicted_s)]
    ends = [min(times) * 0.8, max(times) * 1.25]
    edges = ([end * (1 + side * WITHIN) for end in ends] for side in (-1, 1))
    axes.fill_between(ends, *edges, color=style.BAND, linewidth=0, label=f"within {WITHIN:.0%}")
    axes.plot(ends, ends, color=style.INK, linewidth=1)
    for name, group in grouped(records, lambda r: r.configuration).items():
        look = looks[name]
        for is_fitted in (False, True):
            some = [r for r in group if r.is_fitted == is_fitted]
            axes.plot(
                [1e3 * r.measured_s for r in some], [1e3 * r.predicted_s for r in some],
                look.marker, color=look.color, markerfacecolor="none" if is_fitted else look.color,
                label=None if is_fitted else short(name),
            )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="measured step [ms]", ylabel="predicted step [ms]")
    for axis in (axes.xaxis, axes.yaxis):
        style.plain_ticks(axis)
    style.grid(axes)
    style.legend_beside(axes)


def _scale(records: Sequence[ScaleRecord], looks: Looks) -> Figure:
    plans = list(dict.fromkeys(r.plan for r in records))
    speeds = sorted({r.network_gbit_s for r in records})
    return Figure(
        key="scale",
        title="Step time on larger clusters (a model)",
        columns=(
            "configuration", "GPUs", "plan", "network [Gbit/s]", "step [ms]", "communication [%]",
        ),
        rows=[
            (r.configuration, r.num_gpus, r.plan, r.network_gbit_s, 1e3 * r.step_s,
             100 * r.communication_share)
            for r in records
        ],
        draw=lambda canvas: _draw_scale(canvas, records, plans, speeds, looks),
        size=(max(5.0, 9.2 * min(1.0, len(speeds) / 2)), 2.5 * len(plans) + 0.7),
        caption="A line of panels for each sharding plan, a column for each speed of the links "
        "between nodes.",
    )  # fmt: skip


def _draw_scale(
    canvas: Any,
    records: Sequence[ScaleRecord],
    plans: Sequence[str],
    speeds: Sequence[float],
    looks: Looks,
) -> None:
    panels = canvas.subplots(len(plans), len(speeds), squeeze=False, sharex=True, sharey="row")
    for plan, line in zip(plans, panels, strict=True):
        for speed, axes in zip(speeds, line, strict=True):
            here = [r for r in records if (r.plan, r.network_gbit_s) == (plan, speed)]
            axes.set_title(f"{short(plan, 14)}, {rate_text(1e3 * speed)}")
            for name, group in grouped(here, lambda r: r.configuration).items():
                ordered = sorted(group, key=lambda r: r.num_gpus)
                gpus, steps = [r.num_gpus for r in ordered], [1e3 * r.step_s for r in ordered]
                axes.plot(gpus, steps, **looks[name].line, label=short(name))
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            style.plain_ticks(axes.yaxis, (1,))
            axes.set_xticks(gpus := sorted({r.num_gpus for r in here}), map(str, gpus))
            axes.minorticks_off()
            style.grid(axes)
        line[0].set_ylabel("step [ms]")
    for axes in panels[-1]:
        axes.set_xlabel("GPUs")
    style.legend_beside(panels[0, -1], *panels.flat)
