"""Every TorchRec module under every sharding, small: modules, plans and weights.

Knows: TorchRec's modules and plans. Does not know: codecs; what is expected of a run (expected.py).
Weights are functions of names, so that plans, sharders and world sizes compare.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import Awaitable, EmbeddingModuleShardingPlan, ParameterSharding
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

CPU = torch.device("cpu")
LEARNING_RATE = 0.125  # a power of two: multiplying by it rounds nothing

TW, CW, RW, DP = "table_wise", "column_wise", "row_wise", "data_parallel"
TWRW, TWCW, GRID = "table_row_wise", "table_column_wise", "grid_shard"
MIX, SEQUENCE_MIX = "mix", "sequence_mix"
POOLED = (RW, TWRW, GRID, TWCW, TW, CW, DP, MIX)
SEQUENCE = (TW, CW, RW, SEQUENCE_MIX)  # DATA_PARALLEL sequences are broken in FBGEMM for CPU
MIXES = {MIX: (TW, RW, CW, TWRW, GRID, DP, TWCW), SEQUENCE_MIX: (TW, RW, CW)}


@dataclass(frozen=True)
class Table:
    """Embedding table. pooling: for bags only."""

    name: str
    dim: int
    features: tuple[str, ...]
    num_rows: int = 20
    pooling: str = "sum"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One sharded model and its batches.

    Args:
        module: a key of MODULES, or the name of another model
        sharding: one sharding for all tables, or a key of MIXES
        node_size: ranks of an emulated node; 0: all ranks
        batch: samples of each rank, repeated over the ranks
        max_length: the most ids of a bag. Where it is 2, at most two partial sums are not 0, so
            that the order in which a sharding adds them up changes no bit
        empty: features without ids
        vbe: whether each feature has a number of distinct bags (`vbe_batch`)
        uneven_vbe: whether that number differs by rank, too
        fused_params: further parameters of the fused optimizer
        whole_gradients: whether a linear loss has integers for gradients, whose float32 sums are
            exact in any order
    """

    tables: tuple[Table, ...]
    sharding: str
    module: str = "ebc"
    node_size: int = 0
    batch: tuple[int, ...] = (4,)
    max_length: int = 2
    empty: tuple[str, ...] = ()
    weighted: bool = False
    dedup: bool = False
    vbe: bool = False
    uneven_vbe: bool = False
    optimizer: str = "sgd"
    fused_params: tuple[tuple[str, object], ...] = ()
    whole_gradients: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Features, each once, in the order of the batch, which is not that of the tables."""
        return tuple(sorted({f for table in self.tables for f in table.features}, reverse=True))

    @property
    def sequence(self) -> bool:
        return self.module in ("ec", "mc_ec")

    def batch_size(self, rank: int) -> int:
        return self.batch[rank % len(self.batch)]

    def kind(self, table: Table) -> str:
        """Return the sharding of a table."""
        kinds = MIXES.get(self.sharding, (self.sharding,))
        return kinds[self.tables.index(table) % len(kinds)]


@dataclass(frozen=True)
class Shard:
    """Block of a table on one rank."""

    row: int
    col: int
    num_rows: int
    num_cols: int
    rank: int


def seeded(*words: object) -> torch.Generator:
    """Return a generator of equal numbers for equal words, in every process."""
    return torch.Generator().manual_seed(zlib.crc32(repr(words).encode()))


def full_table(table: Table) -> Tensor:
    """Return [num_rows, dim] initial weights; rows differ in width, tables in magnitude."""
    rows = torch.randn(table.num_rows, table.dim, generator=seeded("weights", table.name))
    widths = 1.0 + torch.arange(table.num_rows)[:, None] % 5
    return rows * widths * 10.0 ** (zlib.crc32(table.name.encode()) % 3 - 1)


def row_blocks(num_rows: int, num_blocks: int) -> list[tuple[int, int]]:
    """Return (first, number) as TorchRec splits rows: ceil(num_rows / num_blocks) each."""
    block = -(-num_rows // num_blocks)
    firsts = [min(n * block, num_rows) for n in range(num_blocks)]
    return [(first, min(block, num_rows - first)) for first in firsts]


def column_blocks(dim: int, num_blocks: int) -> list[tuple[int, int]]:
    """Return (first, number): multiples of 4, as TorchRec demands, the first ones larger."""
    quads, num_blocks = dim // 4, min(num_blocks, dim // 4)
    sizes = [4 * (quads // num_blocks + (n < quads % num_blocks)) for n in range(num_blocks)]
    return [(sum(sizes[:n]), size) for n, size in enumerate(sizes)]


def _column_wise_blocks(case: Case, dim: int, world_size: int) -> list[tuple[int, int]]:
    """Return two blocks a rank where all are of one size, else one.

    TorchRec has one size of a table's blocks on a rank, and one in an EmbeddingCollection.
    """
    quads, most = dim // 4, 2 * world_size
    if case.sequence:
        return column_blocks(dim, max(n for n in range(1, most + 1) if quads % n == 0))
    return column_blocks(dim, most if quads % most == 0 else world_size)


def shards(case: Case, table: Table, world_size: int) -> list[Shard]:
    """Return the shards of a table; none for data_parallel."""
    kind, number = case.kind(table), case.tables.index(table)
    node_size = case.node_size or world_size
    num_nodes = world_size // node_size
    node = number % num_nodes * node_size
    rows, dim = table.num_rows, table.dim
    turned = [(number + n) % world_size for n in range(world_size)]
    if kind == TW:
        return [Shard(0, 0, rows, dim, turned[0])]
    if kind == CW:
        blocks = _column_wise_blocks(case, dim, world_size)
        return [Shard(0, c, rows, n, turned[i % world_size]) for i, (c, n) in enumerate(blocks)]
    if kind == TWCW:
        blocks = column_blocks(dim, node_size)
        return [Shard(0, c, rows, n, node + i) for i, (c, n) in enumerate(blocks)]
    if kind == RW:
        return [Shard(r, 0, n, dim, i) for i, (r, n) in enumerate(row_blocks(rows, world_size))]
    if kind == TWRW:
        blocks = row_blocks(rows, node_size)
        return [Shard(r, 0, n, dim, node + i) for i, (r, n) in enumerate(blocks)]
    if kind == GRID:
        return [
            Shard(r, c, num_rows, num_cols, (number + h) % num_nodes * node_size + i)
            for h, (c, num_cols) in enumerate(column_blocks(dim, num_nodes))
            for i, (r, num_rows) in enumerate(row_blocks(rows, node_size))
        ]
    assert kind == DP, kind
    return []


def plan(case: Case, world_size: int) -> EmbeddingModuleShardingPlan:
    """Return the plan of the model's one embedding module, with fused kernels."""
    module_plan = EmbeddingModuleShardingPlan()
    for table in case.tables:
        parts = shards(case, table, world_size)
        metadata = [
            ShardMetadata([s.row, s.col], [s.num_rows, s.num_cols], f"rank:{s.rank}/cpu")
            for s in parts
        ]
        kernel = EmbeddingComputeKernel.FUSED if parts else EmbeddingComputeKernel.DENSE
        module_plan[table.name] = ParameterSharding(
            sharding_type=case.kind(table),
            compute_kernel=kernel.value,
            ranks=[s.rank for s in parts] if parts else list(range(world_size)),
            sharding_spec=EnumerableShardingSpec(metadata) if parts else None,
        )
    return module_plan


