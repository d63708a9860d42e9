"""Predicted beside counted bytes of steps between emulated hosts, by group of traffic.

Rows, gradients, ids and the gradients of DATA_PARALLEL tables are predicted by control.traffic from
recorded sizes of segments, for the plan that the record names. Dense gradients: those of a ring in
float32, over the ratio that the configuration had on the fewest hosts, so there they are no
prediction; of a hierarchical all-reduce, a ring's between nodes of an L-th of them. The sum stands
beside what the kernel counted. Of hosts of several ranks that is what leaves a host.

Knows: network records, records of sizes. Does not know: seconds.
Shapes: N hosts, of L ranks; bytes are those that a host sends in a step, the mean over hosts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from trec_qcomm.config import Config
from trec_qcomm.ext.planner.traffic import (
    MeasuredTable,
    Place,
    Sharded,
    TouchedTable,
    frame_header_nbytes,
    reduced_nbytes,
    sent_nbytes,
)
from trec_qcomm.lab.records import TRAFFIC_GROUPS, BytesRecord, NetworkRecord, TableSizesRecord
from trec_qcomm.lab.simulate.between_hosts import (
    config_of,
    dense_algorithm,
    sent_between_hosts,
    shares_between_hosts,
)
from trec_qcomm.lab.simulate.measured import PLAN_FIELDS, dense_intra_ratio
from trec_qcomm.lab.simulate.report import table as aligned
from trec_qcomm.lab.sizes import load_measured

WITHIN = 0.05  # predicted / counted is asked to be this near to 1
SHARDINGS = {  # of the plans that the Criteo example knows
    "table_wise": "table_wise",
    "row_wise": "row_wise",
    "column_wise": "column_wise",
    "two_level": "table_row_wise",
    "grid": "grid_shard",
}
MIXED = "mixed"  # small tables on every rank, the largest of the others by columns, the rest whole
MIXED_BELOW_ROWS, MIXED_LARGEST = 100, 3
KINDS = {  # of traffic, by the names of TableBytes
    "forward": "embedding_forward",
    "backward": "embedding_backward",
    "intra_forward": "intra_embedding_forward",
    "intra_backward": "intra_embedding_backward",
    "ids": "input",
}


@dataclass(frozen=True, kw_only=True)
class CountedBytes:
    """Bytes of a step, by group of traffic.

    Args:
        record: the measurement.
        predicted, counted: bytes by group.
        num_ranks: ranks of the training that the sizes are from.
        fits_dense: whether the ratio of dense gradients is this record's own.
    """

    record: NetworkRecord
    predicted: Mapping[str, float]
    counted: Mapping[str, float]
    num_ranks: int
    fits_dense: bool

    @property
    def plan(self) -> str:
        """Name of the sharding plan."""
        return str(self.record.setup["plan"])

    def ratio(self, group: str) -> float:
        """Return predicted over counted bytes of a group."""
        return self.predicted[group] / self.counted[group]

    @property
    def kernel_ratio(self) -> float:
        """Predicted bytes of all groups, over the kernel's count without headers of packets."""
        return sum(self.predicted.values()) / fmean(self.record.payload_nbytes)

    @property
    def holds(self) -> bool:
        """Whether the sum is within 5 % of the kernel's count."""
        return abs(self.kernel_ratio - 1) <= WITHIN


def predict_counted(
    records: Sequence[NetworkRecord], sizes: Sequence[TableSizesRecord]
) -> list[CountedBytes]:
    """Return the prediction of each configuration, plan and number of hosts that has sizes.

    Of several networks the last counts, as bytes do not depend on the network. Sizes are of the
    same number of ranks where there are such.
    """
    latest: dict[tuple[object, ...], NetworkRecord] = {}
    for record in records:
        if record.traffic is not None and record.setup.get("plan") in (*SHARDINGS, MIXED):
            place = (record.num_hosts, record.ranks_per_host)
            key = (record.configuration, place, record.setup_key)
            latest[key] = record
    predictions = []
    for record in latest.values():
        fitting = [s for s in sizes if _is_of(s, record)]
        fitting.sort(key=lambda s: s.num_ranks == record.num_hosts * record.ranks_per_host)
        if fitting:
            predictions.append(
                _predict(record, fitting[-1], _fewest_hosts(record, latest.values()))
            )
    return predictions


def _is_of(sizes: TableSizesRecord, record: NetworkRecord) -> bool:
    """Return whether the sizes are of the record's model, data and configuration."""
    same_setup = set(sizes.setup.items()) <= set(record.setup.items())
    return same_setup and sizes.configuration == record.configuration


def _fewest_hosts(record: NetworkRecord, records: Iterable[NetworkRecord]) -> NetworkRecord:
    """Return the record of the same configuration with the fewest hosts, whatever the plan.

    One of hosts of one rank each, if there is one.
    """
    alike = [
        r
        for r in records
        if r.configuration == record.configuration and _without_plan(r) == _without_plan(record)
    ]
    return min(alike, key=lambda r: (r.ranks_per_host, r.num_hosts))


