"""What a model says: its predictions beside measurements, and steps on clusters nobody measured."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trec_qcomm.report.figure import Figure, Finding, short, verdict
from trec_qcomm.report.records import Record
from trec_qcomm.report.runs import rate_text
from trec_qcomm.report.style import BAND, INK, Looks, grid, plain_ticks

WITHIN = 0.2


def build(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """A figure each of predictions, steps on clusters and break-even, where there are records."""
    validation = [r for r in records if r.kind == "validation"]
    scale = [r for r in records if r.kind == "scale"]
    limits = [r for r in records if r.kind == "break_even"]
    figures = [_validation(validation, looks)] if validation else []
    figures += _scale(scale, looks) if scale else []
    return figures + ([_limits(limits, looks)] if limits else [])


def error(record: Record) -> float:
    """Of a prediction, relative."""
    return float(record["predicted_s"] / record["measured_s"] - 1)


def _validation(records: Sequence[Record], looks: Looks) -> Figure:
    unseen = [r for r in records if not r["fitted"]]
    within = sum(abs(error(r)) <= WITHIN for r in unseen)
    text = (
        f"The model of a step is within {WITHIN:.0%} of {within} of {len(unseen)} measurements "
        "that it was not fitted on."
    )
    return Figure(
        key="predicted",
        title="Predicted against measured step",
        caption=(
            "Each point is a configuration on a network that was measured; on the line the model "
            "is right, in the band it is within 20 %. Only filled points test it: hollow ones were "
            "used to fit it."
        ),
        alt=f"Scatter of predicted over measured step times. {text}",
        columns=(
            "configuration", "hosts", "link", "measured [ms]", "predicted [ms]", "error [%]",
            "fitted on it",
        ),
        rows=[
            (r["way"], r["hosts"], r["rate"], 1e3 * r["measured_s"], 1e3 * r["predicted_s"],
             100 * error(r), "yes" if r["fitted"] else "no")
            for r in records
        ],
        draw=lambda canvas: _draw_validation(canvas, records, looks),
        size=(9.2, 5.2),
        notes=_assumed(records, "fit", "Fitted"),
        findings=[Finding(text, verdict(within == len(unseen) > 0))],
        is_model=True,
    )  # fmt: skip


def _draw_validation(canvas: Any, records: Sequence[Record], looks: Looks) -> None:
    axes = canvas.subplots()
    times = [1e3 * r[name] for r in records for name in ("measured_s", "predicted_s")]
    ends = [min(times) * 0.8, max(times) * 1.25]
    edges = ([end * (1 + side * WITHIN) for end in ends] for side in (-1, 1))
    axes.fill_between(ends, *edges, color=BAND, linewidth=0, label=f"within {WITHIN:.0%}")
    axes.plot(ends, ends, color=INK, linewidth=1)
    for way in dict.fromkeys(r["way"] for r in records):
        look = looks[way]
        axes.plot([], [], look.marker, color=look.color, linestyle="none", label=short(way))
    for r in records:
        look = looks[r["way"]]
        face = "none" if r["fitted"] else look.color
        axes.plot([1e3 * r["measured_s"]], [1e3 * r["predicted_s"]], look.marker,
                  markeredgecolor=look.color, markerfacecolor=face)  # fmt: skip
    for name in ("x", "y"):
        getattr(axes, f"set_{name}scale")("log")
        getattr(axes, f"set_{name}lim")(*ends)
        plain_ticks(getattr(axes, f"{name}axis"))
    axes.set_xlabel("measured step [ms]")
    axes.set_ylabel("predicted step [ms]")
    grid(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def _scale(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Step time and share of communication: a line a plan, a column a speed of the network."""
    plans = list(dict.fromkeys(r["plan"] for r in records))
    speeds = sorted({r["network_gbit_s"] for r in records})
    size = (max(5.0, 9.2 * min(1.0, len(speeds) / 2)), 2.5 * len(plans) + 0.7)
    shared: dict[str, Any] = {
        "columns": (
            "configuration", "GPUs", "plan", "network [Gbit/s]", "step [ms]", "communication [%]",
        ),
        "rows": [
            (r["way"], r["num_gpus"], r["plan"], r["network_gbit_s"], 1e3 * r["step_s"],
             100 * r["communication_share"])
            for r in records
        ],
        "size": size, "notes": _assumed(records, "assumed", "Assumed"), "is_model": True,
    }  # fmt: skip

    def draw(canvas: Any, field: str, factor: float, name: str) -> None:
        panels = canvas.subplots(len(plans), len(speeds), squeeze=False, sharex=True, sharey="row")
        for plan, line in zip(plans, panels, strict=True):
            for speed, axes in zip(speeds, line, strict=True):
                here = [r for r in records if (r["plan"], r["network_gbit_s"]) == (plan, speed)]
                axes.set_title(f"{short(plan, 14)}, {rate_text(1e3 * speed)}")
                _lines(axes, here, looks, field, factor)
            line[0].set_ylabel(name)
        for axes in panels[-1]:
            axes.set_xlabel("GPUs")
        handles = {
            label: handle for axes in panels.flat
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }  # fmt: skip
        canvas.legend(handles.values(), handles, loc="outside lower center", ncols=5)

    return [
        Figure(
            key="scale",
            title="Step time on larger clusters",
            caption=(
                "What the model says of clusters that nobody here has: the step over the number of "
                "GPUs, a line of panels for each sharding plan, a column for each speed of the "
                "links between nodes. Compression pays where a line lies below the baseline's."
            ),
            alt=f"Modelled step time over GPUs, {len(records)} cases.",
            draw=lambda canvas: draw(canvas, "step_s", 1e3, "step [ms], model"),
            findings=_scale_findings(records),
            **shared,
        ),
        Figure(
            key="communication",
            title="Share of communication on larger clusters",
            caption=(
                "The same cases: how much of the step is communication. Where the share is small "
                "there is little left to gain; what is compressed has a smaller share."
            ),
            alt=f"Modelled share of communication over GPUs, {len(records)} cases.",
            draw=lambda canvas: draw(canvas, "communication_share", 100, "communication [%]"),
            **shared,
        ),
    ]


