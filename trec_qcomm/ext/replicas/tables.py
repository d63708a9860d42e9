"""Banks of a model: the fused tables of its kernels, and the optimizers' state of their rows.

Knows: TorchRec's lookups, FBGEMM's kernels. Does not know: averages, process groups.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm.ext.replicas.banks import WEIGHTS, Bank
from trec_qcomm.integration.compat import (
    ShardedITEPEmbeddingBagCollection,
    ShardedITEPEmbeddingCollection,
    ShardedManagedCollisionCollection,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from trec_qcomm.integration.compat.private import embedding_kernels, lookups

Purpose = Literal["sync", "delta"]  # of banks, for errors; those of a delta have weights alone

_log = logging.getLogger(__name__)
_AVERAGED = ("sum", "exp_avg", "exp_avg_sq", "momentum_buffer")  # of a row, float32
_EQUAL_ANYWAY = ("iter",)  # counts steps
_MAP_IDS = (  # what their rows stand for differs by replica
    ShardedITEPEmbeddingBagCollection,
    ShardedITEPEmbeddingCollection,
    ShardedManagedCollisionCollection,
)
_Shard = tuple[str, str, tuple[int, int]]  # name of its table, its name, and its first row, column
_DEVICE, _HOST = 0, 3  # fbgemm's EmbeddingLocation: not those whose rows move to a cache and back


@dataclass(frozen=True)
class Place:
    """Place of one table's rows.

    Args: bank: index of the table's bank.  first: number of its first row there.  num_rows: number
        of its rows on this rank.
    """

    bank: int
    first: int
    num_rows: int


@dataclass(frozen=True, eq=False)
class Kernel:
    """Kernel of FBGEMM, and the places of the tables that its features look up.

    Args: module: the kernel.  features: place of each feature's table.
    """

    module: nn.Module
    features: Sequence[Place]


@dataclass(frozen=True, eq=False)
class _Table:
    """One table of a kernel. shard: name that no other has.  matrices: [rows, D] by name."""

    name: str
    shard: str
    offsets: tuple[int, int]
    matrices: Mapping[str, Tensor]

    def is_behind(self, other: "_Table") -> bool:
        """Return whether its values lie directly behind those of another, with equal dims."""
        return self.matrices.keys() == other.matrices.keys() and all(
            ours.shape[1] == theirs.shape[1]
            and ours.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()
            and ours.storage_offset() == theirs.storage_offset() + theirs.numel()
            for ours, theirs in zip(self.matrices.values(), other.matrices.values(), strict=True)
        )


def kernels_and_banks(
    model: nn.Module, purpose: Purpose = "sync"
) -> tuple[list[Kernel], list[Bank]]:
    """Return the kernels of all tables with a fused optimizer, and the banks of their rows.

    DATA_PARALLEL tables are left out: their DDP keeps them equal. Both lists are empty if a plan
    gives this rank no table.

    Args: purpose: use of the banks.
    Raises: ValueError: no table on any rank, or a table that cannot be averaged or watched.
    """
    kernels: list[Kernel] = []
    banks: list[list[_Table]] = []
    for module, names in _fused_kernels(model, purpose):
        tables = _tables_of(module, names, purpose)
        places: list[Place] = []
        for number, table in enumerate(tables):
            if number == 0 or not table.is_behind(tables[number - 1]):
                banks.append([])
            first = sum(_num_rows(t) for t in banks[-1])
            banks[-1].append(table)
            places.append(Place(len(banks) - 1, first, _num_rows(table)))
        features = [places[t] for t in module.feature_table_map]
        kernels.append(Kernel(module, features))
    if not kernels and not any(_fused_lookups(module) for module in model.modules()):
        raise ValueError(f"{purpose}: the model has no table with a fused optimizer; leave it out")
    return kernels, [_bank(tables) for tables in banks]


def warn_of_ddp(model: nn.Module, pg: dist.ProcessGroup) -> None:
    """Warn in the log of modules that DDP averages over fewer ranks than all replicas have.

    Replicas of these modules drift apart, because a sync only averages tables with a fused
    optimizer.

    Args: pg: the replicas of this rank's shards.
    """
    replicas = set(dist.get_process_group_ranks(pg))
    for path, module in model.named_modules():
        # A sharded module's lookups are no submodules: DATA_PARALLEL tables are there.
        for one in (module, *lookups(module)):
            if not isinstance(one, DistributedDataParallel):
                continue
            missing = replicas - set(dist.get_process_group_ranks(one.process_group))
            if missing:
                _log.warning(
                    "sync: %s: its DDP leaves out ranks %s of the replica group, and no sync "
                    "averages what DDP keeps: give it a group of all ranks",
                    path or type(module).__name__,
                    ", ".join(map(str, sorted(missing))),
                )


def _num_rows(table: _Table) -> int:
    return len(table.matrices[WEIGHTS])


def _bank(tables: Sequence[_Table]) -> Bank:
    num_rows = [_num_rows(table) for table in tables]
    matrices = {}
    for name, matrix in tables[0].matrices.items():
        shape = (sum(num_rows), matrix.shape[1])
        matrices[name] = matrix.as_strided(shape, (matrix.shape[1], 1))
    names, shards, offsets = zip(*((t.name, t.shard, t.offsets) for t in tables), strict=True)
    return Bank(names, shards, num_rows, offsets, matrices)


def _fused_lookups(module: nn.Module) -> list[nn.Module]:
    """Return the lookups whose tables DDP does not keep; a rank without tables has them, too."""
    return [one for one in lookups(module) if not isinstance(one, DistributedDataParallel)]


def _fused_kernels(model: nn.Module, purpose: Purpose) -> Iterator[tuple[Any, list[_Shard]]]:
    """Yield each kernel with the shards of its tables."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, _MAP_IDS):
            raise ValueError(
                f"{purpose}: {path}: {type(module).__name__}: managed collision and ITEP modules "
                "are not supported, as their rows stand for other ids in each replica, and later"
            )
        for kernel in [k for lookup in _fused_lookups(module) for k in embedding_kernels(lookup)]:
            if id(kernel.emb_module) not in seen:  # modules around a collection share its lookups
                yield kernel.emb_module, _names_of(kernel, path, purpose)
                seen.add(id(kernel.emb_module))
        if isinstance(module, SplitTableBatchedEmbeddingBagsCodegen) and id(module) not in seen:
            numbers = range(len(module.embedding_specs))
            yield module, [(f"{path}.{t}", f"{path}.{t}", (0, 0)) for t in numbers]
            seen.add(id(module))


