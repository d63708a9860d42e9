"""Distinct bags: each different bag of a batch is looked up and sent once, and nothing is lost.

Before a sharding's input dist, every feature's bags become the distinct ones: a KeyedJaggedTensor
with another batch size for every feature, which TorchRec's shardings take. From there on ids,
lookups, rows and gradients are fewer, and both ends know the sizes. After the output dist the rows
are spread over the samples again; in backward the gradients of equal bags are first summed in
float32, which is what the embedding's own backward does with them later anyway.

Where the lookups take no such batch (`after_lookup`) ids and lookups stay as they are, and the
owner of the tables finds the distinct bags, too: rows and gradients are as few.

It is done sharding by sharding, by hooks on TorchRec's dists, so that the module around them sees
the batch that it gave: mean pooling, DATA_PARALLEL tables and pipelines do not know of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from trec_qcomm.comm.rows.selected import take_rows
from trec_qcomm.core.counters import BagCounts
from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.integration.ids.chosen_rows import batch_sizes, rows_to_send
from trec_qcomm.ops.unique import BagBlocks, UniqueBags, expand, sum_by_bag, take_bags, unique_bags

AUTO_SHARE = 0.9  # merge where at least a tenth of the bags repeats; a choice, not tuned

Callback = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Found:
    """The distinct bags of a batch's features in one sharding.

    Args: in_lookup: only these are sent to the lookups; else they are selected from its rows.
    """

    bags: UniqueBags
    in_lookup: bool


def merge_bags(
    input_dist: Any,
    max_share: Sequence[float],
    tables: Tensor,
    counts: BagCounts,
    *,
    after_lookup: bool,
) -> None:
    """From now on find the distinct bags and, unless `after_lookup`, send only these.

    What was found is left in `input_dist.found` until the next call. A batch that comes with batch
    sizes of its own for every feature is left as it is.
    Args: max_share: of each feature in the dist's order, see ops.unique.unique_bags.
        tables: [F] int64, the number of each feature's table in `counts`.
    """
    shares = torch.tensor(max_share, dtype=torch.float64)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before(_dist: nn.Module, args: tuple[KeyedJaggedTensor, ...]) -> tuple[Any, ...] | None:
        (features,) = args
        if features.variable_stride_per_key():
            return None
        found = _find(features, shares)
        counts.add(tables, torch.full_like(tables, features.stride()), found.counts)
        input_dist.found = Found(found, in_lookup=not after_lookup)
        return None if after_lookup else (_distinct(features, found),)

    input_dist.found = None
    input_dist.register_forward_pre_hook(before)


def _find(features: KeyedJaggedTensor, shares: Tensor) -> UniqueBags:
    num_bags = torch.full((len(features.keys()),), features.stride(), dtype=torch.int64)
    return unique_bags(
        features.values(),
        features.lengths(),
        num_bags,
        shares,
        weights=features.weights_or_none(),
    )


def _distinct(features: KeyedJaggedTensor, found: UniqueBags) -> KeyedJaggedTensor:
    """The distinct bags of each feature, as a batch with a size of its own for each."""
    values, lengths, weights = features.values(), features.lengths(), features.weights_or_none()
    if len(found.first) < len(lengths):
        num_ids = None if found.num_ids is None else int(found.num_ids.sum())
        values, lengths, weights = take_bags(
            values, lengths, found.first, weights=weights, num_ids=num_ids
        )
    batch_sizes = [[size] for size in found.counts.tolist()]
    return KeyedJaggedTensor(
        features.keys(), values, weights, lengths, stride_per_key_per_rank=batch_sizes
    )


def hand_over_bags(sharding_contexts: list[Any], input_dists: list[Any]) -> None:
    """Tell each sharding's context of this batch which bags its input dist found."""
    for context, input_dist in zip(sharding_contexts, input_dists, strict=True):
        found: Found | None = getattr(input_dist, "found", None)
        if found is None:
            continue
        input_dist.found = None
        context.found = found
        if found.in_lookup:
            context.variable_batch_per_feature = True
            context.batch_size_per_feature_pre_a2a = found.bags.counts.tolist()


def select_bags(
    output_dist: nn.Module, dims: Sequence[int], max_share: Sequence[float], num_ranks: int
) -> None:
    """From now on send the first row of equal bags only, where the lookup has a row for each.

    Args: dims, max_share: of each feature of this rank's lookup.
    """
    dim = torch.tensor(list(dims), dtype=torch.int64)
    shares = torch.tensor(list(max_share), dtype=torch.float64)[:, None].expand(-1, num_ranks)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before(_dist: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        context = args[1] if len(args) > 1 else None
        found: Found | None = getattr(context, "found", None)
        if context is None or found is None or found.in_lookup:
            return None
        ids: KeyedJaggedTensor = context.received
        sizes = batch_sizes(ids, context.batch_size_per_rank, num_ranks)
        bags = unique_bags(
            ids.values(),
            ids.lengths(),
            sizes.reshape(-1),
            shares.reshape(-1),
            weights=ids.weights_or_none(),
        )
        chosen = torch.zeros_like(ids.lengths(), dtype=torch.bool)
        chosen[bags.first] = True
        rows = rows_to_send(chosen, sizes, dim, variable=False)
        context.variable_batch_per_feature = True
        context.batch_size_per_rank_per_feature = bags.counts.view(sizes.shape).T.tolist()
        context.batch_size_per_feature_pre_a2a = found.bags.counts.tolist()
        return (take_rows(args[0], rows), *args[1:])

    output_dist.register_forward_pre_hook(before)


def expand_bags(output_dist: nn.Module, dims: Sequence[int], callbacks: Sequence[Callback]) -> None:
    """From now on give back a row for every sample, as for a batch that was sent whole.

    Args: dims: of each feature in the order of the dist's result.  callbacks: what TorchRec does
        with a whole batch's rows before it hands them on.
    """
    dim = torch.tensor(list(dims), dtype=torch.int64)
    column = exclusive_cumsum(dim)[:-1]
    width = int(dim.sum())

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def after(_dist: nn.Module, args: tuple[Any, ...], awaitable: Any) -> None:
        found: Found | None = getattr(args[1], "found", None) if len(args) > 1 else None
        if found is None:
            return
        counts = found.bags.counts
        start = exclusive_cumsum(counts * dim)[:-1]
        blocks = BagBlocks(start, counts, dim, column, torch.arange(len(dim)))
        inverse = found.bags.inverse.view(len(dim), -1)
        awaitable.callbacks.append(lambda rows: _expanded(rows, blocks, inverse, width))
        awaitable.callbacks.extend(callbacks)

    output_dist.register_forward_hook(after)


def _expanded(rows: Tensor, blocks: BagBlocks, inverse: Tensor, width: int) -> Tensor:
    whole: Tensor = _Expand.apply(rows, blocks, inverse, width)  # type: ignore[no-untyped-call]
    return whole


class _Expand(Function):
    """Forward: rows of distinct bags -> [B, W] of all samples. Backward: sums over equal bags."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, blocks: BagBlocks, inverse: Tensor, width: int) -> Tensor:
        ctx.blocks, ctx.inverse, ctx.size = blocks, inverse, rows.numel()
        out = rows.new_empty(inverse.shape[1], width)
        expand(rows.contiguous(), blocks, inverse, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = grads
        sums = grad.new_empty(ctx.size)
        sum_by_bag(grad.contiguous(), ctx.blocks, ctx.inverse, sums)
        return sums, None, None, None
