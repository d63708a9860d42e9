"""Runs: trainings with and without a network of a given speed, in one shape.

Knows: records, and that two configs are the same if they mean the same. A setup is all that must be
equal for two runs to be compared; a configuration is what differs: a config, or plain TorchRec.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

from trec_qcomm.config import config_from_dict, config_to_dict, parse_yaml
from trec_qcomm.lab.records import (
    TRAFFIC_GROUPS,
    NetworkRecord,
    Record,
    Scalar,
    TrafficByKind,
    TrainingRecord,
)

BASELINES = ("stock", "fp32")  # what others are compared with: the first that is there
_UNITS = {"": 1e-6, "k": 1e-3, "m": 1.0, "g": 1e3, "t": 1e6}
_DISPLAYED = (  # keys of a setup that titles show where they are there
    ("batch_size", "{} samples each"),
    ("embedding_dim", "dim {}"),
    ("plan", "{}"),
)

Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Setup:
    """All that must be equal for two runs to be compared.

    Args:
        num_ranks: number of ranks, or of hosts.
        is_network: links have a given speed.
        steps: steps of the training.
        delay: delay of the links; None without.
        values: the records' `setup`, sorted by name.
        ranks_per_host: number of ranks of each host.
    """

    num_ranks: int
    is_network: bool
    steps: int
    delay: str | None
    values: tuple[tuple[str, Scalar], ...]
    ranks_per_host: int = 1

    def get(self, name: str) -> Scalar | None:
        """Return a value of the records' `setup`; None where it is not there."""
        return dict(self.values).get(name)

    def __str__(self) -> str:
        noun = "host" if self.is_network else "rank"
        of_ranks = f" of {self.ranks_per_host} ranks" if self.ranks_per_host > 1 else ""
        parts = [f"{self.num_ranks} {noun}{'s' * (self.num_ranks != 1)}{of_ranks}"]
        parts += [f"delay {self.delay}"] if self.delay else []
        parts += displayed(dict(self.values))
        return ", ".join([*parts, f"{self.steps} steps"])


def displayed(values: Mapping[str, Scalar]) -> list[str]:
    """Return what a title says of a setup: what is there of the few names that are shown."""
    return [
        text.format(str(values[name]).replace("_", "-"))
        for name, text in _DISPLAYED if name in values
    ]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A training as figures need it.

    Args:
        record: the record that it was read from.
        configuration: name, followed by a hash where it stands for several configs.
        setup: all that must be equal for it to be compared.
        seed: seed of the training.
        rate_mbit: Mbit/s of each link; None without a limit, or without a network.
        sent_nbytes: bytes that a host sends in a step; None where they are not known.
        raw, distinct, wire: bytes by group of traffic: float32 of all bags, float32 of what is
            sent, and what is sent; None where they are not known, and of hosts of several ranks,
            as part of what these count stays inside a host.
        ne: normalized entropy of the test with the codecs on; None where it was not measured.
        losses: training loss of each step.
    """

    record: NetworkRecord | TrainingRecord
    configuration: str
    setup: Setup
    seed: int
    rate_mbit: float | None
    sent_nbytes: float | None
    raw: Mapping[str, float] | None
    distinct: Mapping[str, float] | None
    wire: Mapping[str, float] | None
    ne: float | None
    losses: Sequence[float]

    @property
    def step_s(self) -> Mapping[str, float]:
        """Seconds of a step: p20, p50, p80. Raises ValueError: they were not measured."""
        if self.record.step_s is None:
            raise ValueError(f"{self.record.origin}: step_s is missing")
        return vars(self.record.step_s)

    @property
    def fingerprint(self) -> str | None:
        """Hash of what the config means; None of plain TorchRec, or where it is no config today."""
        return None if self.record.config is None else fingerprint(self.record.config)


def runs_of(records: Iterable[Record]) -> tuple[list[Run], int]:
    """Return the last record of each measurement as a run, and how many others came before.

    Where one name stands for two configs, both bear the beginning of theirs: `best (5408990b)`.
    """
    runs: dict[tuple[object, ...], Run] = {}
    num_earlier = 0
    for record in records:
        if not isinstance(record, NetworkRecord | TrainingRecord):
            continue
        run = _network_run(record) if isinstance(record, NetworkRecord) else _training_run(record)
        key = (run.setup, run.configuration, config_id(record), run.rate_mbit, run.seed)
        num_earlier += runs.pop(key, None) is not None
        runs[key] = run
    return _with_hashes(list(runs.values())), num_earlier


def _with_hashes(runs: Sequence[Run]) -> list[Run]:
    ids: dict[str, set[str]] = {}
    for run in runs:
        ids.setdefault(run.configuration, set()).add(config_id(run.record))
    return [
        run if len(ids[run.configuration]) == 1
        else replace(run, configuration=f"{run.configuration} ({config_id(run.record)[:8]})")
        for run in runs
    ]  # fmt: skip


def renamed(runs: Iterable[Run]) -> list[str]:
    """Return the configurations that runs_of gave another name than their records have."""
    names = (r.configuration for r in runs if r.configuration != r.record.configuration)
    return list(dict.fromkeys(names))


def config_id(record: Record) -> str:
    """Return the hash of what a record's config means; where it is no config today, of its text."""
    if record.config is None:
        return "plain"
    return fingerprint(record.config) or hashlib.sha256(record.config.encode()).hexdigest()


