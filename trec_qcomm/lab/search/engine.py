"""Search, stage by stage: probes, calibration, plans, joint verification, steps back.

Knows: the stages and their files. Does not know: models, data, command lines.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any

from trec_qcomm.config import Config, UniqueBagsChoice, config_to_dict, write_yaml
from trec_qcomm.lab import records
from trec_qcomm.lab import study as quality
from trec_qcomm.lab.records import Environment, LimitsByMetric, SearchRecord
from trec_qcomm.lab.search.calibration import Calibration, to_calibrate
from trec_qcomm.lab.search.candidates import Candidates
from trec_qcomm.lab.search.choices import Pair, best, config_of
from trec_qcomm.lab.search.losses import LossModel, corrected, guessed
from trec_qcomm.lab.search.noise import Measured
from trec_qcomm.lab.search.plans import Plan, Planner, cost_of
from trec_qcomm.lab.search.probes import COARSE, Probes
from trec_qcomm.lab.study import Limits, StudyResult
from trec_qcomm.lab.study.progress import Progress

UPPER = 2.5  # upper limit of a verified change over the limit of its mean, as in quality.TRAINING
BUDGETS = {"half": 0.5, "plan": 1.0, "twice": 2.0}
FAR = 1000  # from the seeds of one stage to those of the next
FRONT = (0.03, 0.06, 0.12, 0.25, 4.0, 8.0)  # more shares of the budget, for the figure


class NotDecidableError(ValueError):
    """Error: the budget is below the noise of so many seeds."""


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Seeds of the stages; `trec_qcomm.search` explains the numbers."""

    first: int
    num_probes: int
    num_calibration: int
    num_verification: int
    rounds: int

    @property
    def probes(self) -> Sequence[int]:
        """Seeds of the float32 trainings."""
        return range(self.first, self.first + self.num_probes)

    @property
    def calibration(self) -> Sequence[int]:
        """Seeds of the trainings with coarse codecs."""
        return range(self.first, self.first + self.num_calibration)

    @property
    def verification(self) -> Sequence[Sequence[int]]:
        """Seeds of each verification, which no other stage uses."""
        starts = (self.first + FAR * number for number in range(1, self.rounds + 1))
        return [range(start, start + self.num_verification) for start in starts]


