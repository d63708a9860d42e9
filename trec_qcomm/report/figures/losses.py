"""Loss curves: the training loss step by step, and how far it is from the baseline's.

Runs of a setup see the same rows in the same order, so the difference to the baseline at a step is
one of the training and not of the rows.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from trec_qcomm.report.figure import Cell, Figure, Finding, short
from trec_qcomm.report.runs import Run, Setup, base_of, by_setup, setup_labels, ways_of
from trec_qcomm.report.style import INK, Looks, grid


def build(runs: Sequence[Run], looks: Looks) -> list[Figure]:
    """One figure, two panels a setup."""
    setups = {setup: one_each(own) for setup, own in by_setup(runs).items()}
    setups = {setup: own for setup, own in setups.items() if own}
    if not setups:
        return []
    labels = setup_labels(list(setups))
    rows = [row for setup, own in setups.items() for row in _rows(labels[setup], own)]
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
            notes=[f"{labels[s]}: {window_text(own)}" for s, own in setups.items()],
            findings=[f for setup, own in setups.items() for f in _findings(labels[setup], own)],
        )
    ]  # fmt: skip


def one_each(runs: Sequence[Run]) -> list[Run]:
    """A run a way, those of equal seed and length; the slowest link, as losses are the same."""
    with_losses = [run for run in runs if run.losses]
    seeds = [run.seed for run in with_losses]
    seed = max(seeds, key=seeds.count, default=0)
    same = [run for run in with_losses if run.seed == seed]
    longest = max((len(run.losses) for run in same), default=0)
    return [
        next(run for run in own if len(run.losses) == longest)
        for own in ways_of(same).values() if any(len(run.losses) == longest for run in own)
    ]  # fmt: skip


def window(runs: Sequence[Run]) -> int:
    """Steps of the running mean: a tenth of the training, an odd number."""
    return 2 * (len(runs[0].losses) // 20) + 1


def window_text(runs: Sequence[Run]) -> str:
    """What was drawn."""
    seed = runs[0].seed
    return f"seed {seed}, running mean over {window(runs)} steps."


def smooth(losses: Sequence[float], width: int) -> list[float]:
    """Means over `width` steps around each; fewer at the ends."""
    half = width // 2
    return [fmean(losses[max(0, i - half) : i + half + 1]) for i in range(len(losses))]


def last_tenth(losses: Sequence[float]) -> float:
    """The mean over the last tenth of the steps."""
    return fmean(losses[-max(1, len(losses) // 10) :])


def _rows(label: str, runs: Sequence[Run]) -> list[Sequence[Cell]]:
    base = _base(runs)
    rows: list[Sequence[Cell]] = []
    for run in runs:
        end = last_tenth(run.losses)
        off = None if base is None else 100 * (end / last_tenth(base.losses) - 1)
        losses = (run.losses[0], fmean(run.losses), end)
        rows.append((label, run.way, run.seed, len(run.losses), *losses, off))
    return rows


def _base(runs: Sequence[Run]) -> Run | None:
    return next((run for run in runs if run.way == base_of(r.way for r in runs)), None)


def _findings(label: str, runs: Sequence[Run]) -> list[Finding]:
    rows = [row for row in _rows(label, runs) if isinstance(row[-1], float)]
    base = _base(runs)
    if base is None or len(rows) < 2:
        return []
    worst = max((row for row in rows if row[1] != base.way), key=lambda row: float(row[-1] or 0))
    text = (
        f"The training loss that is highest above {base.way}'s at the end is {worst[1]}'s: "
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
        base, width = _base(runs), window(runs)
        smooth_base = smooth(base.losses, width) if base else []
        for run in runs:
            look, curve = looks[run.way], smooth(run.losses, width)
            steps = range(1, len(curve) + 1)
            style = {"color": look.color, "linestyle": look.dash, "linewidth": 1.5}
            marks = {"marker": look.marker, "markevery": max(1, len(curve) // 6), "markersize": 4.5}
            left.plot(steps, curve, label=short(run.way), **style, **marks)
            if base and run is not base:
                off = [100 * (own / its - 1) for own, its in zip(curve, smooth_base, strict=True)]
                right.plot(steps, off, **style, **marks)
        left.set_ylabel("training loss (log loss, nats)")
        if base is None:
            right.set_axis_off()
        else:
            right.set_ylabel(f"against {base.way} [%]")
            right.axhline(0, color=INK, linewidth=1)
        for axes in (left, right) if base else (left,):
            grid(axes)
            axes.set_xlabel("step")
        handles, names = left.get_legend_handles_labels()
        right.legend(handles, names, loc="center left", bbox_to_anchor=(1.01, 0.5))
