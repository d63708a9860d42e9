"""Bytes that a host sends in a step by group of traffic: before, as float32, and after.

Before is float32 of all rows, which is what plain TorchRec sends: the largest count among the
configurations of a setup. Where no record has it, it is float32 of the rows that were sent at all.
Of plain TorchRec only the sum is known, by the kernel's count, which also holds for the others.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from trec_qcomm.lab.records import TRAFFIC_GROUPS, NetworkRecord
from trec_qcomm.lab.report.figure import Cell, Figure, Finding, short, verdict
from trec_qcomm.lab.report.figures.quality.joined import Passing
from trec_qcomm.lab.report.runs import (
    Run,
    Setup,
    baseline_of,
    by_configuration,
    by_setup,
    setup_labels,
)
from trec_qcomm.lab.report.style import INK, MUTED, grid

_NAMES = {
    "forward": "rows forward", "backward": "gradients backward", "dense": "dense gradients",
    "ids": "ids",
}  # fmt: skip
# A hatch tells groups apart without colour.
_FILLS = {
    "forward": ("#2f7f86", ""), "backward": ("#5aa5a8", "///"), "dense": ("#98a1ab", ""),
    "ids": ("#b5a03f", "..."),
}  # fmt: skip
_WHOLE, _MERGED = "float32, all bags", "float32, bags merged"
_MOST_APART = 0.01  # between the kernel's count and ours


def build(runs: Sequence[Run], passing: Mapping[str, Passing]) -> list[Figure]:
    """Return one figure, a panel a setup; setups in which nothing was counted are left out.

    Args: passing: configurations that are shown to keep quality.
    """
    all_setups = {setup: _one_each(group) for setup, group in by_setup(runs).items()}
    setups = {
        setup: group for setup, group in all_setups.items()
        if any(run.wire and sum(run.wire.values()) for run in group)
    }  # fmt: skip
    if not setups:
        return []
    labels = setup_labels(list(setups))
    rows = [row for setup, group in setups.items() for row in _rows(labels[setup], group)]
    num_bars = sum(len(group) + 1 for group in setups.values())
    return [
        Figure(
            key="traffic",
            title="Bytes by kind of traffic",
            caption=(
                "What a host sends in a step, with headers, by kind. The first bar is what float32 "
                "takes; shorter is better. A config that leaves a kind alone leaves "
                "its part of the bar as it is. The black tick is what the kernel counted on the "
                "interface, where there is one: it should end where the bar ends."
            ),
            alt=f"Bytes a step by kind. {_alt(rows)}",
            columns=(
                "setup", "configuration", *(f"{_NAMES[group]} [MB]" for group in TRAFFIC_GROUPS),
                "sum [MB]", "float32 of what is sent [MB]", "kernel's count [MB]",
                "times less than before",
            ),
            rows=rows,
            draw=lambda canvas: _draw(canvas, setups, labels),
            size=(9.2, 0.9 * len(setups) + 0.34 * num_bars + 0.7),
            notes=(
                "Before: of each kind the largest float32 count among the configurations of the "
                "same setup, of all bags where some record has it. Float32 of what is sent: after "
                "equal bags are merged; from there to the sum is the codecs' part.",
            ),
            findings=[
                finding for setup, group in setups.items()
                for finding in _findings(labels[setup], group, passing)
            ],
        )
    ]  # fmt: skip


def before(runs: Sequence[Run]) -> dict[str, float]:
    """Return the bytes of a step by group, as float32 and, where it is known, without merging."""
    counts = [run.raw for run in runs if run.raw] or [r.distinct for r in runs if r.distinct]
    return {group: max((count[group] for count in counts), default=0.0) for group in TRAFFIC_GROUPS}


def before_name(runs: Sequence[Run]) -> str:
    """Return whether that is of all bags: some record counted them."""
    return _WHOLE if any(run.raw for run in runs) else _MERGED


def _one_each(runs: Sequence[Run]) -> list[Run]:
    """Return one run a configuration: bytes hardly depend on rate and seed."""
    return [group[0] for group in by_configuration(runs).values()]


def _rows(label: str, runs: Sequence[Run]) -> list[Sequence[Cell]]:
    raw = before(runs)
    most = sum(raw.values())
    rows: list[Sequence[Cell]] = [
        (label, before_name(runs), *_megabytes(raw), most / 1e6, None, None, 1.0)
    ]
    for run in runs:
        wire = sum(run.wire.values()) if run.wire else None
        distinct = sum(run.distinct.values()) if run.distinct else None
        counted = run.sent_nbytes if run.setup.is_network else None
        total = wire or counted
        rows.append(
            (
                label,
                run.configuration,
                *(_megabytes(run.wire) if run.wire else [None] * len(TRAFFIC_GROUPS)),
                *(None if nbytes is None else nbytes / 1e6 for nbytes in (wire, distinct, counted)),
                None if total is None else most / total,
            )
        )
    return rows


def _megabytes(by_group: Mapping[str, float]) -> list[float]:
    return [by_group[group] / 1e6 for group in TRAFFIC_GROUPS]


def _findings(label: str, runs: Sequence[Run], passing: Mapping[str, Passing]) -> list[Finding]:
    return [*_fewest(label, runs, passing), *_counts(label, runs)]


def _fewest(label: str, runs: Sequence[Run], passing: Mapping[str, Passing]) -> list[Finding]:
    """Return who sends the fewest bytes, of all and of those that keep quality."""
    baseline_name = baseline_of(run.configuration for run in runs)
    baseline = next((run for run in runs if run.configuration == baseline_name), None)
    sent = {r.configuration: r.sent_nbytes for r in runs if r.sent_nbytes and r is not baseline}
    if not sent:
        return []
    most, most_name = sum(before(runs).values()), before_name(runs)
    if baseline is not None and baseline.sent_nbytes is not None:
        most, most_name = baseline.sent_nbytes, baseline.configuration

    def gain(name: str) -> str:
        return f"{name} {sent[name] / 1e6:.2f} MB, {most / sent[name]:.1f} times less"

    fewest = min(sent, key=sent.__getitem__)
    text = f"In a step a host sends {most / 1e6:.2f} MB ({most_name}), with {gain(fewest)}"
    keeping = [name for name in sent if name in passing]
    if fewest in passing:
        text += f", with {passing[fewest].described(runs[0].setup)}"
    elif keeping:
        best = min(keeping, key=sent.__getitem__)
        text += f", and with {passing[best].described(runs[0].setup)} {gain(best)}"
    return [Finding(f"{text} ({label}).", verdict(sent[fewest] < most))]


def _counts(label: str, runs: Sequence[Run]) -> list[Finding]:
    apart = {
        run.configuration: abs(1 - sum(run.wire.values()) / fmean(run.record.payload_nbytes))
        for run in runs if run.wire and isinstance(run.record, NetworkRecord)
    }  # fmt: skip
    if not apart:
        return []
    worst = max(apart, key=apart.__getitem__)
    text = (
        f"Our count of bytes and the kernel's without headers are at most "
        f"{100 * apart[worst]:.1f} % apart ({worst}, {label}); "
        f"{100 * _MOST_APART:.0f} % are allowed."
    )
    return [Finding(text, verdict(apart[worst] <= _MOST_APART))]


def _alt(rows: Sequence[Sequence[Cell]]) -> str:
    totals = [(row[1], row[-4] if row[-4] is not None else row[-2]) for row in rows]
    return "; ".join(f"{name} {total:.2f} MB" for name, total in totals if total is not None)


def _draw(canvas: Any, setups: Mapping[Setup, Sequence[Run]], labels: Mapping[Setup, str]) -> None:
    heights = [len(group) + 2.2 for group in setups.values()]
    panels = canvas.subplots(len(setups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (setup, runs) in zip(panels, setups.items(), strict=True):
        axes.set_title(short(labels[setup], 95))
        _panel(axes, runs)
    panels[0].legend(loc="lower right")
    panels[-1].set_xlabel("sent by a host in a step [MB]")


def _panel(axes: Any, runs: Sequence[Run]) -> None:
    bars: list[tuple[str, Mapping[str, float] | None, float | None]] = [
        (before_name(runs), before(runs), None)
    ]
    bars += [(r.configuration, r.wire, r.sent_nbytes if r.setup.is_network else None) for r in runs]
    most = max(sum(by_group.values()) for _, by_group, _ in bars if by_group)
    most = max(most, *(counted or 0.0 for _, _, counted in bars)) / 1e6
    for place, (_, by_group, counted) in enumerate(bars):
        end = 0.0
        for group, (color, hatch) in _FILLS.items() if by_group else ():
            size = (by_group or {})[group] / 1e6
            label = _NAMES[group] if place == 0 else None
            axes.barh(place, size, left=end, color=color, hatch=hatch, edgecolor="#ffffff",
                      linewidth=0.5, height=0.7, label=label)  # fmt: skip
            end += size
        if not by_group and counted:
            end = counted / 1e6
            axes.barh(place, end, color="none", edgecolor=MUTED, hatch="xx", linewidth=0.8,
                      height=0.7, label="not split" if place == 1 else None)  # fmt: skip
        if counted:
            at = counted / 1e6
            axes.plot([at, at], [place - 0.42, place + 0.42], color=INK, linewidth=1.5,
                      label="kernel's count" if place == 1 else None)  # fmt: skip
        said = f"{end:.2f}" if end else "not counted"
        axes.text(
            max(end, (counted or 0) / 1e6) + most * 0.01, place, said, va="center", fontsize=8.5
        )
    axes.set_yticks(range(len(bars)), [short(name) for name, _, _ in bars])
    axes.set_xlim(0, most * 1.09)
    axes.invert_yaxis()
    grid(axes, "x")
