"""The picture of lifespan.py: loss, rungs and bytes over the steps, a column for each drift.

Knows: lives, matplotlib. Does not know: how to train.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from life.lives import Lives
from trec_qcomm.lab.report.style import Looks, grid, matplotlib, plain_ticks

NAMES = ("null", "fixed", "guard")
SMOOTHED = 10  # steps
WIDTH, HEIGHT = 3.4, 7.0  # inches of a column


def plot(lives: Lives, path: Path) -> None:
    """Draw all drifts; of several seeds the mean, and the rungs of the first one."""
    drifts = [drift for drift in lives.drifts if lives.of_drift(drift, "fp32")]
    if not drifts:
        return
    pyplot = matplotlib().pyplot
    figure, axes = pyplot.subplots(
        3, len(drifts), figsize=(WIDTH * len(drifts), HEIGHT), sharex=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    looks = Looks(["fp32", *NAMES])
    for column, drift in zip(axes.T, drifts, strict=True):
        column[0].set_title(drift)
        _draw_losses(column[0], lives, drift, looks)
        _draw_rungs(column[1], lives, drift)
        _draw_bytes(column[2], lives, drift, looks)
        column[2].set_xlabel("step")
        for axis in column:
            grid(axis)
            if drift != "none":
                axis.axvline(_at_step(lives, drift), color="#59636e", linewidth=0.8)
    for axis, label in zip(
        axes[:, 0],
        ("training loss, % from float32", "rung", "rows and gradients, KB a step"),
        strict=True,
    ):
        axis.set_ylabel(label)
    axes[0, 0].legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _at_step(lives: Lives, drift: str) -> int:
    return int(next(iter(lives.of_drift(drift, "fp32").values())).setup["at_step"])


def _draw_losses(axis: Any, lives: Lives, drift: str, looks: Looks) -> None:
    """Draw the change of the training's loss, smoothed."""
    exact = lives.of_drift(drift, "fp32")
    for name in NAMES:
        changes = [
            100 * (_smooth(record.losses) / _smooth(exact[seed].losses) - 1)
            for seed, record in lives.of_drift(drift, name).items()
            if seed in exact
        ]
        if changes:
            mean = np.mean(changes, axis=0)
            look = looks[name]
            steps = np.arange(len(mean)) + SMOOTHED
            axis.plot(steps, mean, color=look.color, linestyle=look.dash, label=name)
    axis.set_yscale("symlog", linthresh=0.1)


def _draw_rungs(axis: Any, lives: Lives, drift: str) -> None:
    """Draw the rungs of the tables that were moved, in the first seed's training."""
    seed = min(lives.of_drift(drift, "guard"), default=None)
    probes = lives.probes[f"{drift} guard {seed}"]
    moved = [
        t for t in (probes[0].forward if probes else ()) if len({p.forward[t] for p in probes}) > 1
    ]
    for table in moved:
        steps, rungs = zip(*((p.step, p.forward[table]) for p in probes), strict=True)
        axis.step(steps, rungs, where="post", label=table)
    axis.yaxis.get_major_locator().set_params(integer=True)
    if moved:
        axis.legend(ncols=2)
    else:
        axis.text(0.5, 0.5, "no table moved", transform=axis.transAxes, ha="center")


def _draw_bytes(axis: Any, lives: Lives, drift: str, looks: Looks) -> None:
    """Draw the bytes of rows and gradients of a step."""
    for name in ("fp32", "fixed", "guard"):
        seeds = lives.of_drift(drift, name)
        lines = [lives.nbytes(f"{drift} {name} {seed}") for seed in seeds]
        lines = [line for line in lines if len(line[0])]
        if lines:
            mean = np.mean([nbytes for _, nbytes in lines], axis=0) / 1e3
            look = looks[name]
            axis.plot(lines[0][0], mean, color=look.color, linestyle=look.dash, label=name)
    axis.set_yscale("log")
    plain_ticks(axis.yaxis)


def _smooth(losses: tuple[float, ...]) -> NDArray[np.float64]:
    return np.convolve(losses, np.ones(SMOOTHED) / SMOOTHED, "valid")