def _without_plan(record: NetworkRecord) -> dict[str, object]:
    return {k: v for k, v in record.setup.items() if k not in PLAN_FIELDS}


def _predict(record: NetworkRecord, sizes: TableSizesRecord, fewest: NetworkRecord) -> CountedBytes:
    config, num_ranks = config_of(record), record.num_hosts * record.ranks_per_host
    node_size = int(record.setup.get("ranks_per_node", record.ranks_per_host))
    place = Place(num_ranks=num_ranks, node_size=node_size)
    tables = load_measured([sizes], config)
    shardings = shardings_of(str(record.setup["plan"]), tables)
    by_kind = rank_nbytes(tables, config, shardings, place)
    by_host = Place(num_ranks=num_ranks, node_size=record.ranks_per_host)
    by_kind |= _dense_nbytes(config, fewest, by_host)
    shares = shares_between_hosts(record)
    predicted = {
        group: sum(record.ranks_per_host * shares[kind] * by_kind.get(kind, 0.0) for kind in kinds)
        for group, kinds in TRAFFIC_GROUPS.items()
    }
    hosts = sent_between_hosts(record)
    return CountedBytes(
        record=record,
        predicted=predicted,
        counted={group: fmean(host[group] for host in hosts) for group in TRAFFIC_GROUPS},
        num_ranks=sizes.num_ranks,
        fits_dense=fewest is record,
    )


def _dense_nbytes(config: Config, flat: NetworkRecord, place: Place) -> dict[str, float]:
    """Return the bytes of dense gradients that a rank sends in a step, by kind.

    Args:
        flat: record whose ratio counts; of a hierarchical all-reduce it is of hosts of one rank.
        place: ranks and hosts; these are the nodes of a hierarchical all-reduce.
    Raises: ValueError: it is not, or counted a hop inside nodes.
    """
    (raw, sent), num_ranks = _dense_of(flat), flat.num_hosts * flat.ranks_per_host
    values_nbytes, ratio = raw / _ring_share(num_ranks), raw / sent
    is_hierarchical = dense_algorithm(config) == "hierarchical"
    if is_hierarchical and flat.ranks_per_host > 1:
        raise ValueError(
            f"{flat.origin or flat.configuration}: hosts of {flat.ranks_per_host} ranks; expected "
            "a record of hosts of one rank beside it, for the ratio of dense gradients"
        )
    if flat.ranks_per_host == 1 and _has_hops(flat):
        raise ValueError(
            f"{flat.origin or flat.configuration}: ranks_per_host: 1, but dense gradients were "
            "sent inside nodes; expected the number of ranks of a node"
        )
    if not is_hierarchical or place.node_size == 1:
        return {"dense": _ring_share(place.num_ranks) * values_nbytes / ratio}
    inside = (place.node_size - 1) / place.node_size
    return {
        "dense": _ring_share(place.num_nodes) * values_nbytes / place.node_size / ratio,
        "intra_dense": inside * values_nbytes * (1 / dense_intra_ratio(config) + 1 / ratio),
    }


def _has_hops(record: NetworkRecord) -> bool:
    """Return whether dense gradients were sent inside nodes."""
    ranks = [rank["intra_dense"] for rank in record.traffic or () if "intra_dense" in rank]
    return any(rank.wire_nbytes > 0 for rank in ranks)


def _ring_share(num: int) -> float:
    return 2 * (num - 1) / num


def shardings_of(plan: str, tables: Mapping[str, MeasuredTable]) -> dict[str, str]:
    """Return the sharding of each table. Args: plan: a key of SHARDINGS, or MIXED.

    Raises: ValueError: tables whose rows are not known, which MIXED needs.
    """
    if plan != MIXED:
        return dict.fromkeys(tables, SHARDINGS[plan])
    rows = {name: table.num_rows for name, table in tables.items() if table.num_rows is not None}
    if len(rows) < len(tables):
        raise ValueError(f"plan {MIXED}: rows of tables are not known; measure sizes again")
    by_size = sorted(rows, key=lambda name: -rows[name])
    rest = [name for name in by_size if rows[name] >= MIXED_BELOW_ROWS]
    chosen = dict.fromkeys(by_size, "data_parallel") | dict.fromkeys(rest, "table_wise")
    return chosen | dict.fromkeys(rest[:MIXED_LARGEST], "column_wise")


def rank_nbytes(
    tables: Mapping[str, MeasuredTable],
    config: Config,
    shardings: Mapping[str, str],
    place: Place,
) -> dict[str, float]:
    """Return the bytes that a rank sends in a step by kind of traffic, without dense gradients.

    Args: tables: one feature each, of one id a bag.  shardings: sharding of each table.
    """
    totals: dict[str, float] = defaultdict(float)
    for sharding in dict.fromkeys(shardings.values()):
        alike = {name: table for name, table in tables.items() if shardings[name] == sharding}
        if sharding == "data_parallel":
            totals["data_parallel"] = data_parallel_nbytes(alike, config, place.num_ranks)
            continue
        for kind, nbytes in _sharded_nbytes(alike, config, sharding, place).items():
            totals[kind] += nbytes
    return totals


