"""Study: paired trainings of several configurations, one seed at a time.

Every configuration is trained from the same seeds, and compared with the baseline of the same seed.
The baseline (`fp32`) and the null run are always added. The null run is the baseline with initial
weights changed by a relative 1e-6: the noise floor of the comparison.

Knows: seeds, records, verdicts. Does not know: models, data, codecs, which are in the callback
`train`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Protocol, runtime_checkable

from trec_qcomm.config import Config, config_to_dict, write_yaml
from trec_qcomm.lab.records import (
    Environment,
    Metrics,
    Scalar,
    SeedEvaluation,
    SeedTraining,
    StudyRecord,
)
from trec_qcomm.lab.records.json_lines import read_same
from trec_qcomm.lab.report.runs import config_id
from trec_qcomm.lab.study.gates import BASELINE, NULL, Verdict
from trec_qcomm.lab.study.verdicts import MODES, Mode, Rules, check_baseline, judge_all

PERTURBATION = 1e-6  # of the null run's initial weights, relative
Missing = Mapping[str, set[Mode]]  # name of a configuration -> what it lacks for some seed


@runtime_checkable
class Trained(Protocol):
    """Trained model that can be scored with other configurations than that of its training."""

    @property
    def metrics(self) -> Metrics:
        """Metrics of the training and its test, with the codecs on."""

    def evaluate(self, config: Config) -> Metrics:
        """Return metrics of the test with the codecs of a configuration switched on.

        With the configuration of its training, the codecs go on in the state in which the training
        left them.
        """


Train = Callable[[Config, int, float], Metrics | Trained]


@dataclass(frozen=True)
class Study:
    """Paired trainings of several configurations.

    Args:
        train: callback that trains a model, as for `quality.study`.
        configurations: configs by name, without the baseline and the null run.
        baseline: config that is exact.
        seeds: seeds of the trainings, in increasing order.
        rules: limits and looks.
        setup: all settings but the number of ranks that must be equal for a comparison.
        num_ranks: number of ranks, emulated or real.
        name: name for messages.
    Raises: ValueError: two configurations of one name, or no seeds.
    """

    train: Train
    configurations: Mapping[str, Config]
    baseline: Config
    seeds: Sequence[int]
    rules: Rules
    setup: Mapping[str, Scalar] = field(default_factory=dict)
    num_ranks: int = 1
    name: str = "study"

    def __post_init__(self) -> None:
        for name in (BASELINE, NULL):
            if name in self.configurations:
                raise ValueError(f"configs: {name} is run anyway; leave it out")
        if not self.configurations:
            raise ValueError("configs: expected one or more")

    @property
    def modes(self) -> Sequence[Mode]:
        """Modes that have limits: trainings, evaluations of the baseline's model, or both."""
        return [mode for mode in MODES if self.rules.gated(mode)]

    def config(self, name: str) -> Config:
        """Return the config of a configuration, of the baseline or of the null run."""
        return self.baseline if name in (BASELINE, NULL) else self.configurations[name]

    def by_name(self, done: Sequence[StudyRecord]) -> dict[str, list[StudyRecord]]:
        """Return the records of each configuration, of the null run and of the baseline."""
        names = (NULL, *self.configurations, BASELINE)
        return {name: [r for r in done if r.configuration == name] for name in names}

    def verdicts(self, done: Sequence[StudyRecord], mode: Mode) -> dict[str, Verdict]:
        """Return the verdict on each configuration that has records, by name; null run included."""
        return judge_all(self.by_name(done), self.rules, mode, self.seeds)

    def missing(self, done: Sequence[StudyRecord]) -> dict[int, dict[str, set[Mode]]]:
        """Return the missing runs, by seed and configuration.

        If the study may stop early, a configuration with a verdict needs no more runs.
        """
        there = {
            (record.configuration, record.seed, mode)
            for record in done
            for mode, result in zip(MODES, (record.training, record.evaluation), strict=True)
            if result
        }
        wanted = self._wanted(done)
        started = {seed for name, seed, _ in there if name in self.configurations}
        missing: dict[int, dict[str, set[Mode]]] = {}
        for seed in self.seeds:
            needs = {name: {mode for mode in modes if (name, seed, mode) not in there}
                     for name, modes in wanted.items()}  # fmt: skip
            needs = {name: modes for name, modes in needs.items() if modes}
            if any(wanted.values()) or seed in started:
                beside: dict[str, set[Mode]] = {
                    name: {"training"} for name in (BASELINE, NULL)
                    if (name, seed, "training") not in there
                }  # fmt: skip
                needs = beside | needs
            if needs:
                missing[seed] = needs
        return missing

    def _wanted(self, done: Sequence[StudyRecord]) -> dict[str, set[Mode]]:
        """Return the modes in which each configuration needs more seeds."""
        wanted: dict[str, set[Mode]] = {name: set(self.modes) for name in self.configurations}
        if self.rules.looks:
            for mode in self.modes:
                for name, verdict in self.verdicts(done, mode).items():
                    if name != NULL and not verdict.is_open:
                        wanted[name].discard(mode)
        return wanted

    def read(self, path: Path) -> list[StudyRecord]:
        """Return the records so far, of this study's seeds.

        Raises: ValueError: a line is no record of a study; or the records are of another study, or
            of another config of the same name.
        """
        done = []
        for record in read_same(path, StudyRecord, self.setup, self.num_ranks, "runs with other"):
            self._check_same(path, record)
            if record.seed in self.seeds:
                done.append(record)
        return done

    def _check_same(self, path: Path, record: StudyRecord) -> None:
        changed, rules = [], Rules.from_record(record)
        for mode in MODES:
            old, new = rules.gated(mode), self.rules.gated(mode)
            if old and new and old != new:
                changed.append(f"limits of {mode} ({old} there, {new} here)")
        if rules.looks and rules.looks != self.rules.looks:
            changed.append(f"looks ({rules.looks} there, {self.rules.looks or 'none'} here)")
        if changed:
            raise ValueError(f"{path}: runs with other {', '.join(changed)}; give another path")
        name = record.configuration
        is_ours = name in (BASELINE, NULL) or name in self.configurations
        if is_ours and config_id(record) != config_id(
            replace(record, config=self._config_text(name))
        ):
            raise ValueError(f"{path}: runs of another config {name}; give another path or name")

    def run_seed(self, seed: int, missing: Missing) -> Iterator[StudyRecord]:
        """Train and score the missing runs of one seed, the baseline first if it is needed."""
        base: Metrics | Trained | None = None
        if BASELINE in missing or any("eval-only" in modes for modes in missing.values()):
            started = time.perf_counter()
            base = self._train(BASELINE, seed)
            if BASELINE in missing:
                yield self._record(BASELINE, seed, started, self._score(BASELINE, seed, base))
        for name in (name for name in missing if name != BASELINE):
            started = time.perf_counter()
            evaluation = training = None
            if "eval-only" in missing[name]:
                assert isinstance(base, Trained)
                pair = (base.evaluate(config) for config in (self.config(name), self.baseline))
                ours, exact = (self._checked(m, name, seed, "eval-only") for m in pair)
                evaluation = SeedEvaluation(metrics=ours, metrics_exact=exact)
            if "training" in missing[name]:
                training = self._score(name, seed, self._train(name, seed))
            yield self._record(name, seed, started, training, evaluation)

    def _train(self, name: str, seed: int) -> Metrics | Trained:
        """Return what `train` returned. Raises ValueError: not what this study needs."""
        result = self.train(self.config(name), seed, PERTURBATION if name == NULL else 0.0)
        needs_model = bool(self.rules.gated("eval-only"))
        is_known = isinstance(result, Trained if needs_model else (Trained, Mapping))
        if not is_known:
            need = "an object with metrics and evaluate(config)"
            raise ValueError(
                f"train: expected {need if needs_model else f'a mapping of metrics, or {need}'}, "
                f"got {type(result).__name__}"
            )
        return result

    def _score(self, name: str, seed: int, result: Metrics | Trained) -> SeedTraining:
        metrics: Metrics = result.metrics if isinstance(result, Trained) else result
        exact = result.evaluate(self.baseline) if isinstance(result, Trained) else {}
        return SeedTraining(
            metrics=self._checked(metrics, name, seed, "training"), metrics_exact=dict(exact)
        )

    def _checked(self, metrics: Metrics, name: str, seed: int, mode: Mode) -> dict[str, float]:
        """Return metrics as floats. Raises ValueError: one is missing, or is no number."""
        lacking = [metric for metric in self.rules.limits(mode) if metric not in metrics]
        if lacking:
            raise ValueError(
                f"train: no metric {lacking[0]} in what seed {seed} of {name} returned "
                f"({', '.join(metrics) or 'nothing'}); limits name it"
            )
        for metric, value in metrics.items():
            if not isinstance(value, Real):
                raise ValueError(
                    f"train: metric {metric} of seed {seed} of {name}: expected a number, got "
                    f"{value!r:.60}"
                )
        if name == BASELINE:
            for metric, limit in self.rules.limits(mode).items():
                check_baseline(metric, seed, metrics[metric], limit)
        return {metric: float(value) for metric, value in metrics.items()}

    def _config_text(self, name: str) -> str:
        return write_yaml(config_to_dict(self.config(name)))

    def _record(
        self, name: str, seed: int, started: float,
        training: SeedTraining | None = None, evaluation: SeedEvaluation | None = None,
    ) -> StudyRecord:  # fmt: skip
        return StudyRecord(
            configuration=name, config=self._config_text(name), setup=self.setup, seed=seed,
            environment=_environment(), time=time.time(), num_ranks=self.num_ranks,
            training=training, evaluation=evaluation,
            seconds=round(time.perf_counter() - started, 2),
            limits=self.rules.training, evaluation_limits=self.rules.evaluation,
            looks=self.rules.looks,
        )  # fmt: skip


@functools.cache
def _environment() -> Environment:
    """Return the environment, of the code that this process has loaded."""
    return Environment.current()