def _lines(axes: Any, records: Sequence[Record], looks: Looks, field: str, factor: float) -> None:
    for way in dict.fromkeys(r["way"] for r in records):
        own = sorted((r for r in records if r["way"] == way), key=lambda r: int(r["num_gpus"]))
        look, gpus = looks[way], [r["num_gpus"] for r in own]
        axes.plot(gpus, [factor * r[field] for r in own], color=look.color, marker=look.marker,
                  linestyle=look.dash, label=short(way))  # fmt: skip
    if field == "communication_share":
        axes.set_ylim(0, 100)
    else:
        axes.set_yscale("log")
        plain_ticks(axes.yaxis, (1,))
    _gpu_axis(axes, sorted({r["num_gpus"] for r in records}))


def _scale_findings(records: Sequence[Record]) -> list[Finding]:
    """The largest gain over the first way, and in how many cases there is one."""
    steps = {_case(r): float(r["step_s"]) for r in records}
    base = records[0]["way"]
    gains = {
        key: steps[base, *key[1:]] / seconds
        for key, seconds in steps.items() if key[0] != base and (base, *key[1:]) in steps
    }  # fmt: skip
    if not gains:
        return []
    best = max(gains, key=gains.__getitem__)
    shorter = sum(gain > 1 for gain in gains.values())
    text = (
        f"By the model, steps are shorter than {base}'s in {shorter} of {len(gains)} cases, at "
        f"most {gains[best]:.1f} times ({best[0]}, {best[2]}, {best[1]} GPUs, {best[3]:g} Gbit/s)."
    )
    return [Finding(text, verdict(shorter == len(gains)))]


def _case(record: Record) -> tuple[str, int, str, float]:
    return record["way"], record["num_gpus"], record["plan"], record["network_gbit_s"]


def _gpu_axis(axes: Any, gpus: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [str(n) for n in gpus])
    axes.minorticks_off()
    grid(axes)


def _limits(records: Sequence[Record], looks: Looks) -> Figure:
    return Figure(
        key="break-even",
        title="Up to which network compression pays",
        caption=(
            "The speed of the links between nodes up to which the model finds a step shorter than "
            "the baseline's. Higher is better. Configurations that pay always or never, as far as "
            "was looked, have no point and are in the table."
        ),
        alt=f"Modelled break-even link speed over GPUs, {len(records)} cases.",
        columns=("configuration", "against", "GPUs", "plan", "pays", "up to [Gbit/s]"),
        rows=[
            (r["way"], r.get("against"), r["num_gpus"], r["plan"], r.get("pays"),
             r.get("network_gbit_s"))
            for r in records
        ],
        draw=lambda canvas: _draw_limits(canvas, records, looks),
        size=(9.2, 3.4 * len({r["plan"] for r in records})),
        notes=_assumed(records, "assumed", "Assumed"),
        is_model=True,
    )  # fmt: skip


def _draw_limits(canvas: Any, records: Sequence[Record], looks: Looks) -> None:
    plans = list(dict.fromkeys(r["plan"] for r in records))
    for axes, plan in zip(canvas.subplots(len(plans), 1, squeeze=False)[:, 0], plans, strict=True):
        axes.set_title(short(plan, 60))
        here = [r for r in records if r["plan"] == plan]
        for way in dict.fromkeys(r["way"] for r in here):
            own = sorted((r for r in here if r["way"] == way), key=lambda r: int(r["num_gpus"]))
            known = [(r["num_gpus"], r["network_gbit_s"]) for r in own if r.get("network_gbit_s")]
            look, name = looks[way], short(way)
            if not known:
                name += f": {', '.join(dict.fromkeys(str(r.get('pays')) for r in own))}"
            axes.plot([n for n, _ in known], [speed for _, speed in known], color=look.color,
                      marker=look.marker, linestyle=look.dash, label=name)  # fmt: skip
        _gpu_axis(axes, sorted({r["num_gpus"] for r in here}))
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
        axes.set_ylabel("break-even link [Gbit/s]")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    axes.set_xlabel("GPUs")


def _assumed(records: Sequence[Record], field: str, word: str) -> list[str]:
    """One note for each different text of that field."""
    notes = {
        json.dumps(r.get(field), sort_keys=True): r.get(field) for r in records if r.get(field)
    }
    if not notes:
        return [f"{word}: the records do not say."]
    return [f"{word}: {_listed(value)}." for value in notes.values()]


def _listed(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return str(value)