def _ebc(case: Case) -> nn.Module:
    return EmbeddingBagCollection(bag_configs(case), is_weighted=case.weighted, device=CPU)


def _fused_ebc(case: Case) -> nn.Module:
    return FusedEmbeddingBagCollection(
        bag_configs(case), torch.optim.SGD, {"lr": LEARNING_RATE}, case.weighted, CPU
    )


def _fp_ebc(case: Case) -> nn.Module:
    lengths = dict.fromkeys(case.features, case.max_length)
    processors = PositionWeightedModuleCollection(lengths, CPU)
    with torch.no_grad():
        for weight in processors.position_weights.values():
            weight.copy_(1 / (1 + torch.arange(case.max_length)))
    bags = EmbeddingBagCollection(bag_configs(case), is_weighted=True, device=CPU)
    return FeatureProcessedEmbeddingBagCollection(bags, processors)


def _ec(case: Case) -> nn.Module:
    return EmbeddingCollection(sequence_configs(case), device=CPU)


def _mc_ebc(case: Case) -> nn.Module:
    bags = _ebc(case)
    collisions = _collisions(case, bags.embedding_bag_configs())
    return ManagedCollisionEmbeddingBagCollection(bags, collisions)


def _mc_ec(case: Case) -> nn.Module:
    rows = _ec(case)
    return ManagedCollisionEmbeddingCollection(rows, _collisions(case, rows.embedding_configs()))


