"""TorchRec's generators of each kind of sharding, evenly over ranks and nodes.

Knows: table sizes, ranks, nodes. Does not know: plan files. Shapes: tables of [rows, D].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.sharding_plan import (
    ParameterShardingGenerator,
    calculate_shard_sizes_and_offsets,
    column_wise,
    data_parallel,
    placement,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import ParameterSharding, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig

Generators = dict[str, ParameterShardingGenerator]
Tables = list[EmbeddingBagConfig]


@dataclass(frozen=True)
class Place:
    """Ranks and nodes that a plan is for. Ranks of a node follow one another."""

    world_size: int
    ranks_per_node: int

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.ranks_per_node


def shard(by_size: Tables, sharding: str, place: Place) -> Generators:
    """Return TorchRec's generators of a sharding by table, of tables with the largest first.

    Raises: ValueError: columns that cannot be cut, or one node where there must be two.
    """
    return SHARDINGS[sharding](by_size, place)


def _data_parallel(by_size: Tables, place: Place) -> Generators:
    return {table.name: data_parallel() for table in by_size}


def _table_wise(by_size: Tables, place: Place) -> Generators:
    ranks = _deal(len(by_size), place.world_size)
    return {
        table.name: table_wise(rank=rank, compute_kernel="fused")
        for table, rank in zip(by_size, ranks, strict=True)
    }


def _greedy_table_wise(by_size: Tables, place: Place) -> Generators:
    """Place each table on the rank that has fewest values of those before it."""
    loads = [0] * place.world_size
    placed: Generators = {}
    for table in by_size:
        rank = loads.index(min(loads))
        loads[rank] += table.num_embeddings * table.embedding_dim
        placed[table.name] = table_wise(rank=rank, compute_kernel="fused")
    return placed


def _row_wise(by_size: Tables, place: Place) -> Generators:
    return {table.name: row_wise(compute_kernel="fused") for table in by_size}


def _column_wise(by_size: Tables, place: Place) -> Generators:
    ranks = list(range(place.world_size))
    for table in by_size:
        _check_columns(table, place.world_size, "ranks")
    return {table.name: column_wise(ranks=ranks, compute_kernel="fused") for table in by_size}


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
TWO_LEVEL = ("table_row_wise", "grid_shard")  # over nodes, and over the ranks of each


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
        sizes, offsets = calculate_shard_sizes_and_offsets(
            parameter, world_size, local_size, kind, col_wise_shard_dim=num_columns
        )
        shards = [
            ShardMetadata(
                shard_offsets=offset,
                shard_sizes=size,
                placement=placement(device_type, rank, local_size),
            )
            for rank, (size, offset) in enumerate(zip(sizes, offsets, strict=True))
        ]
        return ParameterSharding(
            sharding_type=kind,
            compute_kernel="fused",
            ranks=list(range(len(shards))),
            sharding_spec=EnumerableShardingSpec(shards),
        )

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
