"""Figures of the numeric debugger: where precision is lost, how errors lie, what others would do.

heat.py has decibels of tables by step, distributions.py errors and norms of the noisiest tables,
shadows.py decibels against bits. A run is the debug records of one folder.
"""

from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.lab.debug.recorded.run import DebugRun
from trec_qcomm.lab.records import DebugRecord, Record
from trec_qcomm.lab.report.figure import Figure
from trec_qcomm.lab.report.figures.debug import distributions, heat, shadows


def build(records: Sequence[Record]) -> list[Figure]:
    """Return up to three figures for each run."""
    by_folder: dict[str, list[DebugRecord]] = {}
    for record in records:
        if isinstance(record, DebugRecord):
            folder = "" if record.origin is None else str(Path(record.origin.file).parent)
            by_folder.setdefault(folder, []).append(record)
    figures = []
    for number, (folder, members) in enumerate(by_folder.items(), start=1):
        run = DebugRun(folder, members)
        title = f": {Path(folder).name}" if len(by_folder) > 1 else ""
        suffix = f"-{number}" if number > 1 else ""
        for part in (heat, distributions, shadows):
            figures += part.build(run, title=title, suffix=suffix)
    return figures
