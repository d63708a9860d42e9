"""Loss curves: the training loss step by step, and how far it is from the baseline's.

Runs of a setup see the same rows in the same order, so the difference to the baseline at a step is
one of the training and not of the rows.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from trec_qcomm.lab.report.figure import Cell, Figure, Finding, short
from trec_qcomm.lab.report.runs import (
    Run,
    Setup,
    baseline_of,
    by_configuration,
    by_setup,
    setup_labels,
)
from trec_qcomm.lab.report.style import INK, Looks, grid


def build(runs: Sequence[Run], looks: Looks) -> list[Figure]:
    """Return one figure with two panels for each setup."""
    setups = {setup: one_each(group) for setup, group in by_setup(runs).items()}
    setups = {setup: group for setup, group in setups.items() if group}
    if not setups:
        return []
    labels = setup_labels(list(setups))
    rows = [row for setup, group in setups.items() for row in _rows(labels[setup], group)]
    return [
        Figure(
            key="losses",
            title="Loss curves",
            caption=(
                "Left: the loss of every training step, as a running mean; curves that lie on one "
                "another are what one hopes for. Right: the same against the baseline, on the same "
                "rows in the same order. A curve that stays above zero learns worse; one that "
                "wanders about zero shows the noise of training."
            ),
            alt=f"Loss over steps. Mean of the last tenth: {_alt(rows)}",
            columns=(
                "setup", "configuration", "seed", "steps", "first step", "mean of all",
                "mean of the last tenth", "off the baseline's [%]",
            ),
            rows=rows,
            draw=lambda canvas: _draw(canvas, setups, labels, looks),
            size=(9.2, 3.7 * len(setups)),
            notes=[f"{labels[s]}: {window_text(group)}" for s, group in setups.items()],
            findings=[
                f for setup, group in setups.items() for f in _findings(labels[setup], group)
            ],
        )
    ]  # fmt: skip


def one_each(runs: Sequence[Run]) -> list[Run]:
    """Return one run a configuration, all of the same seed and length.

    Losses do not depend on the link, so the slowest one stands for all.
    """
    with_losses = [run for run in runs if run.losses]
    seeds = [run.seed for run in with_losses]
    seed = max(seeds, key=seeds.count, default=0)
    same = [run for run in with_losses if run.seed == seed]
    longest = max((len(run.losses) for run in same), default=0)
    return [
        next(run for run in group if len(run.losses) == longest)
        for group in by_configuration(same).values()
        if any(len(run.losses) == longest for run in group)
    ]  # fmt: skip


def window(runs: Sequence[Run]) -> int:
    """Return the steps of the running mean: a tenth of the training, an odd number."""
    return 2 * (len(runs[0].losses) // 20) + 1


def window_text(runs: Sequence[Run]) -> str:
    """Return what was drawn, in words."""
    seed = runs[0].seed
    return f"seed {seed}, running mean over {window(runs)} steps."


def smooth(losses: Sequence[float], width: int) -> list[float]:
    """Return the mean over `width` steps around each step; fewer at the ends."""
    half = width // 2
    return [fmean(losses[max(0, i - half) : i + half + 1]) for i in range(len(losses))]


def last_tenth(losses: Sequence[float]) -> float:
    """Return the mean over the last tenth of the steps."""
    return fmean(losses[-max(1, len(losses) // 10) :])


def _rows(label: str, runs: Sequence[Run]) -> list[Sequence[Cell]]:
    baseline = _baseline(runs)
    rows: list[Sequence[Cell]] = []
    for run in runs:
        end = last_tenth(run.losses)
        off = None if baseline is None else 100 * (end / last_tenth(baseline.losses) - 1)
        losses = (run.losses[0], fmean(run.losses), end)
        rows.append((label, run.configuration, run.seed, len(run.losses), *losses, off))
    return rows


def _baseline(runs: Sequence[Run]) -> Run | None:
    name = baseline_of(run.configuration for run in runs)
    return next((run for run in runs if run.configuration == name), None)


def _findings(label: str, runs: Sequence[Run]) -> list[Finding]:
    rows = [row for row in _rows(label, runs) if isinstance(row[-1], float)]
    baseline = _baseline(runs)
    if baseline is None or len(rows) < 2:
        return []
    name = baseline.configuration
    worst = max((row for row in rows if row[1] != name), key=lambda row: float(row[-1] or 0))
    text = (
        f"The training loss that is highest above {name}'s at the end is {worst[1]}'s: "
        f"{worst[-1]:+.2f} % in the last tenth of the steps ({label}, one seed)."
    )
    return [Finding(text)]


def _alt(rows: Sequence[Sequence[Cell]]) -> str:
    return "; ".join(f"{row[1]} {row[6]:.4f}" for row in rows)


def _draw(
    canvas: Any, setups: Mapping[Setup, Sequence[Run]], labels: Mapping[Setup, str], looks: Looks
) -> None:
    grid_of_axes = canvas.subplots(len(setups), 2, squeeze=False)
    for (left, right), (setup, runs) in zip(grid_of_axes, setups.items(), strict=True):
        left.set_title(short(labels[setup], 60))
        baseline, width = _baseline(runs), window(runs)
        smooth_baseline = smooth(baseline.losses, width) if baseline else []
        for run in runs:
            look, curve = looks[run.configuration], smooth(run.losses, width)
            steps = range(1, len(curve) + 1)
            style = {"color": look.color, "linestyle": look.dash, "linewidth": 1.5}
            marks = {"marker": look.marker, "markevery": max(1, len(curve) // 6), "markersize": 4.5}
            left.plot(steps, curve, label=short(run.configuration), **style, **marks)
            if baseline and run is not baseline:
                pairs = zip(curve, smooth_baseline, strict=True)
                off = [100 * (ours / theirs - 1) for ours, theirs in pairs]
                right.plot(steps, off, **style, **marks)
        left.set_ylabel("training loss (log loss, nats)")
        if baseline is None:
            right.set_axis_off()
        else:
            right.set_ylabel(f"against {baseline.configuration} [%]")
            right.axhline(0, color=INK, linewidth=1)
        for axes in (left, right) if baseline else (left,):
            grid(axes)
            axes.set_xlabel("step")
        handles, names = left.get_legend_handles_labels()
        right.legend(handles, names, loc="center left", bbox_to_anchor=(1.01, 0.5))
