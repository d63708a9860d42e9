"""Search: a codec for every table and direction, within a budget of loss. Any model.

    import trec_qcomm

    def train(config, seed, perturbation):  # as for quality.study
        ...
        return trained  # an object with metrics and evaluate(config), or metrics alone

    result = trec_qcomm.search(train, budget=0.02, metrics=["logloss"], path="runs/search")
    print(result)
    result.write("plan.yaml")

docs/SEARCH.md says how it works. `python -m trec_qcomm search` is its command line.

Knows: the user's arguments. Does not know: stages (engine.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trec_qcomm.config import Config, UniqueBagsChoice
from trec_qcomm.core.codec import check_choice
from trec_qcomm.lab.records import LimitsByMetric, Scalar
from trec_qcomm.lab.search.candidates import EXACT, Candidates, Given
from trec_qcomm.lab.search.engine import NotDecidableError, Search, Seeds
from trec_qcomm.lab.search.losses import LossModel
from trec_qcomm.lab.search.plans import Plan
from trec_qcomm.lab.search.text import codecs_text, config_text, table_text
from trec_qcomm.lab.study import AnyConfig, configs_by_name
from trec_qcomm.lab.study.engine import Train
from trec_qcomm.lab.study.progress import Progress

__all__ = ["NotDecidableError", "Plan", "SearchResult", "search"]


@dataclass(frozen=True)
class SearchResult:
    """Plans of a search; `str()` is their table.

    Args:
        search: settings of the search.
        model: expected losses of all codecs on all tables.
        plans: plans by name: `plan` for the budget, `half` and `twice` for half and twice of it.
    """

    search: Search
    model: LossModel
    plans: Mapping[str, Plan]

    @property
    def plan(self) -> Plan:
        """Plan for the budget, after verification."""
        return self.plans["plan"]

    @property
    def config(self) -> Config:
        """Config of the plan for the budget."""
        return self.search.config(self.plan)

    def text(self, name: str = "plan") -> str:
        """Return the config of a plan as YAML, with the reasons in comments."""
        plan = self.plans[name]
        return config_text(plan, self.model, self.search.config(plan))

    def write(self, path: str | Path, name: str = "plan") -> None:
        """Write the config of a plan."""
        Path(path).write_text(self.text(name), encoding="utf-8")

    def __str__(self) -> str:
        planner = self.search.planner(self.model)
        return f"{codecs_text(self.plan, self.model)}\n\n{table_text(self.plans, planner)}"


def search(
    train: Train,
    candidates: Given | None = None,
    budget: float = 0.02,
    *,
    path: str | Path,
    metrics: Sequence[str],
    evaluation: LimitsByMetric | None = None,
    base: AnyConfig | None = None,
    baseline: AnyConfig = "fp32",
    unique_bags: UniqueBagsChoice = "auto",
    link_gb_s: float | None = None,
    first_seed: int = 1000,
    probe_seeds: int = 3,
    calibration_seeds: int = 4,
    verification_seeds: int = 30,
    rounds: int = 3,
    use: float = 0.5,
    every: int = 50,
    dims: Mapping[str, int] | None = None,
    jobs: int = 1,
    setup: Mapping[str, Scalar] | None = None,
    num_ranks: int = 1,
    show_progress: bool = True,
) -> SearchResult:
    """Return the codecs of fewest bytes, by table and direction, that lose at most a budget.

    After Ctrl-C or an error, or with more seeds, the same call goes on with the existing files.
    docs/SEARCH.md explains the stages and the choices.

    Args:
        train: your training, as for quality.study; its whole config goes to QComm.
        candidates: codecs by direction ("forward", "backward"), as codecs, mappings as in YAML, or
            names. A direction that is not named has the default ones.
        budget: limit of the verified mean, in percent of each metric.
        path: folder of the records.
        metrics: metrics of the trainings that must keep the budget; smaller is better.
        evaluation: limits of the float32 model with the plan's codecs on, as for quality.study.
        base: config with all settings that are not searched.
        baseline: exact config that the verification compares with.
        unique_bags: whether equal bags are sent once, for all tables.
        link_gb_s: GB/s that a rank can send, to look for the fewest seconds; None: fewest bytes.
        first_seed: first of the seeds. Judge the result by other seeds.
        probe_seeds: number of float32 trainings that also try all candidates.
        calibration_seeds: number of seeds of the trainings with one coarse codec for all tables.
        verification_seeds: largest number of seeds of each verification.
        rounds: largest number of verifications; 0: none.
        use: share of the budget for the sum of expected losses; the rest is for their errors.
        every: number of steps from one measured step of a probe to the next.
        dims: dim of every table, to refuse candidates that do not fit before any training.
        jobs, setup, num_ranks, show_progress: arguments of quality.study.
    Raises:
        ValueError: a wrong argument, named, before any training; or a file of another search.
        NotDecidableError: a budget below the noise of the verification; the error tells the number
            of seeds that it takes.
    """
    chosen = Candidates.from_lists(candidates)
    if chosen.all == (EXACT,):
        raise ValueError("candidates: all are identity; expected something to choose")
    chosen.check_dims(dims or {})
    if not callable(train):
        raise ValueError(f"train: expected a function, got {type(train).__name__}")
    if isinstance(metrics, str) or not metrics:
        raise ValueError(f"metrics: expected a list of names, got {metrics!r}")
    check_choice("unique_bags", unique_bags, (True, False, "auto"))
    _check_numbers(
        budget=(budget, 0), link_gb_s=(1 if link_gb_s is None else link_gb_s, 0),
        probe_seeds=(probe_seeds, 0), calibration_seeds=(calibration_seeds, 1),
        verification_seeds=(verification_seeds, 4), rounds=(rounds, -1), every=(every, 0),
        jobs=(jobs, 0), num_ranks=(num_ranks, 0), use=(use, 0),
    )  # fmt: skip
    configs = configs_by_name({"base": "fp32" if base is None else base, "baseline": baseline})
    settings = Search(
        candidates=chosen, budget=budget, folder=Path(path), metrics=list(metrics),
        evaluation=dict(evaluation or {}), base=configs["base"], baseline=configs["baseline"],
        unique_bags=unique_bags, link_gb_s=link_gb_s, use=use, every=every,
        seeds=Seeds(
            first=first_seed, num_probes=probe_seeds, num_calibration=calibration_seeds,
            num_verification=verification_seeds, rounds=rounds,
        ),
        study_options={
            "train": train, "setup": dict(setup or {}), "num_ranks": num_ranks, "jobs": jobs,
            "show_progress": show_progress,
        },
    )  # fmt: skip
    model, plans = settings.run(Progress("search", show=show_progress))
    return SearchResult(settings, model, plans)


def _check_numbers(**numbers: tuple[float, float]) -> None:
    """Raise ValueError at a number that is not above its limit. Args: numbers: with limits"""
    for name, (value, limit) in numbers.items():
        if isinstance(value, bool) or not limit < value < float("inf"):
            raise ValueError(f"{name}: {value!r} is not a number above {limit}")
