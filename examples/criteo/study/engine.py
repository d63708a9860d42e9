"""Study: paired trainings of several configurations, what is missing of them, one seed at a time.

    study = Study("my model", configurations, range(50), train, baseline="...", num_ranks=4)
    for seed, modes in study.missing(study.read(path)).items():
        records.append(path, *study.run_seed(seed, modes))

Knows: seeds, records. Does not know: models, data, codecs: all of that is in the callback `train`.
Every configuration is trained from the same seeds, each compared with the baseline of its own seed.
Beside them always run the baseline (float32) and the null run, which is the baseline with initial
weights off by a relative 1e-6: the noise floor of the comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from trec_qcomm import records
from trec_qcomm.records import Environment, Metrics, Scalar, SeedEvaluation, SeedTraining
from trec_qcomm.records import StudyRecord as Record
from trec_qcomm.report.runs import config_id
from trec_qcomm.report.statistics import BASELINE, NULL

Mode = Literal["training", "eval-only"]
MODES: tuple[Mode, ...] = ("training", "eval-only")
Missing = Mapping[str, set[Mode]]  # name of a configuration -> what it lacks for some seed


@dataclass(frozen=True)
class Configuration:
    """A configuration of a study.

    Args:
        name: name in tables and records.
        config: YAML text of its config.
        is_null: it starts with weights that are off by a relative 1e-6.
    """

    name: str
    config: str
    is_null: bool = False


class TrainedModel(Protocol):
    """A model at the end of its training."""

    @property
    def losses(self) -> Sequence[float]:
        """Training loss of each step, the mean over ranks."""

    def evaluate(self, configuration: Configuration) -> Metrics:
        """Return metrics of the test set with the codecs of that configuration switched on.

        Needed are "ne", "logloss" and "auc". With the configuration that it was trained with, the
        codecs go on in the state that the training left them in.
        """


Train = Callable[[Configuration, int], TrainedModel]  # configuration, seed; the seed decides all


@dataclass(frozen=True)
class Study:
    """Paired trainings of several configurations.

    Args:
        name: name for messages and the progress bar.
        configurations: what is compared, without the baseline and the null run.
        seeds: seeds of the trainings.
        train: callback that trains a model; other processes unpickle it.
        baseline: YAML text of the config that is exact.
        num_ranks: number of ranks, emulated or real.
        setup: all that must be equal for two trainings to be compared, but the number of ranks.
        modes: "training" trains with a configuration and scores with its codecs on and off;
            "eval-only" switches the codecs on for the baseline's model of the same seed.
    Raises: ValueError: two configurations of one name.
    """

    name: str
    configurations: Sequence[Configuration]
    seeds: Sequence[int]
    train: Train
    baseline: str
    num_ranks: int
    setup: Mapping[str, Scalar] = field(default_factory=dict)
    modes: Sequence[Mode] = MODES

    def __post_init__(self) -> None:
        names = [BASELINE, NULL]
        for configuration in self.configurations:
            if configuration.name in names:
                raise ValueError(f"configs: {configuration.name} is run anyway, or given twice")
            names.append(configuration.name)

    @property
    def by_name(self) -> dict[str, Configuration]:
        """All configurations by name, the baseline and the null run first."""
        always = (
            Configuration(BASELINE, self.baseline),
            Configuration(NULL, self.baseline, is_null=True),
        )
        return {c.name: c for c in (*always, *self.configurations)}

    def read(self, path: Path) -> list[Record]:
        """Return the records so far.

        Raises: ValueError: a line is no record of a study; or the records are of another study, or
            of another config of the same name.
        """
        known = {
            name: config_id(Record(configuration=name, config=c.config, num_ranks=self.num_ranks))
            for name, c in self.by_name.items()
        }
        ours = dict(self.setup) | {"num_ranks": self.num_ranks}
        done: list[Record] = []
        for record in records.read(path) if path.exists() else []:
            if not isinstance(record, Record):
                raise ValueError(f"{record.origin}: a record of kind {record.kind}, not study")
            theirs = dict(record.setup) | {"num_ranks": record.num_ranks}
            changed = [k for k in ours | theirs if ours.get(k) != theirs.get(k)]
            if changed:
                raise ValueError(
                    f"{path}: runs with other {', '.join(changed)}; give another --out"
                )
            name = record.configuration
            if name in known and config_id(record) != known[name]:
                raise ValueError(
                    f"{path}: runs of another config {name}; give another --out or name"
                )
            done.append(record)
        return done

    def missing(self, done: Sequence[Record]) -> dict[int, dict[str, set[Mode]]]:
        """Return what is not in the records, by seed and configuration."""
        parts = ((r, {"training": r.training, "eval-only": r.evaluation}) for r in done)
        there = {
            (r.configuration, r.seed, mode)
            for r, results in parts
            for mode in MODES
            if results[mode]
        }
        missing: dict[int, dict[str, set[Mode]]] = {}
        for seed in self.seeds:
            for name in self.by_name:
                asked = ("training",) if name in (BASELINE, NULL) else self.modes
                modes: set[Mode] = {mode for mode in asked if (name, seed, mode) not in there}
                if modes:
                    missing.setdefault(seed, {})[name] = modes
        return missing

    def run_seed(self, seed: int, missing: Missing) -> Iterator[Record]:
        """Train and score what is missing of one seed; the baseline first, if it is needed."""
        exact = self.by_name[BASELINE]
        base: TrainedModel | None = None
        if BASELINE in missing or any("eval-only" in modes for modes in missing.values()):
            started = time.perf_counter()
            base = self.train(exact, seed)
            if BASELINE in missing:
                yield self._record(exact, seed, started, training=self._score(base, exact))
        for name in (name for name in missing if name != BASELINE):
            started, configuration = time.perf_counter(), self.by_name[name]
            evaluation = training = None
            if "eval-only" in missing[name]:
                assert base is not None
                evaluation = SeedEvaluation(
                    metrics=base.evaluate(configuration), metrics_exact=base.evaluate(exact)
                )
            if "training" in missing[name]:
                training = self._score(self.train(configuration, seed), configuration)
            yield self._record(configuration, seed, started, training, evaluation)

    def _score(self, model: TrainedModel, configuration: Configuration) -> SeedTraining:
        return SeedTraining(
            steps=len(model.losses),
            progressive_logloss=sum(model.losses) / len(model.losses),
            metrics=model.evaluate(configuration),
            metrics_exact=model.evaluate(self.by_name[BASELINE]),
        )

    def _record(
        self,
        configuration: Configuration,
        seed: int,
        started: float,
        training: SeedTraining | None = None,
        evaluation: SeedEvaluation | None = None,
    ) -> Record:
        return Record(
            configuration=configuration.name,
            config=configuration.config,
            setup=self.setup,
            seed=seed,
            environment=Environment.current(repository=Path(__file__).parent),
            time=time.time(),
            num_ranks=self.num_ranks,
            training=training,
            evaluation=evaluation,
            seconds=round(time.perf_counter() - started, 2),
        )
