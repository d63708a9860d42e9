"""The generated tables of README.md: the claims of each paper, and the studies that decide them.

Knows: papers, seconds of trainings in records. Does not know: verdicts.
Each table lies between two comments of the page, of which the first names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from examples.papers.claims import GONE, HEAD, Paper, Study, table
from examples.papers.rules.trainings import trainings_of
from trec_qcomm.lab.study.gates import BASELINE, NULL

PAGE = Path(__file__).with_name("README.md")
CORES = 2
STUDIES_HEAD = (
    "paper", "study", "what it measures", "anew by", "trainings", f"hours on {CORES} cores",
)  # fmt: skip
END = "<!-- end -->\n"


def generated(text: str, papers: Sequence[Paper]) -> str:
    """Return the page with all tables made anew. Raises ValueError: a comment is absent."""
    for paper in papers:
        text = _replaced(text, f"<!-- claims of {paper.name} -->\n", table(HEAD, paper.rows()))
    return _replaced(text, "<!-- generated studies -->\n", studies_table(papers))


def studies_table(papers: Sequence[Paper]) -> str:
    """Return a line for each study: how to measure it anew, and what its trainings took."""
    rows = []
    for paper in papers:
        for name, study in paper.studies.items():
            each = seconds(paper, name)
            took = (str(len(each)), f"{sum(each) / CORES / 3600:.1f}") if each else ("-", "-")
            rows.append((f"`{paper.name}`", f"`{name}`", study.about, _anew_by(study), *took))
    return table(STUDIES_HEAD, rows)


def seconds(paper: Paper, study: str) -> list[float]:
    """Return the seconds of the trainings of a study's configurations, and of float32's two.

    Those of one file that several studies read count for each of them.
    """
    how = paper.studies[study]
    names = {BASELINE, NULL, *paper.configurations(study)} if how.run == "train" else None
    paths = [how.committed] if names else [how.committed / file for file in how.timed]
    return [
        record.seconds
        for path in paths for record in trainings_of(path)
        if record.training is not None and record.seconds
        and (names is None or record.configuration in names)
    ]  # fmt: skip


def _anew_by(study: Study) -> str:
    if study.run:
        return "`--run`"
    return study.made_by or f"records only: {study.was_made_by} at {GONE}"


def _replaced(text: str, mark: str, lines: str) -> str:
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: expected {mark.strip()} ... {END.strip()}")
    return f"{before}{mark}{lines}\n{END}{after}"
