"""Measured steps: trainings between emulated hosts, and what they sent.

Reads the network records of make bench-net. Of plain TorchRec (`stock*`) only the kernel's count of
all bytes is known: its ids and dense gradients are the float32 ones that a config counted on as
many hosts, and the rest is rows and their gradients, half each.

Knows: network records, configs. Does not know: models of time.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from trec_qcomm.config import Config, config_from_dict
from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES
from trec_qcomm.ext.planner.traffic import FixedSizes
from trec_qcomm.lab.records import TRAFFIC_GROUPS, NetworkRecord, Scalar, read
from trec_qcomm.lab.simulate.between_hosts import dense_algorithm, sent_between_hosts
from trec_qcomm.lab.simulate.step import Configuration

UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
NO_LIMIT = "none"
_VALUES = 1024  # rows that a codec is asked for its size

Nbytes = dict[str, float]  # by group of traffic
Setup = tuple[tuple[str, Scalar], ...]  # sorted by name
PLAN_FIELDS = ("plan", "ranks_per_node")  # of a record's setup
TABLE_WISE, ROW_WISE = "table_wise", "row_wise"  # the first where a setup names none


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step of one configuration on one network.

    Args:
        configuration: name of the configuration.
        num_hosts: number of hosts.
        ranks_per_host: number of ranks of each.
        rate: rate of each host's link, as tc writes it.
        gb_s: GB/s of that rate; None without a limit.
        step_s: median seconds of the slowest host.
        config: what its YAML text says, as JSON of sorted keys; None of plain TorchRec.
        plan: name of the sharding plan.
        setup: what else a step depends on, sorted by name.
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

    def is_beside(self, other: "MeasuredStep") -> bool:
        """Return whether both are of one setup, plan and number of hosts."""
        ours, theirs = ((step.num_hosts, step.ranks_per_host, step.plan) for step in (self, other))
        return (ours, self.setup) == (theirs, other.setup)

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same on any link."""
        where = self.plan, self.num_hosts, self.ranks_per_host
        return self.configuration, *where, self.setup, self.config

    @property
    def place(self) -> str:
        """Words for where it was measured."""
        return f"{self.configuration}, {self.plan}, {self.hosts} hosts, {self.rate}"

    @property
    def hosts(self) -> str:
        """Number of hosts, and times that of the ranks of each where there are several."""
        times = f" x {self.ranks_per_host}" if self.ranks_per_host > 1 else ""
        return f"{self.num_hosts}{times}"


def load_steps(*paths: Path) -> tuple[list[MeasuredStep], list[str]]:
    """Return the steps of the files' main setup, of equal ones the last; and what is left out, why.

    The main setup is that of most steps. Plans may differ.

    Raises: ValueError naming file, line and field.
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
        beside = [other for other in steps.values() if other.is_beside(step) and other.config]
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


def parse_rate(rate: str) -> float | None:
    """Return the GB/s of "100mbit"; None of "none". Raises ValueError: neither."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)bit", rate)
    if match and float(match[1]) > 0:
        return float(match[1]) * UNITS[match[2]] / 8e9
    if rate == NO_LIMIT:
        return None
    raise ValueError(f"rate: {rate!r} is not {NO_LIMIT} or a number with bit, kbit, mbit, ...")


def find_configuration(name: str, steps: Sequence[MeasuredStep]) -> Configuration:
    """Return the ratios of a configuration, table-wise if it was measured so, at the fewest hosts.

    The last of these steps counts.
    Raises: ValueError naming the configuration and what there is.
    """
    named = [step for step in steps if step.configuration == name and step.ranks_per_host == 1]
    if not named:
        known = ", ".join(dict.fromkeys(step.configuration for step in steps))
        raise ValueError(f"configs: {name!r} was not measured; expected of {known}")
    step = min(reversed(named), key=lambda step: (step.plan != TABLE_WISE, step.num_hosts))
    ratios: dict[str, Any] = {}
    for group in ("forward", "backward", "dense"):
        raw, sent = step.distinct[group], step.sent[group]
        if not (raw > 0 and sent > 0):
            raise ValueError(
                f"configs: {name!r} has no ratio of {group}: {raw:.0f} bytes of float32 as "
                f"{sent:.0f} bytes, on {step.num_hosts} hosts, {step.rate}; expected both > 0"
            )
        ratios[group] = raw / sent
    if step.config is None:
        return Configuration(name=name, **ratios)
    config = config_from_dict(json.loads(step.config))
    return Configuration(
        name=name,
        distinct_share=min(1.0, step.distinct["forward"] / step.raw["forward"]),
        **ratios,
        ids=step.distinct["ids"] / step.sent["ids"] if step.sent["ids"] else 1.0,
        dense_algorithm=dense_algorithm(config),
        dense_intra=dense_intra_ratio(config),
        is_ours=True,
        sizes_first=any(not rule.forward.fixed_size for rule in config.embedding),
    )


def dense_values(steps: Sequence[MeasuredStep]) -> int:
    """Return the number of dense values, of which a ring sends 2 (N-1)/N in float32."""
    ours = [step for step in steps if step.config is not None and step.ranks_per_host == 1]
    step = next(step for step in ours if step.num_hosts > 1)
    share = 2 * (step.num_hosts - 1) / step.num_hosts
    return round(step.distinct["dense"] / share / FLOAT32_NBYTES)


def dense_intra_ratio(config: Config) -> float:
    """Return the ratio of the hop inside a node, of a hierarchical all-reduce."""
    rules = config.dense_rules
    if not rules or rules[0].intra is None:
        return 1.0
    num_values = _VALUES * rules[0].block
    nbytes = FixedSizes(rules[0].intra).nbytes(_VALUES, rules[0].block)
    return FLOAT32_NBYTES * num_values / nbytes


def _step(record: NetworkRecord) -> MeasuredStep:
    config = None if record.config is None else yaml.safe_load(record.config)
    hosts = [] if record.traffic is None else sent_between_hosts(record)
    return MeasuredStep(
        configuration=record.configuration,
        num_hosts=record.num_hosts,
        ranks_per_host=record.ranks_per_host,
        rate=record.rate,
        gb_s=parse_rate(record.rate),
        step_s=record.step_s.p50,
        config=None if record.config is None else json.dumps(config, sort_keys=True),
        plan=str(record.setup.get("plan", TABLE_WISE)),
        setup=tuple(item for item in record.setup_key if item[0] not in PLAN_FIELDS),
        sent={group: max((host[group] for host in hosts), default=0.0) for group in TRAFFIC_GROUPS},
        distinct=_busiest(record, "distinct_nbytes"),
        raw=_busiest(record, "raw_nbytes"),
    )


def _busiest(record: NetworkRecord, field: str) -> Nbytes:
    """Return the bytes by group of the rank that sends most of it; what was not counted is 0."""
    return {
        group: max(
            (
                sum(getattr(rank[kind], field) or 0.0 for kind in kinds if kind in rank)
                for rank in record.traffic or ()
            ),
            default=0.0,
        )
        for group, kinds in TRAFFIC_GROUPS.items()
    }


def _completed(
    step: MeasuredStep, record: NetworkRecord, beside: Sequence[MeasuredStep]
) -> MeasuredStep:
    """Return a step of plain TorchRec with the bytes that configs counted on as many hosts."""
    raw = {group: max(other.raw[group] for other in beside) for group in TRAFFIC_GROUPS}
    rows = (max(record.payload_nbytes) - raw["ids"] - raw["dense"]) / 2
    sent = raw | {"forward": rows, "backward": rows}
    return replace(step, raw=raw, distinct=raw, sent=sent)
