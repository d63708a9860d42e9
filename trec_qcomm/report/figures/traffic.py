"""Bytes that a host sends in a step by kind of traffic: before, as float32, and after.

Before is the largest raw count of each kind among the ways of a setup: that of a way that sends all
bags, where there is one (a raw count is of the rows that are sent at all). Of plain TorchRec only
the sum is known, by the kernel's count, which also holds for the others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trec_qcomm.report.figure import Cell, Figure, Finding, short, verdict
from trec_qcomm.report.figures.quality.rate_distortion import Kept
from trec_qcomm.report.runs import KINDS, Run, Setup, base_of, by_setup, setup_labels, ways_of
from trec_qcomm.report.style import INK, MUTED, grid

# Of kinds, not of ways: a hatch tells them apart without colour.
_KINDS = dict(zip(KINDS, (("#2f7f86", ""), ("#5aa5a8", "///"), ("#98a1ab", ""), ("#b5a03f", "...")),
                  strict=True))  # fmt: skip
_WHOLE, _MERGED = "float32, all bags", "float32, bags merged"
_MOST_APART = 0.03  # between the kernel's count and ours


def build(runs: Sequence[Run], kept: Mapping[str, Kept]) -> list[Figure]:
    """One figure, a panel a setup; setups in which nothing was counted are left out.

    Args: kept: ways that are shown to keep quality.
    """
    found = {setup: _of_ways(own) for setup, own in by_setup(runs).items()}
    setups = {s: own for s, own in found.items() if any(run.wire for run in own)}
    if not setups:
        return []
    labels = setup_labels(list(setups))
    rows = [row for setup, own in setups.items() for row in _rows(labels[setup], own)]
    num_bars = sum(len(own) + 1 for own in setups.values())
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
                "setup", "configuration", *(f"{kind} [MB]" for kind in KINDS), "sum [MB]",
                "kernel's count [MB]", "times less than before",
            ),
            rows=rows,
            draw=lambda canvas: _draw(canvas, setups, labels),
            size=(9.2, 0.9 * len(setups) + 0.34 * num_bars + 0.7),
            notes=(
                "Before: of each kind the largest float32 count among the configurations of the "
                "same setup. Where all of them merge equal bags, it is of merged ones, too, and "
                "the gain of merging is not in this figure.",
            ),
            findings=[
                f for s, own in setups.items() for f in _findings(labels[s], own, kept)
            ],
        )
    ]  # fmt: skip


def before(runs: Sequence[Run]) -> dict[str, float]:
    """Bytes of a step by kind, as float32 and without merging."""
    return {kind: max(run.raw[kind] for run in runs if run.raw) for kind in KINDS}


def before_name(runs: Sequence[Run]) -> str:
    """Whether that is of all bags: one of the ways that were counted merges none."""
    return _WHOLE if any(run.raw and not run.merges_bags for run in runs) else _MERGED


def _of_ways(runs: Sequence[Run]) -> list[Run]:
    """One run a way: bytes hardly depend on rate and seed."""
    return [own[0] for own in ways_of(runs).values()]


def _rows(label: str, runs: Sequence[Run]) -> list[Sequence[Cell]]:
    raw = before(runs)
    most = sum(raw.values())
    rows: list[Sequence[Cell]] = [
        (label, before_name(runs), *_megabytes(raw), most / 1e6, None, 1.0)
    ]
    for run in runs:
        own = sum(run.wire.values()) if run.wire else None
        counted = run.sent_nbytes if run.setup.is_network else None
        total = own or counted
        rows.append(
            (
                label,
                run.way,
                *(_megabytes(run.wire) if run.wire else [None] * len(KINDS)),
                None if own is None else own / 1e6,
                None if counted is None else counted / 1e6,
                None if total is None else most / total,
            )
        )
    return rows


def _megabytes(by_kind: Mapping[str, float]) -> list[float]:
    return [by_kind[kind] / 1e6 for kind in KINDS]


def _findings(label: str, runs: Sequence[Run], kept: Mapping[str, Kept]) -> list[Finding]:
    return [*_fewest(label, runs, kept), *_counts(label, runs)]


def _fewest(label: str, runs: Sequence[Run], kept: Mapping[str, Kept]) -> list[Finding]:
    """Of the ways with the fewest bytes, of all and of those that keep quality."""
    base = next((r for r in runs if r.way == base_of(run.way for run in runs)), None)
    sent = {run.way: run.sent_nbytes for run in runs if run.sent_nbytes and run is not base}
    if not sent:
        return []
    most, name = sum(before(runs).values()), before_name(runs)
    if base is not None and base.sent_nbytes is not None:
        most, name = base.sent_nbytes, base.way

    def gain(way: str) -> str:
        return f"{way} {sent[way] / 1e6:.2f} MB, {most / sent[way]:.1f} times less"

    fewest = min(sent, key=sent.__getitem__)
    text = f"In a step a host sends {most / 1e6:.2f} MB ({name}), with {gain(fewest)}"
    keeping = [way for way in sent if way in kept]
    if fewest in kept:
        text += f", with {kept[fewest].told(runs[0].setup)}"
    elif keeping:
        best = min(keeping, key=sent.__getitem__)
        text += f", and with {kept[best].told(runs[0].setup)} {gain(best)}"
    return [Finding(f"{text} ({label}).", verdict(sent[fewest] < most))]


def _counts(label: str, runs: Sequence[Run]) -> list[Finding]:
    apart = {
        run.way: abs(1 - sum(run.wire.values()) / run.sent_nbytes)
        for run in runs if run.wire and run.setup.is_network and run.sent_nbytes
    }  # fmt: skip
    if not apart:
        return []
    worst = max(apart, key=apart.__getitem__)
    text = (
        f"Our count of bytes and the kernel's are at most {100 * apart[worst]:.1f} % apart "
        f"({worst}, {label}); {100 * _MOST_APART:.0f} % are allowed."
    )
    return [Finding(text, verdict(apart[worst] <= _MOST_APART))]


def _alt(rows: Sequence[Sequence[Cell]]) -> str:
    totals = [(row[1], row[-3] if row[-3] is not None else row[-2]) for row in rows]
    return "; ".join(f"{name} {total:.2f} MB" for name, total in totals if total is not None)


def _draw(canvas: Any, setups: Mapping[Setup, Sequence[Run]], labels: Mapping[Setup, str]) -> None:
    heights = [len(own) + 2.2 for own in setups.values()]
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
    bars += [(r.way, r.wire, r.sent_nbytes if r.setup.is_network else None) for r in runs]
    most = max(sum(by_kind.values()) for _, by_kind, _ in bars if by_kind)
    most = max(most, *(counted or 0.0 for _, _, counted in bars)) / 1e6
    for place, (_, by_kind, counted) in enumerate(bars):
        end = 0.0
        for kind, (color, hatch) in _KINDS.items() if by_kind else ():
            size = (by_kind or {})[kind] / 1e6
            label = kind if place == 0 else None
            axes.barh(place, size, left=end, color=color, hatch=hatch, edgecolor="#ffffff",
                      linewidth=0.5, height=0.7, label=label)  # fmt: skip
            end += size
        if not by_kind and counted:
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
