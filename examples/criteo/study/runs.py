"""The runs of a study: what is missing, one seed's trainings, the records they leave.

Knows: train.py's options and rows, one training (training.py). Does not know: processes, the
command line, statistics.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from data import Dataset
from model import ModelConfig
from report import commit
from train import load_dataset

from study.show import Record
from study.training import FP32, Codecs, EmulatedTraining, perturbed, train
from trec_qcomm.config import config_from_dict, config_to_dict
from trec_qcomm.report.statistics import BASELINE, NULL

MODES = ("training", "eval-only")
Modes = Mapping[str, set[str]]  # by config
# The options of train.py that a study has; they decide what a run is.
OPTIONS = (
    "data", "rows", "min_count", "hash_buckets", "ranks", "batch_size", "epochs", "steps",
    "embedding_dim", "dense_arch", "over_arch", "embedding_optimizer", "dense_optimizer", "lr",
    "dense_lr", "init_scale",
)  # fmt: skip


@dataclass(frozen=True)
class Study:
    """What is run. Args: options: of train.py.  configs: by name, without fp32 and null."""

    options: argparse.Namespace
    configs: Mapping[str, dict[str, Any]]  # as config_to_dict makes them
    modes: tuple[str, ...]

    @property
    def identity(self) -> dict[str, str]:
        """The options that make a run what it is."""
        return {name: str(getattr(self.options, name)) for name in OPTIONS}

    def config(self, name: str) -> dict[str, Any]:
        """Of a name, fp32 and null included."""
        return config_to_dict(FP32) if name in (BASELINE, NULL) else self.configs[name]

    def missing(
        self, done: Sequence[Record], seeds: Iterable[int]
    ) -> dict[int, dict[str, set[str]]]:
        """{seed: {config: modes}} of what is not in the records."""
        there = {(r["config"], r["seed"], _part(m)) for r in done for m in MODES if r.get(_part(m))}
        found: dict[int, dict[str, set[str]]] = {}
        for seed in seeds:
            for name in (BASELINE, NULL, *self.configs):
                asked = ("training",) if name in (BASELINE, NULL) else self.modes
                modes = {m for m in asked if (name, seed, _part(m)) not in there}
                if modes:
                    found.setdefault(seed, {})[name] = modes
        return found


def read_records(path: Path, study: Study) -> list[Record]:
    """The records so far; a line that an interruption cut short is left out.

    Raises: ValueError: they are of another study, or of another config of the same name.
    """
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record: Record = json.loads(line)
        except json.JSONDecodeError:
            continue
        ours = study.identity
        changed = [k for k in ours if record["options"].get(k) != ours[k]]
        if changed:
            raise ValueError(f"{path}: runs with other {', '.join(changed)}; give another --out")
        name = record["config"]
        known = name in (BASELINE, NULL, *study.configs)
        if known and record["config_sha256"] != _sha256(study.config(name)):
            raise ValueError(f"{path}: runs of another config {name}; give another --out or name")
        records.append(record)
    return records


def run_seed(study: Study, seed: int, missing: Mapping[str, set[str]]) -> Iterator[Record]:
    """Train and score what is missing of one seed; fp32 first, whose model eval-only takes."""
    dataset = _load_dataset(study.options, seed)
    if BASELINE in missing or any("eval-only" in modes for modes in missing.values()):
        started = time.perf_counter()
        fp32 = train_config(study, BASELINE, seed, dataset)
        base = _score(study, fp32, dataset)
        if BASELINE in missing:
            yield _record(study, BASELINE, seed, started, {"training": base})
    for name in (name for name in missing if name != BASELINE):
        started, parts = time.perf_counter(), {}
        if "eval-only" in missing[name]:
            on = _evaluate(study, fp32, dataset, _codecs(study, name))
            parts["eval_only"] = {"on": on, "off": base["test"]["off"]}
        if "training" in missing[name]:
            parts["training"] = _score(study, train_config(study, name, seed, dataset), dataset)
        yield _record(study, name, seed, started, parts)


def train_config(study: Study, name: str, seed: int, dataset: Dataset) -> EmulatedTraining:
    """The model that a config, fp32 or null gives from a seed."""
    options = study.options
    names = {f.name for f in dataclasses.fields(ModelConfig)} - {"seed"}
    model = ModelConfig(**{k: v for k, v in vars(options).items() if k in names}, seed=seed)
    if name == NULL:
        model = perturbed(model)
    codecs = _codecs(study, name)
    training = EmulatedTraining(model, dataset.num_embeddings, options.ranks, codecs)
    size = options.batch_size * options.ranks
    train(training, dataset, size, epochs=options.epochs, max_steps=options.steps)
    return training


def _score(study: Study, training: EmulatedTraining, dataset: Dataset) -> dict[str, Any]:
    exact = _codecs(study, BASELINE)
    off = _evaluate(study, training, dataset, exact)
    is_exact = training.codecs.exchange == exact.exchange
    return {
        "steps": len(training.losses),
        "progressive_logloss": sum(training.losses) / len(training.losses),
        "test": {
            "on": off if is_exact else _evaluate(study, training, dataset, training.codecs),
            "off": off,
        },
    }


def _evaluate(
    study: Study, training: EmulatedTraining, dataset: Dataset, codecs: Codecs
) -> dict[str, float]:
    return training.predict(dataset.test, study.options.batch_size * study.options.ranks, codecs)


def _codecs(study: Study, name: str) -> Codecs:
    config = config_from_dict(study.config(name), source=name)
    return Codecs.of(config, study.options.embedding_dim)


def _record(study: Study, name: str, seed: int, started: float, parts: dict[str, Any]) -> Record:
    config = study.config(name)
    return {
        "config": name,
        "seed": seed,
        **parts,
        "seconds": round(time.perf_counter() - started, 2),
        "codecs": config,
        "config_sha256": _sha256(config),
        "options": study.identity,
        "commit": commit(),
        "torch": torch.__version__,
        "time": time.time(),
    }


_loaded: dict[str, Dataset] = {}  # of this process: the last one


def _load_dataset(options: argparse.Namespace, seed: int) -> Dataset:
    """Real rows once a process, synthetic ones once a seed, as train.py --seed makes them."""
    key = f"synthetic rows of seed {seed}" if options.data is None else str(options.data)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = load_dataset(argparse.Namespace(**vars(options) | {"seed": seed}))
    return _loaded[key]


def _part(mode: str) -> str:
    return mode.replace("-", "_")


def _sha256(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
