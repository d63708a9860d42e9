"""Predictions of a model: steps on clusters that nobody measured."""

from collections.abc import Sequence
from typing import Any

from trec_qcomm.lab.records import Record, ScaleRecord
from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Figure, short
from trec_qcomm.lab.report.runs import grouped, rate_text
from trec_qcomm.lab.report.style import Looks


def clusters(records: Sequence[Record], looks: Looks) -> Figure | None:
    """Return one figure of steps on clusters, where there are records."""
    scale = [r for r in records if isinstance(r, ScaleRecord)]
    if not scale:
        return None
    plans = list(dict.fromkeys(r.plan for r in scale))
    speeds = sorted({r.network_gbit_s for r in scale})
    return Figure(
        key="scale",
        title="Step time on larger clusters (a model)",
        columns=(
            "configuration", "GPUs", "plan", "network [Gbit/s]", "step [ms]", "communication [%]",
        ),
        rows=[
            (r.configuration, r.num_gpus, r.plan, r.network_gbit_s, 1e3 * r.step_s,
             100 * r.communication_share)
            for r in scale
        ],
        draw=lambda canvas: _draw_scale(canvas, scale, plans, speeds, looks),
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
