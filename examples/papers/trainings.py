"""The parts that train: paired trainings of the Criteo example, judged from their records.

Knows: quality.study, the emulated trainings of examples/criteo. Does not know: papers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from examples.papers.claims import OPEN, Claim, Source
from examples.papers.decisions import Changes, Decision, all_of, no_loss
from examples.papers.parts import RESULTS, Request
from trec_qcomm import Config, quality
from trec_qcomm.lab import records
from trec_qcomm.lab.records import LimitsByMetric, StudyRecord
from trec_qcomm.lab.study.gates import BASELINE, Verdict
from trec_qcomm.lab.study.verdicts import Rules, judge

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples" / "criteo")]  # whose scripts import by name

LIMITS: LimitsByMetric = {"logloss": quality.TRAINING, "progressive_logloss": quality.TRAINING}
SHORT = {"logloss": "test", "progressive_logloss": "progressive"}


@dataclass(frozen=True)
class Judged:
    """What the records of a study say.

    Args:
        verdicts: verdict by name of a configuration; only those that have records.
        records: the records.
        rules: limits of the study.
    """

    verdicts: Mapping[str, Verdict]
    records: Sequence[StudyRecord]
    rules: Rules = field(default_factory=lambda: Rules(LIMITS, {}))

    def changes(self, name: str, against: str = BASELINE) -> Changes:
        """Return the paired changes of a configuration against another one, in percent.

        They are empty where the two have no seed in common.
        """
        ours, base = (
            [r for r in self.records if r.configuration == configuration]
            for configuration in (name, against)
        )
        verdict = judge(ours, base, self.rules, "training")
        return {} if verdict is None else verdict.changes

    def no_loss(
        self, text: str, *, source: Source, setting: str, names: Sequence[str], note: str = ""
    ) -> list[Claim]:
        """Return the claim that configurations cost nothing; none where no records are there.

        Args:
            text, source: what Claim has by these names.
            setting: model, rows and ranks; the number of seeds is added.
            names: configurations, each of which has to keep the limits.
            note: what else there is to say, after what it would take to tell more.
        """
        there = [name for name in names if name in self.verdicts]
        if not there:
            return []
        decisions = [no_loss(self.verdicts[name].changes) for name in there]
        missing = [name for name in names if name not in there]
        decisions += [Decision(OPEN, f"trainings of {name}") for name in missing]
        return [
            claim_of(
                all_of(decisions), text, source=source,
                setting=f"{setting}; {self.seeds(there)}",
                result="<br>".join(f"`{n}`: {as_text(self.verdicts[n].changes)}" for n in there),
                note=note,
            )
        ]  # fmt: skip

    def seeds(self, names: Sequence[str]) -> str:
        """Return how many seeds configurations have, as text."""
        return seeds_of([self.verdicts[name].num_seeds for name in names])


def seeds_of(numbers: Sequence[int]) -> str:
    """Return the smallest and the largest number of seeds as text, or the only one."""
    text = " to ".join(str(n) for n in dict.fromkeys((min(numbers), max(numbers))))
    return f"{text} seed{'s' * (max(numbers) > 1)}"


def as_text(changes: Changes) -> str:
    """Return changes with their 95 % intervals, in percent, for a table."""
    return ", ".join(
        f"{SHORT.get(name, name)} {change.mean:+.3f}"
        + (f" [{change.low:+.3f}, {change.high:+.3f}]" if change.low is not None else "")
        for name, change in changes.items()
    )


def claim_of(
    decision: Decision, text: str, *, source: Source, setting: str, result: str, note: str = ""
) -> Claim:
    """Return a claim with a decision. Args: note: what comes after its `to_tell`."""
    to_tell = "; ".join(part for part in (decision.to_tell, note) if part)
    return Claim(
        text=text, source=source, setting=setting, result=result,
        verdict=decision.verdict, to_tell=to_tell,
    )  # fmt: skip


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
        return Judged(verdicts, there, rules)
