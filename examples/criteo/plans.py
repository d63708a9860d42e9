"""Explicit TorchRec sharding plans for the 26 tables, so that runs differ in nothing but the codec.

Knows: table sizes, ranks. Does not know: the data, the codec. Shapes: tables of [rows, D], W ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from torch import nn
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    ParameterShardingGenerator,
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    table_wise,
)
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleSharder, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

PLANS = ("table_wise", "column_wise", "mixed")
DATA_PARALLEL_BELOW = 100  # rows: such a table's dense gradient is smaller than its traffic
NUM_COLUMN_WISE = 3  # the largest tables of the mixed plan

Generators = dict[str, ParameterShardingGenerator]


def build_plan(model: nn.Module, kind: str, *, world_size: int, device_type: str) -> ShardingPlan:
    """The plan called `kind` for every EmbeddingBagCollection of the model.

    Raises: ValueError: no such plan, or embedding_dim / W is no multiple of 4 where columns split.
    """
    return ShardingPlan(
        plan={
            name: _plan_collection(module, kind, world_size, device_type)
            for name, module in model.named_modules()
            if isinstance(module, EmbeddingBagCollection)
        }
    )


def choose_sharding(
    tables: Iterable[EmbeddingBagConfig], kind: str, *, world_size: int
) -> Generators:
    """How each table is sharded, by its name.

    table_wise:  whole tables, the largest first, dealt to the ranks back and forth.
    column_wise: every table cut into D / W columns a rank.
    mixed:       DATA_PARALLEL below 100 rows, the 3 largest column-wise, the others table-wise.
    """
    by_size = sorted(tables, key=lambda table: -table.num_embeddings)
    if kind == "table_wise":
        return _deal(by_size, world_size)
    if kind == "column_wise":
        return {table.name: _all_columns(table, world_size) for table in by_size}
    if kind == "mixed":
        return _mixed(by_size, world_size)
    raise ValueError(f"plan {kind!r}: not one of {', '.join(PLANS)}")


def _mixed(by_size: list[EmbeddingBagConfig], world_size: int) -> Generators:
    small = [table for table in by_size if table.num_embeddings < DATA_PARALLEL_BELOW]
    large = [table for table in by_size if table.num_embeddings >= DATA_PARALLEL_BELOW]
    plan = {table.name: data_parallel() for table in small}
    plan |= {table.name: _all_columns(table, world_size) for table in large[:NUM_COLUMN_WISE]}
    return plan | _deal(large[NUM_COLUMN_WISE:], world_size)


def _deal(by_size: list[EmbeddingBagConfig], world_size: int) -> Generators:
    """Ranks 0 1 .. W-1 W-1 .. 1 0 0 1 ..: equal numbers of tables, nearly equal rows."""
    order = [*range(world_size), *reversed(range(world_size))]
    return {
        table.name: table_wise(rank=order[i % len(order)], compute_kernel="fused")
        for i, table in enumerate(by_size)
    }


def _all_columns(table: EmbeddingBagConfig, world_size: int) -> ParameterShardingGenerator:
    if table.embedding_dim % (4 * world_size):
        raise ValueError(
            f"embedding_dim {table.embedding_dim}: over {world_size} ranks TorchRec needs "
            f"columns in multiples of 4, so a multiple of {4 * world_size}"
        )
    return column_wise(ranks=list(range(world_size)), compute_kernel="fused")


def _plan_collection(
    module: EmbeddingBagCollection, kind: str, world_size: int, device_type: str
) -> EmbeddingModuleShardingPlan:
    return construct_module_sharding_plan(
        module,
        choose_sharding(module.embedding_bag_configs(), kind, world_size=world_size),
        sharder=cast(ModuleSharder[nn.Module], EmbeddingBagCollectionSharder()),
        local_size=get_local_size(world_size),
        world_size=world_size,
        device_type=device_type,
    )
