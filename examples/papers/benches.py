"""The parts that read what a bench of this repository has recorded.

Knows: records of whole trainings on emulated networks. Does not know: papers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.papers.claims import Claim
from examples.papers.parts import Request
from trec_qcomm.lab import records
from trec_qcomm.lab.records import NetworkRecord


@dataclass(frozen=True)
class BenchPart:
    """An experiment that another command measures; a Part of a paper's script.

    Args:
        name: name of the part.
        title: what it measures, and by which command.
        decide: records -> claims.
        committed: file of the committed records.
    """

    name: str
    title: str
    decide: Callable[[Sequence[NetworkRecord]], list[Claim]]
    committed: Path

    def run(self, path: Path, request: Request) -> None:
        """Measure nothing; the title says which command does."""

    def claims(self, path: Path) -> list[Claim]:
        if not path.exists():
            return []
        return self.decide([r for r in records.read(path) if isinstance(r, NetworkRecord)])