def data_parallel_nbytes(
    tables: Mapping[str, MeasuredTable], config: Config, num_ranks: int
) -> float:
    """Return the bytes that a rank sends in the all-reduce of DATA_PARALLEL tables.

    Raises: ValueError: a config without `data_parallel`, whose tables TorchRec all-reduces; a table
        whose rows are not known.
    """
    if config.data_parallel is None:
        raise ValueError("data_parallel: not in the config; DDP's own bytes are not predicted")
    touched = []
    for name, table in tables.items():
        if table.num_rows is None:
            raise ValueError(f"data_parallel: rows of {name} are not known; measure sizes again")
        rows = table.num_rows
        num_touched = table.num_touched(rows, 1.0, num_ranks)
        touched.append(TouchedTable(dim=table.dim, num_rows=rows, num_touched=num_touched))
    rule = config.data_parallel
    return reduced_nbytes(touched, rule.codec, rule.algorithm, num_ranks)


def _sharded_nbytes(
    tables: Mapping[str, MeasuredTable], config: Config, sharding: str, place: Place
) -> dict[str, float]:
    parts = {"column_wise": place.num_ranks, "grid_shard": place.num_nodes}.get(sharding, 1)
    how = Sharded(sharding=sharding, num_column_parts=parts)
    packed = config.ids is not None
    totals: dict[str, float] = defaultdict(float)
    for table in tables.values():
        sent = sent_nbytes(table, how, place, packed_ids=packed)
        for name, kind in KINDS.items():
            totals[kind] += getattr(sent, name) / place.num_ranks
    peers = place.num_nodes if sharding in ("table_row_wise", "grid_shard") else place.num_ranks
    for direction in ("forward", "backward"):
        fixed = all(getattr(config.rule_for(t), direction).fixed_size for t in tables)
        totals[f"embedding_{direction}"] += frame_header_nbytes(peers, fixed_size=fixed)
    return totals


def _dense_of(record: NetworkRecord) -> tuple[float, float]:
    """Return the float32 bytes of a rank's dense gradients, and those that were sent."""
    ranks = [rank["dense"] for rank in record.traffic or ()]
    return fmean(r.distinct_nbytes or 0.0 for r in ranks), fmean(r.wire_nbytes for r in ranks)


def counted_text(predictions: Sequence[CountedBytes]) -> str:
    """Return a line for each configuration, plan and number of hosts, and what they come to."""
    head = ("hosts", "plan", "configuration", *TRAFFIC_GROUPS, "all / kernel", "")
    lines: list[tuple[str, ...]] = [head]
    for p in sorted(predictions, key=lambda p: (p.record.num_hosts, p.plan)):
        cells = (
            f"{p.predicted[group] / 1e3:.1f} / {p.counted[group] / 1e3:.1f}"
            for group in TRAFFIC_GROUPS
        )
        num_ranks = p.record.num_hosts * p.record.ranks_per_host
        notes = [] if num_ranks == p.num_ranks else [f"rows of {p.num_ranks} ranks"]
        notes += [] if p.holds else ["NOT WITHIN 5 %"]
        where = (hosts_text(p.record), p.plan, p.record.configuration)
        lines.append((*where, *cells, f"{p.kernel_ratio:.3f}", ", ".join(notes)))
    within = sum(p.holds for p in predictions)
    return "\n".join(
        [
            "Bytes: KB that a host sends in a step, predicted / counted; dense gradients by the "
            "ratio on the fewest hosts",
            aligned(lines),
            f"predicted within {WITHIN:.0%} of the kernel's count: {within} of {len(predictions)}",
        ]
    )


def hosts_text(record: NetworkRecord) -> str:
    """Return the number of hosts, and that of the ranks of each where there are several."""
    of_ranks = f" of {record.ranks_per_host} ranks" if record.ranks_per_host > 1 else ""
    return f"{record.num_hosts}{of_ranks}"


def bytes_records(predictions: Sequence[CountedBytes]) -> list[BytesRecord]:
    """Return the records of the predictions."""
    return [
        BytesRecord(
            configuration=p.record.configuration,
            config=p.record.config,
            setup=p.record.setup,
            num_hosts=p.record.num_hosts,
            ranks_per_host=p.record.ranks_per_host,
            plan=p.plan,
            predicted_nbytes=dict(p.predicted),
            counted_nbytes=dict(p.counted),
            kernel_nbytes=fmean(p.record.payload_nbytes),
            num_ranks=p.num_ranks,
        )
        for p in predictions
    ]