def _names_of(kernel: Any, path: str, purpose: Purpose) -> list[_Shard]:
    tables = kernel.config.embedding_tables
    if not isinstance(kernel.emb_module, SplitTableBatchedEmbeddingBagsCodegen):
        raise ValueError(
            f"{purpose}: table {tables[0].name!r}: its kernel is {type(kernel).__name__}; allowed: "
            "tables with a fused optimizer (compute kernel fused)"
        )
    names = []
    for table in tables:
        offsets = [] if table.local_metadata is None else table.local_metadata.shard_offsets
        shard = " ".join(map(str, (f"{path}.{table.name}", *offsets)))
        names.append((table.name, shard, tuple(offsets) or (0, 0)))
    return names


_ALL_ROWS = ("EMAINPLACE_ROWWISE_ADAGRAD", "ENSEMBLE_ROWWISE_ADAGRAD")  # optimizers that move them


def _tables_of(module: Any, names: Sequence[_Shard], purpose: Purpose) -> list[_Table]:
    if purpose == "delta" and module.optimizer.name in _ALL_ROWS:
        raise ValueError(f"delta: {module.optimizer.name} changes rows that no batch looks up")
    states = (purpose == "sync" and module.get_optimizer_state()) or [{} for _ in names]
    placements = module.weights_physical_placements
    tables = []
    for (name, shard, offsets), weights, state, placement in zip(
        names, module.split_embedding_weights(), states, placements, strict=True
    ):
        if int(placement) not in (_DEVICE, _HOST):
            raise ValueError(f"{purpose}: table {name!r}: rows are cached (UVM); allowed: fused")
        unknown = sorted(state.keys() - {*_AVERAGED, *_EQUAL_ANYWAY})
        if unknown:
            raise ValueError(
                f"sync: table {name!r}: the optimizer keeps {', '.join(unknown)}, which cannot be "
                f"averaged; allowed: {', '.join(_AVERAGED)}"
            )
        matrices = {WEIGHTS: weights}
        matrices |= {key: state[key] for key in _AVERAGED if key in state}
        # Autograd lets an average change .data between a lookup and its backward.
        matrices = {
            key: m.data.view(len(weights), 1) if m.dim() == 1 else m.data
            for key, m in matrices.items()
        }
        tables.append(_Table(name, shard, offsets, matrices))
    return tables
