"""Figures of SC'24, drawn from what sc24.py measured: index, values and drift of the rows.

Knows: numbers by case, the report's figures. Does not know: how they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.papers.dual_level.classes import SMALL
from examples.papers.dual_level.distributions import NUM_BINS, shares_of
from examples.papers.dual_level.ratio import CLASSES
from examples.papers.measurements import Values, read
from examples.papers.pages import Drawing
from trec_qcomm.ext.dual_level.error_bound import BoundClass
from trec_qcomm.lab.report.figure import Figure
from trec_qcomm.lab.report.style import BAND, MUTED, grid, plain_ticks

Cases = Mapping[str, Mapping[str, Values]]  # by optimizer, then by the rest of the case's name
_COLORS = {BoundClass.TIGHT: "#d55e00", BoundClass.BASE: "#a87900", BoundClass.LOOSE: "#0072b2"}
_MARKERS = {BoundClass.TIGHT: "v", BoundClass.BASE: "o", BoundClass.LOOSE: "^"}
_DASHES = {BoundClass.TIGHT: "-", BoundClass.BASE: "--", BoundClass.LOOSE: ":"}
_LINES = (("#0072b2", "o", "-"), ("#d55e00", "s", "--"), ("#009e73", "^", ":"))
_DRIFT = (
    ("index_largest", "index, largest third"),
    ("index", "index, all tables"),
    ("spread", "standard deviation"),
    ("bits", "entropy, bits a value"),
)


def draw(paths: Mapping[str, Path]) -> Drawing:
    """Return the figures of the files of records that are there. Args: paths: by part."""
    tables = _by_optimizer(read(paths["distributions"]))
    shares = _by_optimizer(read(paths["drift"]))
    figures = [homogenization(tables), values(tables)] if tables else []
    return Drawing([*figures, drift(shares)] if shares else figures)


def _by_optimizer(measured: Mapping[str, Values]) -> Cases:
    cases: dict[str, dict[str, Values]] = {}
    for name, numbers in measured.items():
        optimizer, _, rest = name.partition(", ")
        cases.setdefault(optimizer, {})[rest] = numbers
    return cases


def _class(table: Values) -> BoundClass:
    return CLASSES.of_index(table["index"])


def homogenization(tables: Cases) -> Figure:
    """Return the index of each table against its size."""
    return Figure(
        key="homogenization",
        title="Homogenization index of each table, by its size",
        caption=(
            "A dot a table: the share of its distinct rows that stay distinct when they are "
            f"quantized at the bound {CLASSES.base:g}, the mean over batches of 2048 samples after "
            "the training. The lower, the tighter its bound; lines are the thresholds of the "
            f"classes, the band has the sizes ({SMALL[0]} to {SMALL[1]} rows) that are loose in "
            "the artefact."
        ),
        alt=f"Index against number of rows, with {', '.join(tables)}",
        columns=("optimizer", "table", "rows", "index", "class"),
        rows=[
            (name, table, int(v["num_rows"]), v["index"], _class(v).name.lower())
            for name, by_table in tables.items() for table, v in by_table.items()
        ],
        draw=lambda canvas: _draw_homogenization(canvas, tables),
        size=(9.2, 3.4),
    )  # fmt: skip


def _draw_homogenization(canvas: Any, tables: Cases) -> None:
    panels = canvas.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, (optimizer, by_table) in zip(panels, tables.items(), strict=True):
        axes.set_title(optimizer)
        axes.axvspan(*SMALL, color=BAND, linewidth=0, zorder=0)
        for threshold in (CLASSES.tight_below, CLASSES.loose_from):
            axes.axhline(threshold, color=MUTED, linewidth=1, linestyle="--")
        for kind in BoundClass:
            members = [v for v in by_table.values() if _class(v) is kind]
            axes.plot(
                [v["num_rows"] for v in members], [v["index"] for v in members], _MARKERS[kind],
                color=_COLORS[kind], label=f"{kind.name.lower()} ({len(members)} tables)",
            )  # fmt: skip
        axes.set_xscale("log")
        plain_ticks(axes.xaxis, subs=(1,))
        axes.set_ylim(0, 1.05)
        axes.set_xlabel("rows of the table")
        axes.legend(loc="lower left")
        grid(axes)
    panels[0].set_ylabel("homogenization index")


def values(tables: Cases) -> Figure:
    """Return how values lie, the mean over the tables of each class."""
    shares = {
        (optimizer, kind): np.mean(members, axis=0)
        for optimizer, by_table in tables.items()
        for kind in BoundClass
        if (members := [shares_of(v) for v in by_table.values() if _class(v) is kind])
    }
    middles = np.linspace(-1, 1, NUM_BINS + 1)[:-1] + 1 / NUM_BINS
    return Figure(
        key="values",
        title="How values of rows lie, by class of the tables",
        caption=(
            "The share of the values in each of "
            f"{NUM_BINS} bins between minus and plus the largest magnitude of a table's rows, the "
            "mean over the tables of a class, of every row that the last samples look up after the "
            "training. Tables start with uniform values, a flat line."
        ),
        alt=f"Histograms of values with {', '.join(tables)}, a line a class",
        columns=("optimizer", "class", "value", "share"),
        rows=[
            (optimizer, kind.name.lower(), float(x), float(y))
            for (optimizer, kind), each in shares.items()
            for x, y in zip(middles, each, strict=True)
        ],
        draw=lambda canvas: _draw_values(canvas, list(tables), shares, middles),
        size=(9.2, 3.2),
    )


def _draw_values(
    canvas: Any,
    optimizers: Sequence[str],
    shares: Mapping[tuple[str, BoundClass], np.ndarray],
    middles: np.ndarray,
) -> None:
    panels = canvas.subplots(1, len(optimizers), squeeze=False)[0]
    for axes, optimizer in zip(panels, optimizers, strict=True):
        axes.set_title(optimizer)
        for kind in BoundClass:
            if (optimizer, kind) in shares:
                axes.step(
                    middles, shares[optimizer, kind], where="mid", color=_COLORS[kind],
                    linestyle=_DASHES[kind], label=kind.name.lower(),
                )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.set_xlabel("value over the largest of its table")
        axes.legend()
        grid(axes)
    panels[0].set_ylabel("share of the values")


def drift(shares: Cases) -> Figure:
    """Return index, spread and entropy while the training goes on."""
    return Figure(
        key="drift",
        title="Index, spread and entropy of rows while a training goes on",
        caption=(
            "Of the rows that the training's last samples look up, after a share of the training: "
            "the homogenization index of the third of the tables with the most rows and of all, "
            "the standard deviation of values, and the entropy of the integers at the bound "
            f"{CLASSES.base:g}, means over tables."
        ),
        alt=f"Four panels by share of the training, with {', '.join(shares)}",
        columns=("optimizer", "share of the training", *(label for _, label in _DRIFT)),
        rows=[
            (optimizer, float(share), *(v[key] for key, _ in _DRIFT))
            for optimizer, by_share in shares.items() for share, v in by_share.items()
        ],
        draw=lambda canvas: _draw_drift(canvas, shares),
        size=(9.2, 4.8),
    )  # fmt: skip


def _draw_drift(canvas: Any, shares: Cases) -> None:
    panels = canvas.subplots(2, 2, sharex=True)
    for axes, (key, label) in zip(panels.flat, _DRIFT, strict=True):
        for look, (optimizer, by_share) in zip(_LINES, shares.items(), strict=False):
            color, marker, dash = look
            axes.plot(
                [float(share) for share in by_share], [v[key] for v in by_share.values()],
                color=color, marker=marker, linestyle=dash, label=optimizer,
            )  # fmt: skip
        axes.set_title(label)
        axes.set_ylim(0, 1.1 * max(v[key] for each in shares.values() for v in each.values()))
        grid(axes)
    panels[0, 0].legend()
    for axes in panels[-1]:
        axes.set_xlabel("share of the training")
