"""Every private attribute of TorchRec that the package reads or writes, each behind a function.

If a version of TorchRec renames one of them, only this file changes. All exist under these names
from torchrec 1.6.1 to 1.9.2. Our subclasses also override three private methods,
`Awaitable._wait_impl`, `ShardedEmbeddingCollection._dedup_indices` and
`ShardedManagedCollisionCollection._create_input_dists`. They set one private attribute that
TorchRec reads, `RowsAwaitable._tensor_awaitable`.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trec_qcomm.integration.compat import (
    GeneralizedCommsBandwidth,
    GroupedEmbeddingConfig,
    KeyedJaggedTensor,
    Topology,
    torchrec_comm,
)

Callback = Callable[[Tensor], Tensor]
GroupsByPlace = list[list[GroupedEmbeddingConfig]]  # by rank or by node; each group is one kernel


# Shardings


def process_group(sharding_or_dist: Any) -> dist.ProcessGroup:
    """Return the process group of a sharding, or of the all-to-all inside a dist."""
    group: dist.ProcessGroup = sharding_or_dist._pg
    return group


def node_process_groups(sharding: Any) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Return two groups: the ranks of this node, and all ranks with this local rank."""
    return sharding._intra_pg, sharding._cross_pg


def lookup_device(sharding: Any) -> torch.device | None:
    """Return the device of a sharding's lookups; None is the CPU."""
    device: torch.device | None = sharding._device
    return device


def groups_per_rank(sharding: Any) -> GroupsByPlace:
    """Return for each rank the groups of tables that it looks up.

    DATA_PARALLEL shardings have one list, because all ranks look up the same tables.
    """
    groups = getattr(sharding, "_grouped_embedding_configs_per_rank", None)
    return [sharding._grouped_embedding_configs] if groups is None else list(groups)


def groups_per_node(sharding: Any) -> GroupsByPlace:
    """Return for each node the groups of tables that its ranks look up."""
    return list(sharding._grouped_embedding_configs_per_node)


def column_shards(sharding: Any) -> tuple[list[int], list[str]]:
    """Return dims and names of a grid sharding's column shards, before they are joined."""
    return list(sharding._embedding_dims), list(sharding._embedding_names)


# Batches and dists


def set_length_per_key(features: KeyedJaggedTensor, num_ids: list[int]) -> None:
    """Tell a batch how many ids each of its features has; else the batch would add them up."""
    features._length_per_key = num_ids


def inner_dist(id_dist: Any) -> Any:
    """Return the all-to-all module inside a dist of ids.

    Raises: ValueError: a library's dist that does not keep this module where TorchRec's dists do.
    """
    inner = getattr(id_dist, "_dist", None)
    if inner is None:
        raise ValueError(f"{type(id_dist).__name__}: expected a KJTAllToAll in _dist")
    return inner


def set_collectives(output_dist: Any, collective: nn.Module, variable: nn.Module) -> None:
    """Put modules where a pooled output dist would create its own at the first batch.

    Args: collective: module for batches of one size.  variable: module for batches in which every
        feature has a size of its own.
    """
    output_dist._dist = collective
    output_dist._variable_dist = variable


def output_callbacks(output_dist: Any) -> list[Callback]:
    """Return the functions that an output dist applies to received rows (permute of columns)."""
    return getattr(output_dist, "_callbacks", None) or []  # TwRwPooledEmbeddingDist has none


def input_dist_tensors(awaitable: Any) -> tuple[list[tuple[list[int], Tensor]], int]:
    """Return each tensor that an input dist sends, with its split over the ranks, and a number.

    The number counts the splits that travel first. It may exceed the number of tensors, because
    PackedBatch also announces numbers of ids. TrainPipelineSparseDist replaces the awaitable by a
    dataclass with public names.
    """
    splits = getattr(awaitable, "input_splits", None)
    if splits is not None:
        tensors = awaitable.input_tensors
    else:
        splits, tensors = awaitable._input_splits, awaitable._input_tensors
    return list(zip(splits, tensors, strict=False)), len(splits)


# Sharded modules


def lookups(module: Any) -> Sequence[nn.Module]:
    """Return the lookups of a sharded collection; none for any other module.

    The collection keeps them in a plain list, which `nn.Module.modules` does not see. A lookup of
    DATA_PARALLEL tables is a DistributedDataParallel.
    """
    return getattr(module, "_lookups", [])


