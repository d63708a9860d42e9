"""Runs: trainings on a network (bench-net) and without (train.py), in one shape.

Knows: records, and that two configs are the same if they mean the same. A setup is all that must be
equal for two runs to be compared; a way is what differs: a config, or plain TorchRec.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from trec_qcomm.config import config_from_dict, config_to_dict
from trec_qcomm.report.records import Record

KINDS = {
    "rows forward": ("embedding_forward", "intra_embedding_forward"),
    "gradients backward": ("embedding_backward", "intra_embedding_backward"),
    "dense gradients": ("dense", "data_parallel"),
    "ids": ("input",),
}
BASES = ("stock", "fp32")  # what others are compared with: the first that is there
# Options that change neither what is learned nor what is sent.
_NO_MATTER = {
    "config", "out", "name", "log_every", "dump_rows", "timeout", "checkpoint_dir",
    "checkpoint_every", "resume", "eval_codec", "seed", "device", "ranks", "steps", "tensorboard",
}  # fmt: skip
_UNITS = {"": 1e-6, "k": 1e-3, "m": 1.0, "g": 1e3, "t": 1e6}


@dataclass(frozen=True)
class Setup:
    """Args: hosts: or ranks.  is_network: links of a given speed.  steps: of the training."""

    hosts: int
    is_network: bool
    steps: int
    delay: str | None
    options: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        options = dict(self.options)
        hosts = f"{self.hosts} {'hosts' if self.is_network else 'ranks'}"
        delay = f", delay {self.delay}" if self.delay else ""
        return (
            f"{hosts}{delay}, {options.get('batch_size', '?')} samples each, "
            f"dim {options.get('embedding_dim', '?')}, {self.steps} steps"
        )


@dataclass(frozen=True)
class Run:
    """Args: rate_mbit: of each link; None without a limit, or without a network.  sent_nbytes: a
    step and host, None if not known.  raw, wire: by kind of KINDS, likewise.  ne: of the test, as
    the way codes it; None where it was scored without its codecs only."""

    record: Record
    way: str
    setup: Setup
    seed: int
    rate_mbit: float | None
    sent_nbytes: float | None
    raw: Mapping[str, float] | None
    wire: Mapping[str, float] | None
    ne: float | None
    losses: Sequence[float]

    @property
    def step_s(self) -> Mapping[str, float]:
        """p20, p50, p80. Of a network only."""
        times: Mapping[str, float] = self.record["step_s"]
        return times

    @property
    def fingerprint(self) -> str | None:
        """Of the config's meaning; None of plain TorchRec, or where it is no config today."""
        text = self.record.get("config")
        return None if text is None else fingerprint(text)

    @property
    def merges_bags(self) -> bool:
        """Whether some table's equal bags are sent once."""
        config = self.record.get("config")
        return config is not None and _merges_bags(config)


def runs_of(records: Iterable[Record]) -> tuple[list[Run], int]:
    """Of each measurement the last record, in the order of the files; and how many came before.

    Where one name stands for two configs, both bear the beginning of theirs: `best (5408990b)`.
    """
    found: dict[tuple[Any, ...], Run] = {}
    earlier = 0
    for record in records:
        if record.kind in ("network", "training"):
            run = _run(record)
            key = (run.setup, run.way, _config_id(record), run.rate_mbit, run.seed)
            earlier += found.pop(key, None) is not None
            found[key] = run
    return _told_apart(list(found.values())), earlier


def _told_apart(runs: Sequence[Run]) -> list[Run]:
    meanings: dict[str, set[str]] = {}
    for run in runs:
        meanings.setdefault(run.way, set()).add(_config_id(run.record))
    return [
        run if len(meanings[run.way]) == 1
        else replace(run, way=f"{run.way} ({_config_id(run.record)[:8]})")
        for run in runs
    ]  # fmt: skip


def told_apart(runs: Iterable[Run]) -> list[str]:
    """The ways that runs_of gave another name than their records do."""
    return list(dict.fromkeys(run.way for run in runs if run.way != _way(run.record)))


def _config_id(record: Record) -> str:
    """The fingerprint of its config; of one that is none today, that of its text."""
    text = record.get("config")
    if text is None:
        return "plain"
    return fingerprint(text) or hashlib.sha256(text.encode()).hexdigest()


def _way(record: Record) -> str:
    if record.kind == "network":
        return str(record["way"])
    return Path(record["options"]["config"]).stem


def _run(record: Record) -> Run:
    try:
        return _network_run(record) if record.kind == "network" else _training_run(record)
    except (AttributeError, KeyError, TypeError) as error:
        where = f"{record.file}, line {record.line}"
        raise ValueError(f"{where}: a field is missing or of another type: {error!r}") from None


