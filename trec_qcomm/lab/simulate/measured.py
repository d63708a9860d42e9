"""Measured steps: trainings between emulated hosts, and what they sent.

Reads the network records of make bench-net. Of plain TorchRec (`stock*`) only the kernel's count of
all bytes is known: its ids and dense gradients are the float32 ones that a config counted on as
many hosts, and the rest is rows and their gradients, half each. Records from before raw bytes were
counted know only what is left after equal bags were merged, so one that merges none has to be
there.

Knows: network records, configs. Does not know: models of time.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from trec_qcomm.config import Config, config_from_dict
from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES
from trec_qcomm.ext.planner.traffic import FixedSizes
from trec_qcomm.lab.records import TRAFFIC_GROUPS, NetworkRecord, Scalar, TrafficByKind, read
from trec_qcomm.lab.simulate.between_hosts import sent_between_hosts
from trec_qcomm.lab.simulate.step import Configuration

UNITS = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
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
        raw: float32 bytes of all bags, by group; None where they were not counted.
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
    raw: Nbytes | None

    def is_beside(self, other: "MeasuredStep") -> bool:
        """Return whether both are of one setup, plan and number of hosts."""
        ours, theirs = ((step.num_hosts, step.ranks_per_host, step.plan) for step in (self, other))
        return (ours, self.setup) == (theirs, other.setup)

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
            line = 0 if record.origin is None else record.origin.line
            left_out.append(f"line {line}: {step.configuration}: a delay of {record.delay}")
        elif record.traffic is None and record.ranks_per_host > 1:
            left_out.append(f"{step.place}: what leaves a host of several ranks is not known")
        elif record.traffic is None:
            uncounted.append((step, record))
        else:
            steps[_key(step)] = step
    for step, record in uncounted:
        beside = [other for other in steps.values() if other.is_beside(step)]
        if not beside:
            left_out.append(f"{step.place}: no config beside it")
            continue
        try:
            steps[_key(step)] = _completed(step, record, beside)
        except ValueError as error:
            where = ", ".join(map(str, paths))
            raise ValueError(f"{where}: {step.configuration}, {step.rate}: {error}") from error
    if not steps:
        raise ValueError(f"{', '.join(map(str, paths))}: no step that can be used")
    setup = _main_setup(list(steps.values()))
    for step in steps.values():
        if step.setup != setup:
            left_out.append(f"{step.place}: another setup, with {_difference(step.setup, setup)}")
    return [step for step in steps.values() if step.setup == setup], left_out


def _main_setup(steps: Sequence[MeasuredStep]) -> Setup:
    """Return the setup of most steps; the model of a step is fitted within one."""
    return Counter(step.setup for step in steps).most_common(1)[0][0]


def _difference(setup: Setup, other: Setup) -> str:
    """Return the values of a setup that the other one does not have."""
    values = [f"{name} {value}" for name, value in setup if (name, value) not in other]
    return ", ".join(values) or "less said of it"


def parse_rate(rate: str) -> float | None:
    """Return the GB/s of "100mbit"; None of "none". Raises ValueError: neither."""
    for unit in sorted(UNITS, key=len, reverse=True):
        number = rate.removesuffix(unit)
        if number != rate and number.replace(".", "", 1).isdigit() and float(number) > 0:
            return float(number) * UNITS[unit] / 8e9
    if rate == NO_LIMIT:
        return None
    raise ValueError(f"rate: {rate!r} is not {NO_LIMIT} or a number with {', '.join(UNITS)}")


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
    is_ours = step.config is not None
    for group in ("forward", "backward", "dense"):
        raw, sent = step.distinct[group], step.sent[group]
        if not (raw > 0 and sent > 0):
            raise ValueError(
                f"configs: {name!r} has no ratio of {group}: {raw:.0f} bytes of float32 as "
                f"{sent:.0f} bytes, on {step.num_hosts} hosts, {step.rate}; expected both > 0"
            )
    distinct_share = 1.0
    if is_ours and _merges(step):
        beside = [other for other in steps if other.is_beside(step)]
        try:
            all_bags = _all_bags(step, beside)
        except ValueError as error:
            raise ValueError(f"configs: {name!r}: {error}") from error
        distinct_share = min(1.0, step.distinct["forward"] / all_bags["forward"])
    return Configuration(
        name=name,
        distinct_share=distinct_share,
        forward=step.distinct["forward"] / step.sent["forward"],
        backward=step.distinct["backward"] / step.sent["backward"],
        dense=step.distinct["dense"] / step.sent["dense"],
        ids=step.distinct["ids"] / step.sent["ids"] if is_ours and step.sent["ids"] else 1.0,
        dense_algorithm=_dense_algorithm(step) if is_ours else None,
        dense_intra=dense_intra_ratio(_config(step)) if is_ours else 1.0,
        is_ours=is_ours,
        sizes_first=is_ours and _sizes_first(step),
    )


def dense_values(steps: Sequence[MeasuredStep]) -> int:
    """Return the number of dense values, of which a ring sends 2 (N-1)/N in float32."""
    ours = [step for step in steps if step.config is not None and step.ranks_per_host == 1]
    step = next(step for step in ours if step.num_hosts > 1)
    share = 2 * (step.num_hosts - 1) / step.num_hosts
    return round(step.distinct["dense"] / share / FLOAT32_NBYTES)


def _step(record: NetworkRecord) -> MeasuredStep:
    nothing = dict.fromkeys(TRAFFIC_GROUPS, 0.0)
    return MeasuredStep(
        configuration=record.configuration,
        num_hosts=record.num_hosts,
        ranks_per_host=record.ranks_per_host,
        rate=record.rate,
        gb_s=parse_rate(record.rate),
        step_s=record.step_s.p50,
        config=_meaning(record.config),
        plan=str(record.setup.get("plan", TABLE_WISE)),
        setup=tuple(item for item in record.setup_key if item[0] not in PLAN_FIELDS),
        sent=_most_sent(record) or nothing,
        distinct=_busiest(record.traffic, "distinct_nbytes") or nothing,
        raw=_busiest(record.traffic, "raw_nbytes"),
    )


def _busiest(hosts: Sequence[TrafficByKind] | None, field: str) -> Nbytes | None:
    """Return the bytes by group of the rank that sends most of it; None where not counted."""
    busiest = dict.fromkeys(TRAFFIC_GROUPS, 0.0)
    for traffic in hosts or ():
        for group, kinds in TRAFFIC_GROUPS.items():
            counts = [getattr(traffic[kind], field) for kind in kinds if kind in traffic]
            if None in counts:
                return None
            busiest[group] = max(busiest[group], sum(counts))
    return busiest if hosts else None


def _most_sent(record: NetworkRecord) -> Nbytes | None:
    """Return the bytes by group that leave the host that sends most of it; None: not counted."""
    if record.traffic is None:
        return None
    hosts = sent_between_hosts(record)
    return {group: max(host[group] for host in hosts) for group in TRAFFIC_GROUPS}


def _meaning(text: str | None) -> str | None:
    return None if text is None else json.dumps(yaml.safe_load(text), sort_keys=True)


def _key(step: MeasuredStep) -> tuple[object, ...]:
    where = step.plan, step.num_hosts, step.ranks_per_host, step.rate
    return step.configuration, *where, step.setup, step.config


def _completed(
    step: MeasuredStep, record: NetworkRecord, beside: Sequence[MeasuredStep]
) -> MeasuredStep:
    """Return a step of plain TorchRec with the bytes that configs counted on as many hosts."""
    sent = max(record.payload_nbytes)
    raw = _all_bags(step, beside)
    rows = (sent - raw["ids"] - raw["dense"]) / 2
    return replace(
        step, raw=raw, distinct=raw, sent=raw | {"forward": rows, "backward": rows}
    )  # fmt: skip


def _all_bags(step: MeasuredStep, beside: Sequence[MeasuredStep]) -> Nbytes:
    """Return the float32 bytes of all bags by group.

    Args: beside: steps of the same setup and number of hosts.
    Raises: ValueError: none of them counted all bags, and all merge equal ones.
    """
    ours = [other for other in beside if other.config is not None]
    counts = [other.raw or other.distinct for other in ours if other.raw or not _merges(other)]
    if not counts:
        merging = ", ".join(dict.fromkeys(other.configuration for other in ours))
        raise ValueError(
            f"the bytes of all bags are not known: on {step.num_hosts} hosts only {merging} was "
            "measured, merging equal bags; expected a config with unique_bags: false beside it"
        )
    return {group: max(count[group] for count in counts) for group in TRAFFIC_GROUPS}


def _config(step: MeasuredStep) -> Config:
    return config_from_dict(json.loads(step.config or "null"))


def _merges(step: MeasuredStep) -> bool:
    """Return whether equal bags go once. A record's config may be none that is read today."""
    config = json.loads(step.config or "null") or {}
    return any(rule.get("unique_bags", False) is not False for rule in config.get("embedding", ()))


def _dense_algorithm(step: MeasuredStep) -> str | None:
    """Return the algorithm of our all-reduce; None where TorchRec's own is used."""
    rules = _config(step).dense_rules
    return rules[0].algorithm if rules else None


def dense_intra_ratio(config: Config) -> float:
    """Return the ratio of the hop inside a node, of a hierarchical all-reduce."""
    rules = config.dense_rules
    if not rules or rules[0].intra is None:
        return 1.0
    num_values = _VALUES * rules[0].block
    nbytes = FixedSizes(rules[0].intra).nbytes(_VALUES, rules[0].block)
    return FLOAT32_NBYTES * num_values / nbytes


def _sizes_first(step: MeasuredStep) -> bool:
    return any(not rule.forward.fixed_size for rule in _config(step).embedding)