def embedding_kernels(lookup: Any) -> Sequence[Any]:
    """Return the kernels of a lookup; each has the `config` of its group of tables."""
    kernels: Sequence[Any] = lookup._emb_modules
    return kernels


def input_dists(module: Any) -> list[Any]:
    """Return the input dists of a sharded module, one a sharding. The first batch makes them."""
    return list(module._input_dists)


def output_dists(module: Any) -> list[Any]:
    """Return the output dists of a sharded module, one a sharding."""
    return list(module._output_dists)


def shardings(collection: Any) -> list[Any]:
    """Return the shardings of a sharded EmbeddingCollection, in the order of its dists."""
    return list(collection._sharding_type_to_sharding.values())


def lacks_index_dedup(collection: Any) -> bool:
    """Return whether a sharded EmbeddingCollection on CPU needs FBGEMM's operator of index dedup.

    FBGEMM has that operator for CUDA only.
    """
    device = collection._device
    if not collection._use_index_dedup or device is None or device.type != "cpu":
        return False
    operator = "fbgemm::jagged_unique_indices"
    return not torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CPU")


def set_index_dedup(collection: Any, is_on: bool) -> None:
    """Set whether a sharded EmbeddingCollection calls `_dedup_indices` on its next batches."""
    collection._use_index_dedup = is_on


def is_prioritized(module_or_context: Any) -> bool:
    """Return whether an object is a sharded PECEmbeddingCollection or the context of its batch.

    TorchRec has PECEmbeddingCollection from 1.8 on.
    """
    names = {kind.__name__ for kind in type(module_or_context).__mro__}
    return not names.isdisjoint({"ShardedPECEmbeddingCollection", "PECEmbeddingCollectionContext"})


def dense_module(dmp: Any) -> nn.Module:
    """Return the model inside a DistributedModelParallel, a DDP once its dense part is wrapped."""
    module: nn.Module = dmp._dmp_wrapped_module
    return module


def option_past_hook(dmp: Any) -> str | None:
    """Return the option with which a DMPCollection averages tables past its hook; None: no such.

    With `submodule_configs` it calls the hook, but for each group of replicas with other tables.
    """
    contexts = getattr(dmp, "_ctxs", ())
    options = {
        "use_sharded_relay": getattr(dmp, "_use_sharded_relay", False),
        "sharding_strategy FULLY_SHARDED": any(
            context.sharding_strategy.name == "FULLY_SHARDED" for context in contexts
        ),
        "submodule_configs": len(contexts) > 1,
    }
    return next((name for name, is_used in options.items() if is_used), None)


def all_reduce_hook(dmp: Any) -> Callable[..., Any] | None:
    """Return the function that a DMPCollection calls in place of its all-reduce, if there is one.

    TorchRec has a second attribute for it from 1.9 on, which wins.
    """
    return getattr(dmp, "_all_reduce_hook", None) or getattr(dmp, "_custom_all_reduce", None)


# Sharders and the planner


def uses_index_dedup(sharder: Any) -> bool:
    """Return the use_index_dedup with which an EmbeddingCollectionSharder was made."""
    return bool(sharder._use_index_dedup)


def sharding_order(sharder: Any) -> list[str] | None:
    """Return the sharded_module_order_overwrite of an EmbeddingBagCollectionSharder."""
    order: list[str] | None = sharder._sharded_module_order_overwrite
    return order


def nested_sharder(sharder: Any) -> Any:
    """Return the sharder of the collection inside a managed collision module."""
    return sharder._e_sharder


def set_bandwidths(topology: Topology, bandwidths: GeneralizedCommsBandwidth) -> None:
    """Replace the network that a topology describes."""
    topology._comms_bandwidths = bandwidths


# Played ranks


def variables_of_ranks() -> dict[tuple[ModuleType, str], Any]:
    """Return the global variables that each rank needs for itself, with their first values.

    They are the process groups inside a node and between nodes. TorchRec makes them when they are
    first needed.
    """
    names = ("_INTRA_PG", "_CROSS_PG", "_INTRA_PG_2D", "_CROSS_PG_2D", "_NODE_GROUP_SIZE_2D")
    return {(torchrec_comm, name): None for name in names if hasattr(torchrec_comm, name)}


def has_optimizer_in_backward(parameter: nn.Parameter) -> bool:
    """Return whether `apply_optimizer_in_backward` gave the parameter an optimizer."""
    return bool(getattr(parameter, "_optimizer_classes", ()))
