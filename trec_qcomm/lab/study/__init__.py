"""Quality: may a configuration be used for a model? Paired trainings of any model, and a verdict.

    from trec_qcomm import quality

    def train(config, seed, perturbation):       # your training; the seed decides everything
        ...                                      # initial weights times (1 + perturbation)
        return {"logloss": ...}                  # of the test, the codecs on

    if __name__ == "__main__":
        result = quality.study(
            train, ["int8", "best"], seeds=50, limits={"logloss": quality.TRAINING},
            path="runs/study.jsonl", stop_early=True,
        )
        print(result)

docs/QUALITY.md says how to decide with it.

Knows: seeds, records, statistics. Does not know: models, TorchRec, how ranks are run or emulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from trec_qcomm.config import Config, read_config
from trec_qcomm.lab.records import Limits as Limits
from trec_qcomm.lab.records import LimitsByMetric, Scalar
from trec_qcomm.lab.study.engine import Study as Study
from trec_qcomm.lab.study.engine import Train
from trec_qcomm.lab.study.engine import Trained as Trained
from trec_qcomm.lab.study.gates import EVALUATION as EVALUATION
from trec_qcomm.lab.study.gates import TRAINING as TRAINING
from trec_qcomm.lab.study.gates import Verdict as Verdict
from trec_qcomm.lab.study.gates import looks_of
from trec_qcomm.lab.study.processes import TrainingFailedError as TrainingFailedError
from trec_qcomm.lab.study.processes import check_picklable, run_all
from trec_qcomm.lab.study.result import StudyResult as StudyResult
from trec_qcomm.lab.study.verdicts import Rules

AnyConfig = Config | Mapping[str, Any] | Path | str
Configs = Mapping[str, AnyConfig] | Iterable[Path | str]


def study(
    train: Train,
    configs: Configs,
    seeds: int | Iterable[int] = 50,
    *,
    limits: LimitsByMetric | None = None,
    evaluation: LimitsByMetric | None = None,
    path: str | Path,
    baseline: AnyConfig = "fp32",
    setup: Mapping[str, Scalar] | None = None,
    num_ranks: int = 1,
    stop_early: bool = False,
    jobs: int = 1,
    show_progress: bool = True,
    name: str = "study",
) -> StudyResult:
    """Train a model with each config from each seed, and judge each against float32.

    Two runs are always added: the baseline, named `fp32`, and the null run, named `null`. The null
    run is the baseline with initial weights changed by a relative 1e-6. It shows how much two
    trainings differ that nobody would call different.

    Each finished run is a line in the file. The same call goes on with an existing file: after
    Ctrl-C, an error or a lost machine, or with more configs.

    Args:
        train: your training, `train(config, seed, perturbation)`. `config` is a trec_qcomm.Config.
            The seed decides all random numbers. Multiply initial weights by 1 + perturbation; the
            perturbation is 0 except in the null run. `train` returns metrics by name, or, for
            `evaluation`, a `Trained`: an object with `metrics` and `evaluate(config)`.
        configs: names of presets and paths of YAML files; or a mapping from name to a preset, path,
            Config or dict.
        seeds: number of seeds, from 0; or the seeds.
        limits: limits of the trainings' metrics by name; `quality.TRAINING` is this library's gate.
            None in place of a metric's limits shows the metric without judging by it.
        evaluation: limits of the baseline's model with a config's codecs switched on, compared with
            the same model without codecs; `quality.EVALUATION` is this library's gate.
        path: file of the records, JSON lines; `python -m trec_qcomm report` draws it.
        baseline: exact config.
        setup: all settings that must be equal for two runs to be compared, such as the data and the
            sizes of the model. A file with another setup is refused.
        num_ranks: number of ranks that `train` uses or emulates, for the records.
        stop_early: whether a config stops as soon as its verdict is sure, checked after 10, 15, 20
            and so on seeds. This is a group-sequential test; the error of all looks together is 5 %
            (gates.py). Choose before the first run; a file keeps the choice.
        jobs: number of processes of one thread each; 1 runs all in this process. With more, `train`
            must be a function of a module, and the call stands below `if __name__ == "__main__"`.
        show_progress: whether to write progress and the time left to stderr.
        name: name of the study in messages.
    Returns: verdicts and a table.
    Raises:
        ValueError: a wrong argument, named; a file of another study, with what differs; or metrics
            without a metric that has limits.
        TrainingFailedError: a training failed in another process.
    """
    planned = plan(
        train, configs, seeds, limits=limits, evaluation=evaluation, baseline=baseline,
        setup=setup, num_ranks=num_ranks, stop_early=stop_early, name=name,
    )  # fmt: skip
    if jobs < 1:
        raise ValueError(f"jobs {jobs}: must be positive")
    if jobs > 1:
        check_picklable(planned, jobs)
    path = Path(path)
    done = planned.read(path)
    run_all(planned, done, path, jobs=jobs, show_progress=show_progress)
    return StudyResult(planned, done, path)


def plan(
    train: Train,
    configs: Configs,
    seeds: int | Iterable[int] = 50,
    *,
    limits: LimitsByMetric | None = None,
    evaluation: LimitsByMetric | None = None,
    baseline: AnyConfig = "fp32",
    setup: Mapping[str, Scalar] | None = None,
    num_ranks: int = 1,
    stop_early: bool = False,
    name: str = "study",
) -> Study:
    """Return a study that has not run. Arguments and errors are those of `study`."""
    rules = Rules(dict(limits or {}), dict(evaluation or {}))
    if not rules.gated("training") and not rules.gated("eval-only"):
        raise ValueError(
            'limits: expected limits of one metric or more, such as {"logloss": quality.TRAINING}'
        )
    for what, given in (("limits", rules.training), ("evaluation", rules.evaluation)):
        for metric, limit in given.items():
            if limit is not None and not isinstance(limit, Limits):
                raise ValueError(f"{what}, {metric}: expected Limits or None, got {limit!r:.60}")
    numbers = _seeds(seeds)
    if stop_early:
        rules = Rules(rules.training, rules.evaluation, looks_of(len(numbers)))
    try:
        signature(train).bind("config", 0, 0.0)
    except TypeError as error:
        raise ValueError(f"train: expected train(config, seed, perturbation): {error}") from None
    (exact,) = configs_by_name({"baseline": baseline}).values()
    if num_ranks < 1:
        raise ValueError(f"num_ranks {num_ranks}: must be positive")
    return Study(
        train=train, configurations=configs_by_name(configs), baseline=exact, seeds=numbers,
        rules=rules, setup=dict(setup or {}), num_ranks=num_ranks, name=name,
    )  # fmt: skip


def configs_by_name(configs: Configs) -> dict[str, Config]:
    """Return configs by name.

    Args:
        configs: presets and paths of YAML files, which give the names; or a mapping from a name to
            a preset, a path, a Config, or a mapping as in YAML.
    Raises: ValueError: a config without a name, two of one name, or a config that is wrong.
    """
    if isinstance(configs, str | Path | Config):
        raise ValueError(f"configs: expected a list or a mapping by name, got {configs!r:.60}")
    if isinstance(configs, Mapping):
        return {str(name): _read_one(str(name), config) for name, config in configs.items()}
    by_name: dict[str, Config] = {}
    for config in configs:
        if not isinstance(config, str | Path):
            raise ValueError(
                f"configs: a {type(config).__name__} has no name; give a mapping from name to it"
            )
        name = Path(config).stem
        if name in by_name:
            raise ValueError(f"configs: {name} is given twice; give a mapping from name to config")
        by_name[name] = _read_one(name, config)
    return by_name


def _read_one(name: str, config: AnyConfig) -> Config:
    try:
        return read_config(config)
    except FileNotFoundError as error:
        raise ValueError(f"configs, {name}: {error.filename}: no such file") from None
    except ValueError as error:
        raise ValueError(f"configs, {name}: {error}") from None


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    """Return the seeds in increasing order. Raises ValueError: none, or one twice."""
    numbers = list(range(seeds)) if isinstance(seeds, int) else sorted(seeds)
    if not numbers:
        raise ValueError(f"seeds {seeds!r:.60}: expected one or more")
    if len(set(numbers)) < len(numbers):
        raise ValueError("seeds: one is given twice; give each once")
    return numbers
