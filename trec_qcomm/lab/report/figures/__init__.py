"""Figures: a file for each subject. A figure is a function of records.

Knows: records and runs. A new kind of figure is a function here or in a file of its own, and a line
in figures_of.
"""

from collections.abc import Sequence

from trec_qcomm.lab.records import Record
from trec_qcomm.lab.report.figure import Figure
from trec_qcomm.lab.report.figures import debug, guard, losses, network, quality, search
from trec_qcomm.lab.report.runs import runs_of
from trec_qcomm.lab.report.style import Looks


def figures_of(records: Sequence[Record]) -> list[Figure]:
    """Return all figures that the records make, in the order of the page."""
    runs = runs_of(records)
    looks = Looks(run.configuration for run in runs)
    of_runs = (
        quality.rate_distortion(records, runs, looks),
        network.step_time(runs, looks),
        network.traffic(runs),
        losses.curves(runs, looks),
    )
    return [
        *quality.intervals(records),
        *filter(None, of_runs),
        *debug.debug_runs(records),
        *guard.timelines(records),
        *search.plans(records),
    ]
