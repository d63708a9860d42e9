"""Figures: one file for each kind, first what its records say (plain numbers), then the drawing.

Knows: records and runs. A new kind is a file here, or in a folder of its own, and a line in
FIGURE_KINDS.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trec_qcomm.lab.records import Record
from trec_qcomm.lab.report.figure import Figure
from trec_qcomm.lab.report.figures import (
    codecs,
    debug,
    guard,
    losses,
    search,
    simulation,
    step_time,
    tables,
    traffic,
)
from trec_qcomm.lab.report.figures.quality import intervals, joined, rate_distortion
from trec_qcomm.lab.report.runs import Run
from trec_qcomm.lab.report.style import Looks

Builder = Callable[[Sequence[Record], Sequence[Run], Looks], list[Figure]]


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure. Args: needs: what makes its records, said where there are none."""

    name: str
    needs: str
    build: Builder


FIGURE_KINDS = (
    FigureKind(
        "quality of each configuration",
        "a study (make accuracy)",
        lambda records, runs, looks: intervals.build(records),
    ),
    FigureKind(
        "quality against bytes",
        "a study (make accuracy) and runs of equal configs (make bench-net), or several trainings "
        "of one setup with a baseline, stock or fp32, beside",
        rate_distortion.build,
    ),
    FigureKind(
        "step time against link rate",
        "runs on networks (make bench-net)",
        lambda records, runs, looks: step_time.build(
            runs, looks, joined.passing(records, runs)
        ),
    ),
    FigureKind(
        "bytes by kind of traffic",
        "trainings with the plugin (records.TrainingRecord, make bench-net)",
        lambda records, runs, looks: traffic.build(runs, joined.passing(records, runs)),
    ),
    FigureKind(
        "loss curves",
        "trainings with their losses (records.TrainingRecord, make bench-net)",
        lambda records, runs, looks: losses.build(runs, looks),
    ),
    FigureKind(
        "bits, bounds and ratio by table",
        "trainings with traffic by table (records.TrainingRecord)",
        lambda records, runs, looks: tables.build(runs),
    ),
    FigureKind(
        "codec throughput",
        "codec records (make bench-codec)",
        lambda records, runs, looks: codecs.build(records),
    ),
    FigureKind(
        "numeric debugger",
        "debug records (`debug:` in a config, or with qcomm.debug(...))",
        lambda records, runs, looks: debug.build(records),
    ),
    FigureKind(
        "timeline of the guard",
        "guard records (`guard:` in a config, and qcomm.guard(...))",
        lambda records, runs, looks: guard.build(records),
    ),
    FigureKind(
        "plans of a search",
        "plans.jsonl of a search (python -m trec_qcomm search)",
        lambda records, runs, looks: search.build(records),
    ),
    FigureKind(
        "predictions of the model",
        "predictions (python -m trec_qcomm simulate --out FILE)",
        lambda records, runs, looks: simulation.build(records, looks),
    ),
)  # fmt: skip