@functools.lru_cache
def fingerprint(config: str) -> str | None:
    """Return the SHA-256 of what a config means; None where the text is no config today."""
    try:
        meaning = config_to_dict(config_from_dict(parse_yaml(config, name="config")))
    except ValueError:
        return None
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()


def _network_run(record: NetworkRecord) -> Run:
    if not record.sent_nbytes:
        raise ValueError(f"{record.origin}, sent_nbytes: expected a number a host, got none")
    return Run(
        record=record,
        configuration=record.configuration,
        setup=Setup(
            record.num_hosts, True, len(record.losses), record.delay, record.setup_key,
            record.ranks_per_host,
        ),
        seed=record.seed,
        rate_mbit=_rate_mbit(record),
        sent_nbytes=fmean(record.sent_nbytes),
        **_by_group(record.traffic if record.ranks_per_host == 1 else None),
        ne=record.metrics.get("ne"),
        losses=record.losses,
    )  # fmt: skip


def _training_run(record: TrainingRecord) -> Run:
    by_group = _by_group(None if record.traffic is None else [record.traffic])
    return Run(
        record=record,
        configuration=record.configuration,
        setup=Setup(record.num_ranks, False, record.steps, None, record.setup_key),
        seed=record.seed,
        rate_mbit=None,
        sent_nbytes=None if by_group["wire"] is None else sum(by_group["wire"].values()),
        **by_group,
        ne=record.metrics.get("ne"),
        losses=record.losses,
    )


def _by_group(hosts: Sequence[TrafficByKind] | None) -> dict[str, dict[str, float] | None]:
    """Return raw, distinct and wire bytes by group, the mean over hosts."""
    names = {"raw": "raw_nbytes", "distinct": "distinct_nbytes", "wire": "wire_nbytes"}
    return {name: _summed(hosts, field) if hosts else None for name, field in names.items()}


def _summed(hosts: Sequence[TrafficByKind], field: str) -> dict[str, float] | None:
    """Return one number by group; None where a kind of traffic was not counted."""
    sums = dict.fromkeys(TRAFFIC_GROUPS, 0.0)
    for group, kinds in TRAFFIC_GROUPS.items():
        for traffic in hosts:
            for kind in kinds:
                nbytes = getattr(traffic[kind], field) if kind in traffic else 0.0
                if nbytes is None:
                    return None
                sums[group] += nbytes / len(hosts)
    return sums


def _rate_mbit(record: NetworkRecord) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)bit", record.rate)
    if match and float(match[1]) > 0:
        return float(match[1]) * _UNITS[match[2]]
    if record.rate == "none":
        return None
    raise ValueError(
        f"{record.origin}, rate: expected a number and bit, kbit, mbit, gbit or tbit, or none, "
        f"got {record.rate!r}"
    )


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key, both in the order in which they came."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def by_setup(runs: Iterable[Run]) -> dict[Setup, list[Run]]:
    """Return the runs by setup, in the order of the files."""
    return grouped(runs, lambda run: run.setup)


def by_configuration(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs by configuration, in the order of the files."""
    return grouped(runs, lambda run: run.configuration)


def baseline_of(configurations: Iterable[str]) -> str | None:
    """Return the configuration that others are compared with; None where none is there."""
    there = set(configurations)
    return next((baseline for baseline in BASELINES if baseline in there), None)


def setup_labels(setups: Sequence[Setup]) -> dict[Setup, str]:
    """Return what to call each setup; values that tell two of the same name apart are added."""
    labels = {}
    for setup in setups:
        twins = [other for other in setups if str(other) == str(setup)]
        names = sorted({name for twin in twins for name, _ in twin.values})
        differing = [name for name in names if len({twin.get(name) for twin in twins}) > 1]
        more = [f"{name} {setup.get(name)}" for name in differing if setup.get(name) is not None]
        labels[setup] = ", ".join([str(setup), *more])
    return labels


def rate_text(rate_mbit: float | None) -> str:
    """Return a rate with its unit: 100.0 is "100 Mbit/s"."""
    if rate_mbit is None:
        return "no limit"
    if rate_mbit >= 1e6:
        return f"{rate_mbit / 1e6:.3g} Tbit/s"
    if rate_mbit >= 1000:
        return f"{rate_mbit / 1000:.3g} Gbit/s"
    return f"{rate_mbit:.3g} Mbit/s"
