"""Loss curves: the training loss step by step, and how far it is from the baseline's.

Runs of a setup see the same rows in the same order, so the difference to the baseline at a step is
one of the training and not of the rows.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Cell, Figure, short
from trec_qcomm.lab.report.runs import Run, baseline_of, by_configuration, by_setup
from trec_qcomm.lab.report.style import Looks


def curves(runs: Sequence[Run], looks: Looks) -> Figure | None:
    """Return one figure with two panels for each setup."""
    setups = {label: one_each(group) for label, group in by_setup(runs).items()}
    setups = {label: group for label, group in setups.items() if group}
    if not setups:
        return None
    rows: list[Sequence[Cell]] = []
    for label, group in setups.items():
        baseline = _baseline(group)
        for run in group:
            seen = run.record.losses
            end = last_tenth(seen)
            off = 100 * (end / last_tenth(baseline.record.losses) - 1) if baseline else None
            mean = fmean(seen)
            row = (run.configuration, run.record.seed, len(seen), seen[0], mean, end, off, run.ne)
            rows.append((label, *row))
    return Figure(
        key="losses",
        title="Loss curves",
        columns=(
            "setup", "configuration", "seed", "steps", "first step", "mean of all",
            "mean of the last tenth", "off the baseline's [%]", "NE of the test",
        ),
        rows=rows,
        draw=lambda canvas: _draw_losses(canvas, setups, looks),
        size=(9.2, 3.7 * len(setups)),
        caption="Running means over a tenth of the steps, of one seed.",
    )  # fmt: skip


def one_each(runs: Sequence[Run]) -> list[Run]:
    """Return one run a configuration, all of the same seed and length.

    Losses do not depend on the link, so the slowest one stands for all.
    """
    with_losses = [run for run in runs if run.record.losses]
    seeds = [run.record.seed for run in with_losses]
    seed = max(seeds, key=seeds.count, default=0)
    same = [run for run in with_losses if run.record.seed == seed]
    longest = max((len(run.record.losses) for run in same), default=0)
    same = [run for run in same if len(run.record.losses) == longest]
    return [group[0] for group in by_configuration(same).values()]


def smooth(values: Sequence[float], width: int) -> list[float]:
    """Return the mean over `width` steps around each step; fewer at the ends."""
    half = width // 2
    return [fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def last_tenth(values: Sequence[float]) -> float:
    """Return the mean over the last tenth of the steps."""
    return fmean(values[-max(1, len(values) // 10) :])


def _baseline(runs: Sequence[Run]) -> Run | None:
    name = baseline_of(run.configuration for run in runs)
    return next((run for run in runs if run.configuration == name), None)


def _draw_losses(canvas: Any, setups: Mapping[str, Sequence[Run]], looks: Looks) -> None:
    every = canvas.subplots(len(setups), 2, squeeze=False)
    for (left, right), (label, runs) in zip(every, setups.items(), strict=True):
        baseline = _baseline(runs)
        left.set_title(short(label, 60))
        left.set_ylabel("training loss (log loss, nats)")
        right.set_ylabel(f"against {baseline.configuration} [%]" if baseline else "no baseline")
        right.axhline(0, color=style.INK, linewidth=1)
        for run in runs:
            width = 2 * (len(run.record.losses) // 20) + 1
            curve = smooth(run.record.losses, width)
            line = looks[run.configuration].line | {"label": short(run.configuration)}
            line |= {"linewidth": 1.5, "markersize": 4.5, "markevery": max(1, len(curve) // 6)}
            steps = range(1, len(curve) + 1)
            left.plot(steps, curve, **line)
            if baseline:
                base = smooth(baseline.record.losses, width)
                off = [100 * (a / b - 1) for a, b in zip(curve, base, strict=True)]
                right.plot(steps, off, **line)
        for axes in (left, right):
            style.grid(axes)
            axes.set_xlabel("step")
        style.legend_beside(right, left)
