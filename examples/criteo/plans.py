"""Sharding plans: files of configs/plans, and TorchRec's plans made of them.

    sharding: table_wise         # of the tables that no rule takes; see SHARDINGS, and `planned`
    rules:                       # optional; the first rule that takes a table holds
      - tables: ["t_cat_1*"]     # shell patterns on table names (default: all of them) ...
        below_rows: 100          # ... that have fewer rows ...
        largest: 3               # ... and are the largest that no earlier rule took
        sharding: column_wise

Knows: table sizes, ranks, nodes, TorchRec's planner. Does not know: the data.
Shapes: tables of [rows, D], W ranks on N nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
import yaml
from torch import nn
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimator,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.sharding_plan import (
    ParameterShardingGenerator,
    calculate_shard_sizes_and_offsets,
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    placement,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingPlan, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trec_qcomm import Throughput

FOLDER = Path(__file__).parents[2] / "configs" / "plans"
PLANNED, TWO_LEVEL = "planned", ("table_row_wise", "grid_shard")
RESERVED = 0.15  # share of the memory that the planner leaves for everything but tables
_FUSED: dict[str, Any] = {"compute_kernel": "fused"}

Tables = list[EmbeddingBagConfig]  # the largest first
Generators = dict[str, ParameterShardingGenerator]  # by table


@dataclass(frozen=True)
class Place:
    """Ranks and nodes that a plan is for. Ranks of a node follow one another."""

    world_size: int
    ranks_per_node: int
    device_type: str = "cpu"

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One sharding for some tables, as a plan file has it."""

    sharding: str
    tables: tuple[str, ...] = ("*",)
    below_rows: int | None = None
    largest: int | None = None

    def __post_init__(self) -> None:
        _check_sharding(self.sharding, *SHARDINGS)

    def take(self, by_size: Tables) -> Tables:
        """Return those of the tables, the largest first, that the rule is about."""
        tables = [
            table
            for table in by_size
            if any(fnmatchcase(table.name, pattern) for pattern in self.tables)
            and (self.below_rows is None or table.num_embeddings < self.below_rows)
        ]
        return tables[: self.largest]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What the planner is to believe.

    Args:
        inter_node_gb_s, intra_node_gb_s: GB/s of a rank's links between and inside nodes.
        encode_gb_s, decode_gb_s: GB/s of float32 rows of every codec; None: measured here.
        measured: file with what was measured of the tables (QComm.estimator), relative to the plan
            file; None: sizes that depend on the data have their upper bound.
    """

    inter_node_gb_s: float
    intra_node_gb_s: float
    encode_gb_s: float | None = None
    decode_gb_s: float | None = None
    measured: str | None = None

    def __post_init__(self) -> None:
        if (self.encode_gb_s is None) != (self.decode_gb_s is None):
            raise ValueError("encode_gb_s, decode_gb_s: give both or none")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan file. `cluster` is for, and only for, the sharding `planned`, which has no rules."""

    sharding: str
    rules: tuple[Rule, ...] = ()
    cluster: Cluster | None = None
    source: str = field(default="plan", compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_sharding(self.sharding, *SHARDINGS, PLANNED)
        if (self.sharding == PLANNED) != (self.cluster is not None):
            raise ValueError(f"cluster: needed for sharding {PLANNED}, and for no other")
        if self.sharding == PLANNED and self.rules:
            raise ValueError(f"rules: not with sharding {PLANNED}")

    @property
    def measured_path(self) -> Path | None:
        """Path of what was measured of the tables."""
        if self.cluster is None or self.cluster.measured is None:
            return None
        return Path(self.source).parent / self.cluster.measured

    @property
    def depends_on_nodes(self) -> bool:
        """Whether the plan depends on how ranks are grouped into nodes."""
        kinds = {self.sharding, *(rule.sharding for rule in self.rules)}
        return not kinds.isdisjoint({PLANNED, *TWO_LEVEL})


def _check_sharding(sharding: str, *choices: str) -> None:
    if sharding not in choices:
        raise ValueError(f"sharding: {sharding!r} is not one of {', '.join(choices)}")


def plan_names() -> list[str]:
    """Return the names of the plans in configs/plans, for --plan."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_plan(name_or_path: str) -> Plan:
    """Return a plan of configs/plans by its name, or any file.

    Raises: ValueError: naming file, field and choices.
    """
    path = FOLDER / f"{name_or_path}.yaml"
    if name_or_path not in plan_names():
        path = Path(name_or_path)
        if not path.is_file():
            names = ", ".join(plan_names())
            raise ValueError(f"plan {name_or_path!r}: neither a file nor one of {names}")
    try:
        values = dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        rules = values.pop("rules", [])
        if "cluster" in values:
            values["cluster"] = Cluster(**values["cluster"])
        rules = [Rule(**rule | {"tables": tuple(rule.get("tables", ["*"]))}) for rule in rules]
        plan = Plan(**values, rules=tuple(rules), source=str(path))
        if plan.measured_path is not None and not plan.measured_path.is_file():
            raise ValueError(f"cluster.measured: there is no file {plan.measured_path}")
        return plan
    except (OSError, yaml.YAMLError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def build_plan(model: nn.Module, plan: Plan, place: Place) -> ShardingPlan:
    """Return TorchRec's plan for every EmbeddingBagCollection of the model; not for `planned`.

    Raises: ValueError: a pattern that matches no table, columns that cannot be cut, or a two-level
        sharding on one node.
    """
    return ShardingPlan(
        {
            name: construct_module_sharding_plan(
                module,
                choose_sharding(module.embedding_bag_configs(), plan, place),
                sharder=cast(ModuleSharder[nn.Module], EmbeddingBagCollectionSharder()),
                local_size=place.ranks_per_node,
                world_size=place.world_size,
                device_type=place.device_type,
            )
            for name, module in model.named_modules()
            if isinstance(module, EmbeddingBagCollection)
        }
    )


def choose_sharding(tables: Tables, plan: Plan, place: Place) -> Generators:
    """Return how each table is sharded, by its name. Raises ValueError like `build_plan`."""
    rest = sorted(tables, key=lambda table: -table.num_embeddings)
    names, chosen = [table.name for table in rest], Generators()
    try:
        for rule in plan.rules:
            for pattern in rule.tables:
                if not any(fnmatchcase(name, pattern) for name in names):
                    raise ValueError(f"tables: {pattern!r} matches none of {', '.join(names)}")
            chosen |= SHARDINGS[rule.sharding](rule.take(rest), place)
            rest = [table for table in rest if table.name not in chosen]
        return chosen | SHARDINGS[plan.sharding](rest, place)
    except ValueError as error:
        raise ValueError(f"{plan.source}: {error}") from error


def _data_parallel(by_size: Tables, place: Place) -> Generators:
    return {table.name: data_parallel() for table in by_size}


def _table_wise(by_size: Tables, place: Place) -> Generators:
    ranks = _deal(len(by_size), place.world_size)
    return {t.name: table_wise(rank=r, **_FUSED) for t, r in zip(by_size, ranks, strict=True)}


def _greedy_table_wise(by_size: Tables, place: Place) -> Generators:
    """Place each table on the rank that has fewest values of those before it."""
    loads, placed = [0] * place.world_size, Generators()
    for table in by_size:
        rank = loads.index(min(loads))
        loads[rank] += table.num_embeddings * table.embedding_dim
        placed[table.name] = table_wise(rank=rank, **_FUSED)
    return placed


def _row_wise(by_size: Tables, place: Place) -> Generators:
    return {table.name: row_wise(**_FUSED) for table in by_size}


def _column_wise(by_size: Tables, place: Place) -> Generators:
    ranks = list(range(place.world_size))
    for table in by_size:
        _check_columns(table, place.world_size, "ranks")
    return {table.name: column_wise(ranks=ranks, **_FUSED) for table in by_size}


def _table_row_wise(by_size: Tables, place: Place) -> Generators:
    _check_nodes("table_row_wise", place)
    nodes = _deal(len(by_size), place.num_nodes)
    return {
        table.name: _fused(table_row_wise(host_index=node))
        for table, node in zip(by_size, nodes, strict=True)
    }


def _grid_shard(by_size: Tables, place: Place) -> Generators:
    _check_nodes("grid_shard", place)
    for table in by_size:
        _check_columns(table, place.num_nodes, "nodes")
    return {table.name: _grid(table.embedding_dim // place.num_nodes) for table in by_size}


SHARDINGS: dict[str, Callable[[Tables, Place], Generators]] = {
    "data_parallel": _data_parallel,
    "table_wise": _table_wise,
    "greedy_table_wise": _greedy_table_wise,
    "row_wise": _row_wise,
    "column_wise": _column_wise,
    "table_row_wise": _table_row_wise,
    "grid_shard": _grid_shard,
}


def _deal(num_tables: int, num_places: int) -> list[int]:
    """Return places 0 1 .. P-1 P-1 .. 1 0 0 1 ..: equal numbers of tables, nearly equal rows."""
    order = [*range(num_places), *reversed(range(num_places))]
    return [order[k % len(order)] for k in range(num_tables)]


def _fused(generate: ParameterShardingGenerator) -> ParameterShardingGenerator:
    """Return the sharding in the kernel that runs the optimizer; TorchRec's would take `dense`."""

    def fused(*arguments: Any) -> ParameterSharding:
        sharding = generate(*arguments)
        sharding.compute_kernel = "fused"
        return sharding

    return fused


def _grid(num_columns: int) -> ParameterShardingGenerator:
    """Cut blocks of `num_columns` columns, one a node. TorchRec's grid_shard cuts at 128 only."""

    def generate(
        parameter: Any, local_size: int, world_size: int, device_type: str, sharder: Any
    ) -> ParameterSharding:
        kind = ShardingType.GRID_SHARD.value
        cuts = calculate_shard_sizes_and_offsets(
            parameter, world_size, local_size, kind, col_wise_shard_dim=num_columns
        )
        shards = [
            ShardMetadata(offset, size, placement(device_type, rank, local_size))
            for rank, (size, offset) in enumerate(zip(*cuts, strict=True))
        ]
        ranks = list(range(len(shards)))
        return ParameterSharding(kind, "fused", ranks, EnumerableShardingSpec(shards))

    return generate


def _check_columns(table: EmbeddingBagConfig, num_parts: int, parts: str) -> None:
    if table.embedding_dim % (4 * num_parts):
        raise ValueError(
            f"embedding_dim {table.embedding_dim}: over {num_parts} {parts} TorchRec needs "
            f"columns in multiples of 4, so a multiple of {4 * num_parts}"
        )


def _check_nodes(sharding: str, place: Place) -> None:
    if place.num_nodes < 2:
        raise ValueError(
            f"sharding: {sharding} needs two nodes or more; {place.world_size} ranks with "
            f"{place.ranks_per_node} a node are {place.num_nodes} (--ranks-per-node, or torchrun's "
            "--nproc-per-node)"
        )


def plan_by_planner(
    model: nn.Module,
    plan: Plan,
    place: Place,
    *,
    sharders: list[Any],
    qcomm: Any,
    batch_size: int,
    pipeline: bool = False,
) -> ShardingPlan:
    """Return the plan that TorchRec's planner finds best, with our codecs' prices.

    Collective where a process group exists: rank 0 plans, so that all ranks have one plan.

    Args:
        qcomm: the communication; None is TorchRec's own estimate.
        pipeline: whether ids travel beside the rest of a step.
    """
    cluster = plan.cluster
    assert cluster is not None
    topology = Topology(
        world_size=place.world_size,
        local_world_size=place.ranks_per_node,
        compute_device=place.device_type,
        inter_host_bw=cluster.inter_node_gb_s * 1e6,  # bytes a ms
        intra_host_bw=cluster.intra_node_gb_s * 1e6,
    )
    if qcomm is None:
        estimator = EmbeddingPerfEstimator(topology)
    else:
        encode, decode = cluster.encode_gb_s, cluster.decode_gb_s
        prices: dict[str, Any] = {}
        if encode is not None and decode is not None:
            prices["throughput"] = Throughput(encode_gb_s=encode, decode_gb_s=decode)
        if plan.measured_path is not None:
            prices |= {"measured": plan.measured_path, "pipeline": pipeline}
        estimator = qcomm.estimator(topology, **prices)
    estimators = [estimator, EmbeddingStorageEstimator(topology)]
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        enumerator=EmbeddingEnumerator(topology, batch_size, estimator=estimators),
        storage_reservation=FixedPercentageStorageReservation(RESERVED),
        debug=False,
    )
    root = logging.getLogger()
    level = root.level
    root.setLevel("ERROR")  # it warns for every data-parallel table
    try:
        if dist.is_initialized():
            return planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
        return planner.plan(model, sharders)
    finally:
        root.setLevel(level)
