"""The parts that train: paired trainings of the Criteo example, judged from their records.

Knows: quality.study, the emulated trainings of examples/criteo. Does not know: papers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from examples.papers.claims import Claim
from examples.papers.parts import RESULTS, Request
from trec_qcomm import Config, quality, records
from trec_qcomm.records import LimitsByMetric, StudyRecord
from trec_qcomm.report.gates import BASELINE, Verdict
from trec_qcomm.report.verdicts import Rules, judge

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples" / "criteo")]  # whose scripts import by name

LIMITS: LimitsByMetric = {"logloss": quality.TRAINING, "progressive_logloss": quality.TRAINING}


@dataclass(frozen=True)
class Judged:
    """What the records of a study say.

    Args:
        verdicts: verdict by name of a configuration; only those that have records.
        records: the records.
    """

    verdicts: Mapping[str, Verdict]
    records: Sequence[StudyRecord]


@dataclass(frozen=True)
class TrainingPart:
    """An experiment of paired trainings; a Part of a paper's script.

    Args:
        name: name of the part.
        title: what it measures and how long that takes.
        configs: configs by name.
        decide: what the records say -> claims.
        seeds: number of seeds of the table.
        words: options of train.py; those of the command line come after them.
        committed: file of the committed records.
        limits: limits of the trainings' metrics; None shows a metric that does not count.
        evaluation: limits of float32's model with the codecs on.
    """

    name: str
    title: str
    configs: Callable[[], Mapping[str, Config]]
    decide: Callable[[Judged], list[Claim]]
    seeds: int
    words: Sequence[str] = ()
    committed: Path = RESULTS
    limits: LimitsByMetric = field(default_factory=lambda: LIMITS)
    evaluation: LimitsByMetric | None = None

    def run(self, path: Path, request: Request) -> None:
        """Train what is missing. Raises ValueError: see quality.study and EmulatedTrainer."""
        from emulation.client import EmulatedTrainer

        train = EmulatedTrainer.from_words([*self.words, *request.words])
        configs = self.configs()
        train.check(configs)
        quality.study(
            train=train, configs=configs, seeds=request.seeds or self.seeds, limits=self.limits,
            evaluation=self.evaluation, setup=train.setup, num_ranks=train.options.ranks,
            jobs=request.jobs, path=path, name=self.name,
        )  # fmt: skip

    def claims(self, path: Path) -> list[Claim]:
        judged = self.judged(path)
        return self.decide(judged) if judged.verdicts else []

    def judged(self, path: Path) -> Judged:
        """Return what a file of records says of this part's configurations."""
        there = (
            [r for r in records.read(path) if isinstance(r, StudyRecord)] if path.exists() else []
        )
        rules = Rules(self.limits, self.evaluation or {})
        base = [r for r in there if r.configuration == BASELINE]
        verdicts = {}
        for name in self.configs():
            ours = [r for r in there if r.configuration == name]
            verdict = judge(ours, base, rules, "training") if ours else None
            if verdict is not None:
                verdicts[name] = verdict
        return Judged(verdicts, there)