def _collisions(case: Case, configs: list) -> ManagedCollisionCollection:
    modules = {
        table.name: MCHManagedCollisionModule(
            zch_size=table.num_rows,
            device=CPU,
            eviction_policy=DistanceLFU_EvictionPolicy(),
            eviction_interval=2,
            input_hash_size=1000,
        )
        for table in case.tables
    }
    return ManagedCollisionCollection(modules, configs)


MODULES: dict[str, Callable[[Case], nn.Module]] = {
    "ebc": _ebc,
    "fused_ebc": _fused_ebc,
    "fp_ebc": _fp_ebc,
    "mc_ebc": _mc_ebc,
    "ec": _ec,
    "mc_ec": _mc_ec,
}


def bag_configs(case: Case) -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(**_options(table), pooling=PoolingType[table.pooling.upper()])
        for table in case.tables
    ]


def sequence_configs(case: Case) -> list[EmbeddingConfig]:
    return [EmbeddingConfig(**_options(table)) for table in case.tables]


def _options(table: Table) -> dict[str, object]:
    return {
        "name": table.name,
        "embedding_dim": table.dim,
        "num_embeddings": table.num_rows,
        "feature_names": list(table.features),
    }


def output_keys(case: Case) -> Iterator[tuple[str, Table, str]]:
    """Yield (key, table, feature) of every output; a shared feature's key names the table, too."""
    seen = [f for table in case.tables for f in table.features]
    for table in case.tables:
        for feature in table.features:
            shared = seen.count(feature) > 1
            yield (f"{feature}@{table.name}" if shared else feature), table, feature


class Model(nn.Module):
    """One embedding module under a dense part: a scale for every output column."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.sparse = MODULES[case.module](case)
        dims = {key: table.dim for key, table, _ in output_keys(case)}
        self.scale = nn.ParameterDict({k: nn.Parameter(torch.ones(d)) for k, d in dims.items()})

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        return self.scaled(self.rows(features))

    def rows(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        result = _waited(self.sparse(features))
        result = _waited(result[0]) if isinstance(result, tuple) else result  # with remapped ids
        rows = result if isinstance(result, dict) else result.to_dict()
        return {k: r.values() if isinstance(r, JaggedTensor) else r for k, r in rows.items()}

    def scaled(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: rows[key] * scale for key, scale in self.scale.items()}


def _waited(value: object) -> object:
    return value.wait() if isinstance(value, Awaitable) else value


def fill(state_dict: dict[str, object], case: Case) -> None:
    """Write `full_table` into every shard."""
    for table, parts in local_tables(state_dict, case):
        rows = full_table(table)
        for row, col, tensor in parts:
            n, d = tensor.shape
            tensor.copy_(rows[row : row + n, col : col + d])


def local_tables(
    state_dict: dict[str, object], case: Case
) -> Iterator[tuple[Table, list[tuple[int, int, Tensor]]]]:
    """Yield each table with this rank's blocks of it: (first row, first column, live tensor)."""
    for name, value in state_dict.items():
        for table in case.tables:
            if not name.endswith(f".{table.name}.weight"):
                continue
            if hasattr(value, "local_shards"):
                parts = [(*s.metadata.shard_offsets, s.tensor) for s in value.local_shards()]
            else:
                parts = [(0, 0, value)]
            yield table, [(row, col, tensor.detach()) for row, col, tensor in parts]
