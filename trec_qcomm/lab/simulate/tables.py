"""Bytes by measured sizes of tables: a configuration's ratios, and predicted beside counted bytes.

The ratio of a record is that of its plan and number of hosts. With measured sizes of segments
(ext.planner.traffic) it follows the plan: row-wise, more GPUs share a table's rows, so that
segments have fewer of them, and a bound is shared by more summands.

Of steps between emulated hosts, rows, gradients, ids and the gradients of DATA_PARALLEL tables are
predicted so, for the plan that the record names. Dense gradients: those of a ring in float32, over
the ratio that the configuration had on the fewest hosts, so there they are no prediction; of a
hierarchical all-reduce, a ring's between nodes of an L-th of them. The sum stands beside what the
kernel counted. Of hosts of several ranks that is what leaves a host.

Knows: network records, records of sizes, plans by name. Does not know: seconds.
Shapes: N hosts, of L ranks; bytes are those that a host sends in a step, the mean over hosts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from trec_qcomm.codecs import Identity
from trec_qcomm.config import Config
from trec_qcomm.ext.planner.traffic import (
    FixedSizes,
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
    where,
)
from trec_qcomm.lab.simulate.measured import PLAN_FIELDS, dense_intra_ratio
from trec_qcomm.lab.simulate.plans import Cluster
from trec_qcomm.lab.simulate.step import Configuration
from trec_qcomm.lab.sizes import load_measured

PLANS = {"tw": "table_wise", "rw": "row_wise", "twrw": "table_row_wise"}  # of plans.py
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


def ratios_at(
    configuration: Configuration, sizes: Sequence[TableSizesRecord], plan: str, cluster: Cluster
) -> Configuration:
    """Return the configuration with the ratios that its tables have there, one id a bag.

    The last of the sizes of its name counts; without any, as of plain TorchRec, nothing changes.
    Args: plan: tw, rw, twrw.
    """
    named = [record for record in sizes if record.configuration == configuration.name]
    if not named:
        return configuration
    config = config_of(named[-1])
    tables = load_measured(named[-1:], config).values()
    place = Place(num_ranks=cluster.num_gpus, node_size=cluster.node_size)
    how, packed = Sharded(sharding=PLANS[plan]), config.ids is not None
    directions = ("forward", "backward", "intra_forward", "intra_backward")
    exact: dict[str, Any] = dict.fromkeys(directions, FixedSizes(Identity()))
    ours = [sent_nbytes(t, how, place, packed_ids=packed) for t in tables]
    raw = [sent_nbytes(replace(t, **exact), how, place) for t in tables]

    def ratio(group: str) -> float:
        sent = sum(getattr(nbytes, group) for nbytes in ours)
        return sum(getattr(nbytes, group) for nbytes in raw) / sent if sent else 1.0

    return replace(
        configuration,
        distinct_share=sum(t.num_sent for t in tables) / sum(t.num_bags for t in tables),
        forward=ratio("forward"),
        backward=ratio("backward"),
        ids=ratio("ids"),
    )


def predict_counted(
    records: Sequence[NetworkRecord], sizes: Sequence[TableSizesRecord]
) -> list[BytesRecord]:
    """Return the prediction of each configuration, plan and number of hosts that has sizes.

    Of several networks the last counts, as bytes do not depend on the network. Sizes are those of
    the record's model, data and configuration, of the same number of ranks where there are such.
    """
    latest: dict[tuple[object, ...], NetworkRecord] = {}
    for record in records:
        if record.traffic is not None and record.setup.get("plan") in (*SHARDINGS, MIXED):
            place = (record.num_hosts, record.ranks_per_host)
            latest[record.configuration, place, record.setup_key] = record
    predictions = []
    for record in latest.values():
        fitting = [
            s for s in sizes
            if s.setup.items() <= record.setup.items() and s.configuration == record.configuration
        ]  # fmt: skip
        if fitting:
            predictions.append(_predict(record, fitting, _fewest_hosts(record, latest.values())))
    return predictions


def _fewest_hosts(record: NetworkRecord, records: Iterable[NetworkRecord]) -> NetworkRecord:
    """Return the record of the same configuration with the fewest hosts, whatever the plan.

    One of hosts of one rank each, if there is one.
    """

    def identity(r: NetworkRecord) -> tuple[str, dict[str, object]]:
        return r.configuration, {k: v for k, v in r.setup.items() if k not in PLAN_FIELDS}

    alike = [r for r in records if identity(r) == identity(record)]
    return min(alike, key=lambda r: (r.ranks_per_host, r.num_hosts))


def _predict(
    record: NetworkRecord, fitting: Sequence[TableSizesRecord], fewest: NetworkRecord
) -> BytesRecord:
    config, ranks = config_of(record), record.ranks_per_host
    num_ranks, plan = record.num_hosts * ranks, str(record.setup["plan"])
    node_size = int(record.setup.get("ranks_per_node", ranks))
    sizes = max(reversed(fitting), key=lambda each: each.num_ranks == num_ranks)
    tables = load_measured([sizes], config)
    place = Place(num_ranks=num_ranks, node_size=node_size)
    by_kind = rank_nbytes(tables, config, shardings_of(plan, tables), place)
    by_kind |= _dense_nbytes(config, fewest, Place(num_ranks=num_ranks, node_size=ranks))
    shares, hosts = shares_between_hosts(record), sent_between_hosts(record)
    return BytesRecord(
        configuration=record.configuration,
        config=record.config,
        setup=record.setup,
        num_hosts=record.num_hosts,
        ranks_per_host=ranks,
        plan=plan,
        predicted_nbytes={
            group: sum(ranks * shares[kind] * by_kind.get(kind, 0.0) for kind in kinds)
            for group, kinds in TRAFFIC_GROUPS.items()
        },
        counted_nbytes={group: fmean(host[group] for host in hosts) for group in TRAFFIC_GROUPS},
        kernel_nbytes=fmean(record.payload_nbytes),
        num_ranks=sizes.num_ranks,
    )


def _dense_nbytes(config: Config, flat: NetworkRecord, place: Place) -> dict[str, float]:
    """Return the bytes of dense gradients that a rank sends in a step, by kind.

    Args:
        flat: record whose ratio counts; of a hierarchical all-reduce it is of hosts of one rank.
        place: ranks and hosts; these are the nodes of a hierarchical all-reduce.
    Raises: ValueError: it is not.
    """
    dense = [rank["dense"] for rank in flat.traffic or ()]
    raw = fmean(traffic.distinct_nbytes or 0.0 for traffic in dense)
    ratio = raw / fmean(traffic.wire_nbytes for traffic in dense)
    values_nbytes = raw / _ring_share(flat.num_hosts * flat.ranks_per_host)
    is_hierarchical = dense_algorithm(config) == "hierarchical"
    if is_hierarchical and flat.ranks_per_host > 1:
        raise ValueError(
            f"{where(flat)}: hosts of {flat.ranks_per_host} ranks; expected "
            "a record of hosts of one rank beside it, for the ratio of dense gradients"
        )
    if not is_hierarchical or place.node_size == 1:
        return {"dense": _ring_share(place.num_ranks) * values_nbytes / ratio}
    inside = (place.node_size - 1) / place.node_size
    return {
        "dense": _ring_share(place.num_nodes) * values_nbytes / place.node_size / ratio,
        "intra_dense": inside * values_nbytes * (1 / dense_intra_ratio(config) + 1 / ratio),
    }


def _ring_share(num: int) -> float:
    return 2 * (num - 1) / num


def shardings_of(plan: str, tables: Mapping[str, MeasuredTable]) -> dict[str, str]:
    """Return the sharding of each table. Args: plan: a key of SHARDINGS, or MIXED."""
    if plan != MIXED:
        return dict.fromkeys(tables, SHARDINGS[plan])
    rows = {name: _num_rows(name, table) for name, table in tables.items()}
    by_size = sorted(rows, key=lambda name: -rows[name])
    rest = [name for name in by_size if rows[name] >= MIXED_BELOW_ROWS]
    chosen = dict.fromkeys(by_size, "data_parallel") | dict.fromkeys(rest, "table_wise")
    return chosen | dict.fromkeys(rest[:MIXED_LARGEST], "column_wise")


def _num_rows(name: str, table: MeasuredTable) -> int:
    if table.num_rows is None:
        raise ValueError(f"{name}: its number of rows is not known; measure sizes again")
    return table.num_rows


def rank_nbytes(
    tables: Mapping[str, MeasuredTable],
    config: Config,
    shardings: Mapping[str, str],
    place: Place,
) -> dict[str, float]:
    """Return the bytes that a rank sends in a step by kind of traffic, without dense gradients.

    Args: tables: one feature each, of one id a bag.  shardings: sharding of each table.
    Raises: ValueError: a table's number of rows is not known, where the sharding needs it.
    """
    totals: dict[str, float] = defaultdict(float)
    for sharding in dict.fromkeys(shardings.values()):
        alike = {name: table for name, table in tables.items() if shardings[name] == sharding}
        if sharding == "data_parallel":
            totals["data_parallel"] = data_parallel_nbytes(alike, config, place.num_ranks)
            continue
        parts = {"column_wise": place.num_ranks, "grid_shard": place.num_nodes}.get(sharding, 1)
        how = Sharded(sharding=sharding, num_column_parts=parts)
        for table in alike.values():
            sent = sent_nbytes(table, how, place, packed_ids=config.ids is not None)
            for name, kind in KINDS.items():
                totals[kind] += getattr(sent, name) / place.num_ranks
        by_node = sharding in ("table_row_wise", "grid_shard")
        peers = place.num_nodes if by_node else place.num_ranks
        for direction in ("forward", "backward"):
            fixed = all(getattr(config.rule_for(t), direction).fixed_size for t in alike)
            totals[KINDS[direction]] += frame_header_nbytes(peers, fixed_size=fixed)
    return totals


def data_parallel_nbytes(
    tables: Mapping[str, MeasuredTable], config: Config, num_ranks: int
) -> float:
    """Return the bytes that a rank sends in the all-reduce of DATA_PARALLEL tables.

    Raises: ValueError: a config without `data_parallel`, whose tables TorchRec all-reduces.
    """
    rule = config.data_parallel
    if rule is None:
        raise ValueError("data_parallel: not in the config; DDP's own bytes are not predicted")
    touched = []
    for name, table in tables.items():
        rows = _num_rows(name, table)
        num_touched = table.num_touched(rows, 1.0, num_ranks)
        touched.append(TouchedTable(dim=table.dim, num_rows=rows, num_touched=num_touched))
    return reduced_nbytes(touched, rule.codec, rule.algorithm, num_ranks)
