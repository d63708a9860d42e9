"""Figures of the tool chain: attribution, plans of the search, and what the guard did.

Knows: folders of records, the report's figures. Does not know: how they were made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from attribution import rank_correlation, read_effects, read_truth

from examples.papers.pages import Drawing
from trec_qcomm.lab import records
from trec_qcomm.lab.records import Record, StudyRecord
from trec_qcomm.lab.report.figure import Figure
from trec_qcomm.lab.report.figures import guard, search
from trec_qcomm.lab.report.figures.quality import intervals
from trec_qcomm.lab.report.style import INK, MUTED, OURS, grid

_TRUTH = "#d55e00"
_JUDGED = ("gate.jsonl", "served.jsonl")


def draw(paths: Mapping[str, Path]) -> Drawing:
    """Return what was seen, chosen and guarded.

    Args: paths: file of each part; the folder of its records is the path without the suffix.
    """
    folders = {name: path.with_suffix("") for name, path in paths.items()}
    seen = [folders["see"] / name for name in ("attribution.jsonl", "trainings.jsonl")]
    # The search's own folder, or the one where the committed records lie.
    plans = _read([*sorted((folders["choose"] / "search").glob("*.jsonl")),
                   folders["choose"] / "plans.jsonl"])  # fmt: skip
    judged = [r for r in _read([folders["choose"] / name for name in _JUDGED])
              if isinstance(r, StudyRecord)]  # fmt: skip
    guarded = _read(sorted(folders["guard"].glob("*.jsonl")))
    figures = [attribution(*seen)] if all(path.exists() for path in seen) else []
    figures += [*search.build(plans), *intervals.build(judged), *guard.build(guarded)]
    return Drawing(figures, [*_read(seen), *plans, *judged, *guarded])


def _read(paths: Sequence[Path]) -> list[Record]:
    return [record for path in paths if path.exists() for record in records.read(path)]


def attribution(effects_path: Path, truth_path: Path) -> Figure:
    """Return what each table's codec adds to the loss, beside a training for each table."""
    effects = read_effects(effects_path)["float32"]
    truth = read_truth(truth_path)
    real = {table: mean(changes) for table, changes in truth.items()}
    order = sorted(effects, key=effects.__getitem__)
    correlation = ""
    if len(real) > 3:  # fewer have no interval
        correlation = " Rank correlation {:.2f} [{:.2f}, {:.2f}].".format(
            *rank_correlation(effects, real)
        )
    return Figure(
        key="attribution",
        title="Which tables' codecs cost loss",
        caption=(
            "Left: what the codec of each table adds to the loss of a model that was trained in "
            "float32. Right: the change of the test's NE of trainings in which that table alone is "
            f"coded, a dot a seed, a bar for the mean.{correlation}"
        ),
        alt=f"Added loss and change of NE of {len(order)} tables",
        columns=("table", "added loss", "NE of trainings [%]", "seeds"),
        rows=[(t, effects[t], real.get(t), len(truth.get(t, ())) or None)
              for t in reversed(order)],
        draw=lambda canvas: _draw(canvas, order, effects, truth),
        size=(8.5, 1.2 + 0.2 * len(order)),
    )  # fmt: skip


def _draw(
    canvas: Any,
    order: Sequence[str],
    effects: Mapping[str, float],
    truth: Mapping[str, Sequence[float]],
) -> None:
    left, right = canvas.subplots(1, 2, sharey=True)
    places = range(len(order))
    left.barh(places, [effects[table] for table in order], color=OURS)
    left.set_yticks(places, order)
    left.set_xlabel("added loss")
    for place, table in zip(places, order, strict=True):
        changes = truth.get(table, ())
        right.plot(changes, [place] * len(changes), ".", color=MUTED)
        if changes:
            right.plot([mean(changes)], [place], "|", color=_TRUTH, markersize=10)
    right.set_xlabel("change of the test's NE [%]")
    for axes in (left, right):
        axes.axvline(0, color=INK, linewidth=1)
        grid(axes, "x")
