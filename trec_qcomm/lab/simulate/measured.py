"""Measured steps: trainings between emulated hosts, and the bytes that they sent.

This reads the network records of make bench-net. For plain TorchRec (`stock*`) only the kernel's
count of all bytes is known. Its ids and dense gradients are taken from a config's float32 counts on
as many hosts. The rest is rows and their gradients, half each.

Knows: network records, configs. Does not know: models of time.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from trec_qcomm.lab.records import TRAFFIC_GROUPS, NetworkRecord, Scalar, ValidationRecord, read
from trec_qcomm.lab.report.runs import parse_rate
from trec_qcomm.lab.simulate.between_hosts import by_group, sent_between_hosts

Nbytes = dict[str, float]  # by group of traffic
Setup = tuple[tuple[str, Scalar], ...]  # sorted by name
_PLAN_FIELDS = ("plan", "ranks_per_node")  # of a record's setup
_GB_MBIT = 8e3  # Mbit of a GB
TABLE_WISE, ROW_WISE = "table_wise", "row_wise"  # the first where a setup names none


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step of one configuration on one network.

    Args:
        configuration: name of the configuration.
        num_hosts: number of hosts.
        ranks_per_host: number of ranks of each host.
        rate: rate of each host's link, as tc writes it.
        gb_s: GB/s of that rate; None without a limit.
        step_s: median seconds of the slowest host.
        config: content of its YAML text, as JSON of sorted keys; None for plain TorchRec.
        plan: name of the sharding plan.
        setup: other facts on which a step depends, sorted by name.
        sent: bytes that leave the host that sends most, by group.
        distinct: float32 bytes of what a rank sends, by group.
        raw: float32 bytes of all bags of a rank, by group.
    """

    configuration: str
    num_hosts: int
    ranks_per_host: int = 1
    rate: str
    gb_s: float | None
    step_s: float
    config: str | None
    plan: str = TABLE_WISE
    setup: Setup
    sent: Nbytes
    distinct: Nbytes
    raw: Nbytes

    @property
    def where(self) -> tuple[object, ...]:
        """Facts that all configurations of one comparison share."""
        return self.plan, self.num_hosts, self.ranks_per_host, self.setup

    @property
    def key(self) -> tuple[object, ...]:
        """Facts that do not depend on the link."""
        return self.configuration, *self.where, self.config

    @property
    def place(self) -> str:
        """Place of the measurement, in words."""
        return f"{self.configuration}, {self.plan}, {hosts_text(self)} hosts, {self.rate}"


def hosts_text(measured: MeasuredStep | ValidationRecord) -> str:
    """Return the number of hosts, times the ranks of each if there are several."""
    several = measured.ranks_per_host > 1
    return f"{measured.num_hosts}{f' x {measured.ranks_per_host}' * several}"


def load_steps(*paths: Path) -> tuple[list[MeasuredStep], list[str]]:
    """Return the steps of the files' main setup, and what is left out, with the reason.

    The main setup is that of most steps. Plans may differ. If steps are equal, the last one counts.

    Raises: ValueError: a wrong line; the error names file, line and field.
    """
    steps: dict[tuple[object, ...], MeasuredStep] = {}
    left_out: list[str] = []
    uncounted: list[tuple[MeasuredStep, NetworkRecord]] = []
    for record in (record for path in paths for record in read(path)):
        if not isinstance(record, NetworkRecord):
            continue
        try:
            step = _step(record)
        except (ValueError, yaml.YAMLError) as error:
            raise ValueError(f"{record.origin}: {error}") from error
        if record.delay:
            left_out.append(f"{step.place}: a delay of {record.delay}")
        elif record.traffic is None and record.ranks_per_host > 1:
            left_out.append(f"{step.place}: what leaves a host of several ranks is not known")
        elif record.traffic is None:
            uncounted.append((step, record))
        elif not step.raw["forward"]:
            left_out.append(f"{step.place}: rows of all bags were not counted")
        else:
            steps[*step.key, step.rate] = step
    for step, record in uncounted:
        beside = [other for other in steps.values() if other.where == step.where and other.config]
        if beside:
            steps[*step.key, step.rate] = _completed(step, record, beside)
        else:
            left_out.append(f"{step.place}: no config beside it")
    if not steps:
        raise ValueError(f"{', '.join(map(str, paths))}: no step that can be used")
    setup = Counter(step.setup for step in steps.values()).most_common(1)[0][0]
    for step in steps.values():
        if step.setup != setup:
            values = [f"{name} {value}" for name, value in step.setup if (name, value) not in setup]
            said = ", ".join(values) or "less said of it"
            left_out.append(f"{step.place}: another setup, with {said}")
    return [step for step in steps.values() if step.setup == setup], left_out


def _step(record: NetworkRecord) -> MeasuredStep:
    config = None if record.config is None else yaml.safe_load(record.config)
    rate_mbit = parse_rate(record.rate)
    hosts = [] if record.traffic is None else sent_between_hosts(record)
    return MeasuredStep(
        configuration=record.configuration,
        num_hosts=record.num_hosts,
        ranks_per_host=record.ranks_per_host,
        rate=record.rate,
        gb_s=None if rate_mbit is None else rate_mbit / _GB_MBIT,
        step_s=record.step_s.p50,
        config=None if record.config is None else json.dumps(config, sort_keys=True),
        plan=str(record.setup.get("plan", TABLE_WISE)),
        setup=tuple(item for item in record.setup_key if item[0] not in _PLAN_FIELDS),
        sent={group: max((host[group] for host in hosts), default=0.0) for group in TRAFFIC_GROUPS},
        distinct=_busiest(record, "distinct_nbytes"),
        raw=_busiest(record, "raw_nbytes"),
    )


def _busiest(record: NetworkRecord, field: str) -> Nbytes:
    """Return the bytes by group of the rank that sends most of it; what was not counted is 0."""
    ranks = [by_group(rank, field) for rank in record.traffic or ()]
    return {group: max((rank[group] for rank in ranks), default=0.0) for group in TRAFFIC_GROUPS}


def _completed(
    step: MeasuredStep, record: NetworkRecord, beside: Sequence[MeasuredStep]
) -> MeasuredStep:
    """Return a step of plain TorchRec with the bytes that configs counted on as many hosts."""
    raw = {group: max(other.raw[group] for other in beside) for group in TRAFFIC_GROUPS}
    rows = (max(record.payload_nbytes) - raw["ids"] - raw["dense"]) / 2
    sent = raw | {"forward": rows, "backward": rows}
    return replace(step, raw=raw, distinct=raw, sent=sent)