def _network_run(record: Record) -> Run:
    counted = record.get("counted")
    raw, wire = (
        {kind: fmean(map(sum, zip(*(counted[p][name] for p in parts), strict=True)))
         for kind, parts in KINDS.items()} if counted else None
        for name in ("raw_nbytes", "wire_nbytes")
    )  # fmt: skip
    setup = Setup(
        record["hosts"], True, len(record["losses"]), record.get("delay"), _options(record)
    )
    rate = _rate_mbit(record)
    sent = fmean(record["sent_nbytes"])
    return Run(
        record, _way(record), setup, _seed(record), rate, sent, raw, wire,
        record["metrics"]["ne"], record["losses"],
    )  # fmt: skip


def _training_run(record: Record) -> Run:
    counted = record.get("nbytes_per_step")
    raw, wire = (
        {kind: sum(counted[p][name] for p in parts) for kind, parts in KINDS.items()}
        if counted else None
        for name in ("raw_nbytes", "wire_nbytes")
    )  # fmt: skip
    metrics = record["metrics"]
    if not metrics.keys() & {"on", "off"}:
        raise ValueError(f"{record.file}, line {record.line}, metrics: expected on or off")
    is_plain = record.get("config") is None  # TorchRec alone, which has only "off"
    coded = metrics.get("on") or (metrics["off"] if is_plain else None)
    setup = Setup(record["world_size"], False, record["step"], None, _options(record))
    sent = sum(wire.values()) if wire else None
    ne = None if coded is None else coded["ne"]
    return Run(
        record, _way(record), setup, _seed(record), None, sent, raw, wire, ne, record["losses"]
    )


def _options(record: Record) -> tuple[tuple[str, str], ...]:
    """Those that matter and are set: what is null now may be unknown to older records."""
    items = sorted(record["options"].items())
    known = ((name, value) for name, value in items if value is not None)
    return tuple((name, str(value)) for name, value in known if name not in _NO_MATTER)


def _seed(record: Record) -> int:
    return int(record["options"].get("seed", 0))


def _rate_mbit(record: Record) -> float | None:
    text = record["rate"]
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)bit", text)
    if found and float(found[1]) > 0:
        return float(found[1]) * _UNITS[found[2]]
    if text == "none":
        return None
    raise ValueError(
        f"{record.file}, line {record.line}, rate: expected a number and bit, kbit, mbit, gbit or "
        f"tbit, or none, got {text!r}"
    )


@functools.lru_cache
def fingerprint(config: str) -> str | None:
    """What examples/criteo/accuracy.py calls config_sha256. None where it is no config today."""
    try:
        meaning = config_to_dict(config_from_dict(yaml.safe_load(config)))
    except (ValueError, yaml.YAMLError):
        return None
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()


@functools.lru_cache
def _merges_bags(config: str) -> bool:
    try:
        rules = config_from_dict(yaml.safe_load(config)).embedding
    except (ValueError, yaml.YAMLError):
        return "unique_bags:" in config
    return any(rule.unique_bags for rule in rules)


def by_setup(runs: Iterable[Run]) -> dict[Setup, list[Run]]:
    """In the order of the files."""
    found: dict[Setup, list[Run]] = {}
    for run in runs:
        found.setdefault(run.setup, []).append(run)
    return found


def ways_of(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """By way, in the order of the files."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.way, []).append(run)
    return found


def base_of(ways: Iterable[str]) -> str | None:
    """The way that others are compared with; None where none is there."""
    there = set(ways)
    return next((base for base in BASES if base in there), None)


def setup_labels(setups: Sequence[Setup]) -> dict[Setup, str]:
    """What to call each; options that tell two of the same name apart are added."""
    labels = {}
    for setup in setups:
        twins = [s for s in setups if str(s) == str(setup)]
        differing = {
            name for name, value in setup.options
            if any(dict(twin.options).get(name) != value for twin in twins)
        }  # fmt: skip
        more = [f"{name} {value}" for name, value in setup.options if name in differing]
        labels[setup] = ", ".join([str(setup), *more])
    return labels


def rate_text(rate_mbit: float | None) -> str:
    """100.0 -> 100 Mbit/s."""
    if rate_mbit is None:
        return "no limit"
    if rate_mbit >= 1e6:
        return f"{rate_mbit / 1e6:.3g} Tbit/s"
    if rate_mbit >= 1000:
        return f"{rate_mbit / 1000:.3g} Gbit/s"
    return f"{rate_mbit:.3g} Mbit/s"
