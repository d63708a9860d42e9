"""Predictions of a model: beside measurements, and of steps on clusters that nobody measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from trec_qcomm.lab.records import BreakEvenRecord, Record, Scalar, ScaleRecord, ValidationRecord
from trec_qcomm.lab.report.figure import Figure, Finding, short, verdict
from trec_qcomm.lab.report.runs import grouped, rate_text
from trec_qcomm.lab.report.style import BAND, INK, Looks, grid, plain_ticks

WITHIN = 0.2


def build(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Return figures of predictions, steps on clusters and break-even, where there are records."""
    validation = [r for r in records if isinstance(r, ValidationRecord)]
    scale = [r for r in records if isinstance(r, ScaleRecord)]
    limits = [r for r in records if isinstance(r, BreakEvenRecord)]
    figures = [_validation(validation, looks)] if validation else []
    figures += _scale(scale, looks) if scale else []
    return figures + ([_limits(limits, looks)] if limits else [])


def error(record: ValidationRecord) -> float:
    """Return the relative error of a prediction."""
    return record.predicted_s / record.measured_s - 1


def _validation(records: Sequence[ValidationRecord], looks: Looks) -> Figure:
    unseen = [r for r in records if not r.is_fitted]
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
            (r.configuration, r.num_hosts, r.rate, 1e3 * r.measured_s, 1e3 * r.predicted_s,
             100 * error(r), "yes" if r.is_fitted else "no")
            for r in records
        ],
        draw=lambda canvas: _draw_validation(canvas, records, looks),
        size=(9.2, 5.2),
        notes=_listed_once([r.fit for r in records], "Fitted"),
        findings=[Finding(text, verdict(within == len(unseen) > 0))],
        is_model=True,
    )  # fmt: skip


def _draw_validation(canvas: Any, records: Sequence[ValidationRecord], looks: Looks) -> None:
    axes = canvas.subplots()
    times = [1e3 * seconds for r in records for seconds in (r.measured_s, r.predicted_s)]
    ends = [min(times) * 0.8, max(times) * 1.25]
    edges = ([end * (1 + side * WITHIN) for end in ends] for side in (-1, 1))
    axes.fill_between(ends, *edges, color=BAND, linewidth=0, label=f"within {WITHIN:.0%}")
    axes.plot(ends, ends, color=INK, linewidth=1)
    for name in dict.fromkeys(r.configuration for r in records):
        look = looks[name]
        axes.plot([], [], look.marker, color=look.color, linestyle="none", label=short(name))
    for r in records:
        look = looks[r.configuration]
        face = "none" if r.is_fitted else look.color
        axes.plot([1e3 * r.measured_s], [1e3 * r.predicted_s], look.marker,
                  markeredgecolor=look.color, markerfacecolor=face)  # fmt: skip
    for letter in ("x", "y"):
        getattr(axes, f"set_{letter}scale")("log")
        getattr(axes, f"set_{letter}lim")(*ends)
        plain_ticks(getattr(axes, f"{letter}axis"))
    axes.set_xlabel("measured step [ms]")
    axes.set_ylabel("predicted step [ms]")
    grid(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def _scale(records: Sequence[ScaleRecord], looks: Looks) -> list[Figure]:
    """Return step time and share of communication: a line a plan, a column a network's speed."""
    plans = list(dict.fromkeys(r.plan for r in records))
    speeds = sorted({r.network_gbit_s for r in records})
    size = (max(5.0, 9.2 * min(1.0, len(speeds) / 2)), 2.5 * len(plans) + 0.7)
    shared: dict[str, Any] = {
        "columns": (
            "configuration", "GPUs", "plan", "network [Gbit/s]", "step [ms]", "communication [%]",
        ),
        "rows": [
            (r.configuration, r.num_gpus, r.plan, r.network_gbit_s, 1e3 * r.step_s,
             100 * r.communication_share)
            for r in records
        ],
        "size": size, "notes": _listed_once([r.assumed for r in records], "Assumed"),
        "is_model": True,
    }  # fmt: skip

    def draw(canvas: Any, field: str, factor: float, name: str) -> None:
        panels = canvas.subplots(len(plans), len(speeds), squeeze=False, sharex=True, sharey="row")
        for plan, line in zip(plans, panels, strict=True):
            for speed, axes in zip(speeds, line, strict=True):
                here = [r for r in records if (r.plan, r.network_gbit_s) == (plan, speed)]
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


def _lines(
    axes: Any, records: Sequence[ScaleRecord], looks: Looks, field: str, factor: float
) -> None:
    for name, group in grouped(records, lambda r: r.configuration).items():
        ordered = sorted(group, key=lambda r: r.num_gpus)
        look, gpus = looks[name], [r.num_gpus for r in ordered]
        values = [factor * getattr(r, field) for r in ordered]
        axes.plot(gpus, values, color=look.color, marker=look.marker, linestyle=look.dash,
                  label=short(name))  # fmt: skip
    if field == "communication_share":
        axes.set_ylim(0, 100)
    else:
        axes.set_yscale("log")
        plain_ticks(axes.yaxis, (1,))
    _gpu_axis(axes, sorted({r.num_gpus for r in records}))


def _scale_findings(records: Sequence[ScaleRecord]) -> list[Finding]:
    """Return the largest gain over the first configuration, and how many cases have one."""
    steps = {_case(r): float(r.step_s) for r in records}
    base = records[0].configuration
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


def _case(record: ScaleRecord) -> tuple[str, int, str, float]:
    return record.configuration, record.num_gpus, record.plan, record.network_gbit_s


def _gpu_axis(axes: Any, gpus: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [str(n) for n in gpus])
    axes.minorticks_off()
    grid(axes)


def _limits(records: Sequence[BreakEvenRecord], looks: Looks) -> Figure:
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
            (r.configuration, r.against, r.num_gpus, r.plan, r.pays,
             r.network_gbit_s)
            for r in records
        ],
        draw=lambda canvas: _draw_limits(canvas, records, looks),
        size=(9.2, 3.4 * len({r.plan for r in records})),
        notes=_listed_once([r.assumed for r in records], "Assumed"),
        is_model=True,
    )  # fmt: skip


def _draw_limits(canvas: Any, records: Sequence[BreakEvenRecord], looks: Looks) -> None:
    plans = list(dict.fromkeys(r.plan for r in records))
    for axes, plan in zip(canvas.subplots(len(plans), 1, squeeze=False)[:, 0], plans, strict=True):
        axes.set_title(short(plan, 60))
        here = [r for r in records if r.plan == plan]
        for configuration, group in grouped(here, lambda r: r.configuration).items():
            ordered = sorted(group, key=lambda r: r.num_gpus)
            known = [(r.num_gpus, r.network_gbit_s) for r in ordered if r.network_gbit_s]
            look, name = looks[configuration], short(configuration)
            if not known:
                name += f": {', '.join(dict.fromkeys(r.pays for r in ordered))}"
            axes.plot([n for n, _ in known], [speed for _, speed in known], color=look.color,
                      marker=look.marker, linestyle=look.dash, label=name)  # fmt: skip
        _gpu_axis(axes, sorted({r.num_gpus for r in here}))
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
        axes.set_ylabel("break-even link [Gbit/s]")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    axes.set_xlabel("GPUs")


def _listed_once(mappings: Sequence[Mapping[str, Scalar | None]], word: str) -> list[str]:
    """Return one note for each different mapping that says something."""
    texts = [", ".join(f"{name} {value}" for name, value in m.items()) for m in mappings if m]
    if not texts:
        return [f"{word}: the records do not say."]
    return [f"{word}: {text}." for text in dict.fromkeys(texts)]
