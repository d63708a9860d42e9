"""Runs: trainings with and without a network of a given speed, in one form.

A setup is all settings that must be equal for two runs to be compared. A configuration is what
differs: a config, or plain TorchRec.

Knows: records, and that two configs are the same if they mean the same.
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
# Keys of a setup that titles show where they are there.
_DISPLAYED = {"batch_size": "{} samples each", "embedding_dim": "dim {}", "plan": "{}"}

Item = TypeVar("Item")
Key = TypeVar("Key")
Bytes = Mapping[str, float]  # by group of traffic


@dataclass(frozen=True)
class Setup:
    """Settings that must be equal for two runs to be compared.

    Args:
        num_ranks: number of ranks, or of hosts.
        is_network: whether links have a given speed.
        steps: steps of the training.
        values: the records' `setup`, sorted by name.
        delay: delay of the links; None without.
        ranks_per_host: number of ranks of each host.
    """

    num_ranks: int
    is_network: bool
    steps: int
    values: tuple[tuple[str, Scalar], ...]
    delay: str | None = None
    ranks_per_host: int = 1

    def __str__(self) -> str:
        plural = "s" * (self.num_ranks != 1)
        of_ranks = f" of {self.ranks_per_host} ranks" if self.ranks_per_host > 1 else ""
        parts = [f"{self.num_ranks} {'host' if self.is_network else 'rank'}{plural}{of_ranks}"]
        parts += [f"delay {self.delay}"] if self.delay else []
        there = {name: str(value).replace("_", "-") for name, value in self.values}
        parts += [text.format(there[name]) for name, text in _DISPLAYED.items() if name in there]
        return ", ".join([*parts, f"{self.steps} steps"])


@dataclass(frozen=True)
class Run:
    """Training in the form that figures need.

    Args:
        record: the record from which it was read.
        configuration: name, followed by a hash if it stands for several configs.
        setup: settings that must be equal for a comparison.
        rate_mbit: Mbit/s of each link; None without a limit, or without a network.
        traffic: counts of each host; empty if unknown. Also empty for hosts of several ranks,
            because part of what these count stays inside a host.
    """

    record: NetworkRecord | TrainingRecord
    configuration: str
    setup: Setup
    rate_mbit: float | None
    traffic: Sequence[TrafficByKind]

    @property
    def ne(self) -> float | None:
        """Normalized entropy of the test with the codecs on; None if it was not measured."""
        return self.record.metrics.get("ne")

    @property
    def step_s(self) -> Mapping[str, float]:
        """Seconds of a step: p20, p50, p80. Raises ValueError if they were not measured."""
        if self.record.step_s is None:
            raise ValueError(f"{self.record.origin}: step_s is missing")
        return vars(self.record.step_s)

    @property
    def sent_nbytes(self) -> float | None:
        """Bytes that a host sends in a step; None if they are unknown."""
        if isinstance(self.record, NetworkRecord):
            return fmean(self.record.sent_nbytes)
        wire = self.by_group("wire_nbytes")
        return sum(wire.values()) if wire else None

    def by_group(self, field: str) -> Bytes | None:
        """Return the bytes of a step by group, the mean over hosts; None if not counted.

        Args: field: "raw_nbytes" (float32 of all bags), "distinct_nbytes" (float32 of what is
            sent) or "wire_nbytes".
        """
        sums = dict.fromkeys(TRAFFIC_GROUPS, 0.0)
        for group, kinds in TRAFFIC_GROUPS.items():
            for kind in kinds:
                counts = [getattr(host[kind], field) for host in self.traffic if kind in host]
                if None in counts:
                    return None
                sums[group] += sum(counts) / max(1, len(self.traffic))
        return sums if self.traffic else None


def runs_of(records: Iterable[Record]) -> list[Run]:
    """Return the last record of each measurement as a run.

    If one name stands for two configs, each is followed by the beginning of its hash: `best
    (5408990b)`.
    """
    runs: dict[tuple[object, ...], Run] = {}
    for record in records:
        if isinstance(record, NetworkRecord | TrainingRecord):
            run = _run(record)
            key = (run.setup, record.configuration, config_id(record), run.rate_mbit, record.seed)
            runs.pop(key, None)
            runs[key] = run
    ids = {
        name: {config_id(run.record) for run in group}
        for name, group in by_configuration(runs.values()).items()
    }
    return [
        run if len(ids[run.configuration]) == 1
        else replace(run, configuration=f"{run.configuration} ({config_id(run.record)[:8]})")
        for run in runs.values()
    ]  # fmt: skip


def _run(record: NetworkRecord | TrainingRecord) -> Run:
    if isinstance(record, TrainingRecord):
        setup = Setup(record.num_ranks, False, record.steps, record.setup_key)
        traffic = () if record.traffic is None else (record.traffic,)
        return Run(record, record.configuration, setup, None, traffic)
    if not record.sent_nbytes:
        raise ValueError(f"{record.origin}, sent_nbytes: expected a number a host, got none")
    setup = Setup(
        record.num_hosts, True, len(record.losses), record.setup_key, record.delay,
        record.ranks_per_host,
    )  # fmt: skip
    hosts = record.traffic if record.traffic and record.ranks_per_host == 1 else ()
    try:
        rate_mbit = parse_rate(record.rate)
    except ValueError as error:
        raise ValueError(f"{record.origin}, {error}") from error
    return Run(record, record.configuration, setup, rate_mbit, hosts)


def config_id(record: Record) -> str:
    """Return the hash of a record's config, or of its text if it is no config today."""
    if record.config is None:
        return "plain"
    return fingerprint(record.config) or hashlib.sha256(record.config.encode()).hexdigest()


@functools.lru_cache
def fingerprint(config: str) -> str | None:
    """Return the SHA-256 of a config's meaning; None if the text is no config today."""
    try:
        meaning = config_to_dict(config_from_dict(parse_yaml(config, name="config")))
    except ValueError:
        return None
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()


def parse_rate(rate: str) -> float | None:
    """Return the Mbit/s of a rate as tc writes it, "100mbit"; None for "none".

    Raises: ValueError: another text.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)bit", rate)
    if match and float(match[1]) > 0:
        return float(match[1]) * _UNITS[match[2]]
    if rate == "none":
        return None
    raise ValueError(
        f"rate: expected a number and bit, kbit, mbit, gbit or tbit, or none, got {rate!r}"
    )


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key, both in the order in which they came."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def by_configuration(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs by configuration, in the order of the files."""
    return grouped(runs, lambda run: run.configuration)


def baseline_of(configurations: Iterable[str]) -> str | None:
    """Return the configuration with which others are compared; None if there is none."""
    there = set(configurations)
    return next((baseline for baseline in BASELINES if baseline in there), None)


def by_setup(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs by the name of their setup, in the order of the files.

    Values that distinguish two setups of one name are added to the name.
    """
    groups, labelled = grouped(runs, lambda run: run.setup), {}
    for setup, group in groups.items():
        twins = [set(other.values) for other in groups if str(other) == str(setup)]
        common = set.intersection(*twins)
        more = [f"{name} {value}" for name, value in setup.values if (name, value) not in common]
        labelled[", ".join([str(setup), *more])] = group
    return labelled


def rate_text(rate_mbit: float | None) -> str:
    """Return a rate with its unit: 100.0 is "100 Mbit/s"."""
    if rate_mbit is None:
        return "no limit"
    size, unit = next((s, u) for s, u in ((1e6, "T"), (1e3, "G"), (0, "M")) if rate_mbit >= s)
    return f"{rate_mbit / (size or 1):.3g} {unit}bit/s"