@dataclass(frozen=True)
class Search:
    """Settings of a search; `trec_qcomm.search` explains them and makes it."""

    candidates: Candidates
    budget: float
    folder: Path
    metrics: Sequence[str]
    evaluation: LimitsByMetric
    base: Config
    baseline: Any
    unique_bags: UniqueBagsChoice
    link_gb_s: float | None
    seeds: Seeds
    use: float
    every: int
    study_options: Mapping[str, Any]  # arguments of quality.study

    def run(self, progress: Progress) -> tuple[LossModel, dict[str, Plan]]:
        """Run missing parts of all stages; return the loss model, and the plans by name.

        Raises:
            ValueError: a candidate does not take a table's rows, or a file of another search.
            NotDecidableError: the budget is below the noise of a verification.
        """
        measured = self.measure(progress)
        dims = {table: noise.dim for (table, _, _), noise in measured.noise.items()}
        self.candidates.check_dims(dims)
        model = self.fit(measured)
        planner = self.planner(model)
        plans = {name: self._plan(planner, name, share) for name, share in BUDGETS.items()}
        plans = self.verify(planner, plans, progress)
        self.write_plans(planner, plans.values())
        return model, plans

    def planner(self, model: LossModel) -> Planner:
        """Return the planner, which makes plans by expected losses."""
        return Planner(model, self.candidates, self.link_gb_s)

    def measure(self, progress: Progress) -> Measured:
        """Return the results of the probes; run missing probes."""
        options = {name: self.study_options[name] for name in ("train", "setup", "num_ranks")}
        return Probes(
            candidates=self.candidates, path=self.folder / "probes.jsonl", seeds=self.seeds.probes,
            metrics=self.metrics, unique_bags=self.unique_bags, every=self.every, **options,
        ).run(progress)  # fmt: skip

    def fit(self, measured: Measured) -> LossModel:
        """Return the loss model; run missing trainings of the calibration.

        Raises: NotDecidableError: the budget is below the noise of a verification.
        """
        shares = guessed(measured, COARSE)
        cases = to_calibrate(
            measured, self.candidates, lambda noise, codec: cost_of(noise, codec, self.link_gb_s)
        )
        if not cases:  # none saves anything, or none has noise to speak of
            return LossModel(measured, shares, {})
        calibration = Calibration(
            measured, self.metrics, self.seeds.calibration, self.folder / "calibration.jsonl",
            self.unique_bags, self.study_options,
        )  # fmt: skip
        changes = calibration.run(dict.fromkeys(cases, measured.tables))
        if self.seeds.rounds:
            check_decidable(self.budget, calibration.spread, self.seeds.num_verification)
        rests = calibration.rests(changes, shares)
        served = shares["forward"] if self.evaluation else None
        return LossModel(measured, corrected(shares, measured, rests), changes, served)

    def _plan(self, planner: Planner, name: str, share: float) -> Plan:
        budget = share * self.budget
        return planner.plan(name, budget, most=self.use * budget)

    def verify(
        self, planner: Planner, plans: Mapping[str, Plan], progress: Progress
    ) -> dict[str, Plan]:
        """Return the plans with the results of a joint verification; `plan` may be stepped back.

        Each round has its own seeds, and steps back from a plan that failed before. The last
        round's results are returned in any case.
        """
        plan = plans["plan"]
        for number, seeds in enumerate(self.seeds.verification, start=1):
            result = self._study(plan, seeds, self.folder / f"verification-{number}.jsonl")
            (verdict,), passed = result.verdicts.values(), bool(result.passed)
            plan = _with_result(plan, result)
            if passed or number == self.seeds.rounds:
                break
            back = planner.step_back(plan, only_forward=verdict.passed)
            if back is None:
                break
            plan = back
            progress.begin(f"not passed; stepped back from {back.blames[-1]}")
        return {**plans, "plan": plan}

    def write_plans(self, planner: Planner, plans: Iterable[Plan]) -> None:
        """Write plans as records, with plans for other budgets and that of configs/best.yaml."""
        front = [self._plan(planner, f"{share:g} of the budget", share) for share in FRONT]
        if planner.has(best()):
            front.append(planner.all_with("codecs of best", best()))
        path = self.folder / "plans.jsonl"
        path.unlink(missing_ok=True)  # all of it comes from the other files
        exact, environment = planner.all_with("float32", Pair()).nbytes, Environment.current()
        made = (self._record(plan, exact, environment) for plan in (*plans, *front))
        records.append(path, *made)

    def _record(self, plan: Plan, exact: float, environment: Environment) -> SearchRecord:
        figures = {
            "nbytes": plan.nbytes, "float32_nbytes": exact, "budget": plan.budget,
            "expected": plan.expected, "error": plan.error,
        }  # fmt: skip
        for metric, change in plan.verified.items():
            values = {"mean": change.mean, "low": change.low, "high": change.high}
            figures |= {f"{metric} {what}": x for what, x in values.items() if x is not None}
            figures["num_seeds"] = change.n
        return SearchRecord(
            configuration=plan.name, config=write_yaml(config_to_dict(self.config(plan))),
            time=time.time(), stage="plan", figures=figures, environment=environment,
            **{name: self.study_options[name] for name in ("setup", "num_ranks")},
        )  # fmt: skip

    def config(self, plan: Plan) -> Config:
        """Return the config of a plan."""
        return config_of(plan.choice, self.base, self.unique_bags)

    def _study(self, plan: Plan, seeds: Sequence[int], path: Path) -> StudyResult:
        limits = Limits(mean=self.budget, upper=UPPER * self.budget, seeds=len(seeds))
        evaluation = {
            metric: limit and replace(limit, seeds=min(limit.seeds, len(seeds)))
            for metric, limit in self.evaluation.items()
        }
        config = self.config(plan)  # a name that no other config has
        name = f"{plan.name}-{sha256(write_yaml(config_to_dict(config)).encode()).hexdigest()[:6]}"
        return quality.study(
            configs={name: config}, seeds=seeds, path=path, stop_early=True,
            limits=dict.fromkeys(self.metrics, limits), evaluation=evaluation or None,
            baseline=self.baseline, name=path.stem, **self.study_options,
        )  # fmt: skip


def _with_result(plan: Plan, result: StudyResult) -> Plan:
    """Return a plan with the changes and verdicts of a study."""
    (verdict,) = result.verdicts.values()
    verified, text = dict(verdict.changes), f"Training: {verdict.text}"
    for served in result.evaluation_verdicts.values():
        text += f"; evaluation: {served.text}"
        verified |= {f"eval-only {m}": change for m, change in served.changes.items()}
    return replace(plan, verified=verified, verdict=text)


def check_decidable(budget: float, spread: Mapping[str, float], num_seeds: int) -> None:
    """Raise NotDecidableError if a harmless plan would probably not pass.

    A plan that costs nothing passes four times out of five with (spread / budget)^2 seeds, because
    the upper limit of a change is 2.5 times the budget (docs/QUALITY.md).
    Args: spread: standard deviation of one seed's change, by metric.
    """
    metric = max(spread, key=lambda name: spread[name])
    needed = ceil((spread[metric] / budget) ** 2)
    if needed > num_seeds:
        raise NotDecidableError(
            f"budget {budget:g}: not decidable with these seeds: {metric} changes by "
            f"{spread[metric]:.3f} % from seed to seed (standard deviation), so a verification "
            f"takes {needed} seeds, and has {num_seeds}; give more (what is measured is kept), a "
            "larger budget, or metrics with less noise"
        )
