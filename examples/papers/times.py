"""How long the trainings of the papers' scripts took, from the committed records.

Knows: parts, seconds of trainings. Does not know: claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from examples.papers.parts import Paper, Part
from examples.papers.tool_chain.recorded import RecordedPart
from examples.papers.trainings import TrainingPart
from trec_qcomm.lab import records
from trec_qcomm.lab.records import StudyRecord
from trec_qcomm.lab.study.gates import BASELINE, NULL

CORES = 2
HEAD = ("script", "part", "trainings in its records", f"hours on {CORES} cores")


def table(papers: Iterable[Paper]) -> str:
    """Return markdown, a line for each part whose records have the seconds of trainings."""
    rows = [
        (f"`{paper.name}.py`", f"`{part.name}`", str(len(each)), f"{_hours(each):.1f}")
        for paper in papers for part in paper.parts if (each := seconds(part))
    ]  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in (HEAD, ("---",) * len(HEAD), *rows))


def seconds(part: Part) -> list[float]:
    """Return the seconds of the trainings of a part's configurations, and of float32's two.

    Those of one file that several parts read count for each of them.
    """
    if isinstance(part, TrainingPart):
        names = {BASELINE, NULL, *part.configs()}
        return [s for name, s in _seconds([part.committed]) if name in names]
    if isinstance(part, RecordedPart):
        return [s for _, s in _seconds([part.committed / name for name in part.trained])]
    return []


def _seconds(paths: Sequence[Path]) -> list[tuple[str, float]]:
    """Return configuration and seconds of each training; those without seconds are left out."""
    return [
        (record.configuration, record.seconds)
        for path in paths for record in records.read(path)
        if isinstance(record, StudyRecord) and record.training is not None and record.seconds
    ]  # fmt: skip


def _hours(each: Sequence[float]) -> float:
    return sum(each) / CORES / 3600
