"""Look up and send each distinct bag of a batch once, without any loss.

Before a sharding's input dist, every feature's bags are replaced by its distinct bags. The result
is a KeyedJaggedTensor with its own batch size for every feature, which TorchRec's shardings take.
From there on ids, lookups, rows and gradients are fewer, and both ends know the sizes. After the
output dist the rows are spread over the samples again. In backward, gradients of equal bags are
summed in float32 before coding. The embedding would add them up anyway.

Some lookups take no such batch (MergePoint.LOOKUP). Then ids and lookups stay as they are, the
owner of the tables also finds the distinct bags, and only rows and gradients are fewer.

Each sharding does this by hooks on TorchRec's dists, so the module around it sees its own batch.
Mean pooling, DATA_PARALLEL tables and pipelines are not affected.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from trec_qcomm.comm.rows.layout import FeatureShard
from trec_qcomm.comm.rows.selected import take_rows
from trec_qcomm.comm.streams import use_here
from trec_qcomm.core.counters import BagCounts
from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.core.transfer import upload
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.integration.ids.bag_merging import BagMerging, MergePoint
from trec_qcomm.integration.ids.batch_notes import MergedBags, notes_on, repetition
from trec_qcomm.integration.ids.lookup_rows import batch_sizes, rows_to_send
from trec_qcomm.integration.ids.merge_pause import MergePause
from trec_qcomm.ops.batch.unique import (
    BagBlocks,
    UniqueBags,
    expand,
    sort_by_id,
    sum_by_bag,
    take_bags,
    unique_bags,
)

Callback = Callable[[Tensor], Tensor]


def merge_bags(
    input_dist: nn.Module,
    merging: BagMerging,
    shards: Sequence[FeatureShard],
    counts: BagCounts,
    *,
    is_on: Callable[[], bool] = lambda: True,
    pause: MergePause | None = None,
    by_id: bool = False,
    note: Callable[[KeyedJaggedTensor, UniqueBags], Any] | None = None,
) -> None:
    """Find, from now on, each batch's distinct bags; note them (BatchNotes.merged) and count them.

    With MergePoint.INPUT_DIST the input dist sends only distinct bags. A batch that comes with its
    own batch size for every feature is left as it is.
    Args:
        shards: [F], the features in the order in which the input dist takes them
        is_on: function that returns whether bags are merged now; equal on all ranks
        pause: policy by which further batches are left as they are; None: none are
        by_id: whether to send bags of one id in the order of their ids
        note: function of a batch and its distinct bags; its result is noted, too
    """
    shares = merging.shares_of(shard.table for shard in shards)
    tables = counts.numbers_of([shard.table for shard in shards])
    in_lookup = merging.point is MergePoint.INPUT_DIST

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before(_dist: nn.Module, args: tuple[KeyedJaggedTensor, ...]) -> tuple[Any, ...] | None:
        (features,) = args
        if features.variable_stride_per_key() or not is_on():
            return None
        notes, num_bags = notes_on(input_dist), torch.full_like(tables, features.stride())
        if pause is not None and not pause.is_due():
            notes.on_lookup = pause.count(lambda: False)
            counts.add(tables, num_bags, num_bags)
            return None
        bags = _distinct_bags(features, shares, by_id=by_id and in_lookup)
        if pause is not None:
            notes.on_lookup = pause.count(lambda: _pays(bags, features, by_id=by_id and in_lookup))
        counts.add(tables, num_bags, bags.counts)
        noted = None if note is None else note(features, bags)
        notes.merged = MergedBags(bags, in_lookup, noted)
        if not in_lookup:
            return None
        distinct = _distinct_batch(features, bags, is_in_order=not by_id)
        notes.repetition = repetition(features, distinct)
        return (distinct,)

    input_dist.register_forward_pre_hook(before)


def _distinct_bags(features: KeyedJaggedTensor, shares: Tensor, *, by_id: bool) -> UniqueBags:
    num_bags = torch.full((len(features.keys()),), features.stride(), dtype=torch.int64)
    batch = features.values(), features.lengths(), num_bags
    bags = unique_bags(*batch, shares, weights=features.weights_or_none())
    return sort_by_id(bags, *batch) if by_id else bags


def _pays(bags: UniqueBags, features: KeyedJaggedTensor, *, by_id: bool) -> bool:
    """Return whether bags were merged, or put into the order of ids in which these pack well."""
    if len(bags.first) < len(bags.inverse):
        return True
    if not by_id or not features.stride():
        return False
    longest = features.lengths().view(len(features.keys()), -1).amax(1)
    return bool((longest == 1).any())


def _distinct_batch(
    features: KeyedJaggedTensor, bags: UniqueBags, *, is_in_order: bool
) -> KeyedJaggedTensor:
    """Return the distinct bags of each feature, as a batch with a size of its own for each.

    Args: is_in_order: whether bags of which none was merged are the batch as it is
    """
    values, lengths, weights = features.values(), features.lengths(), features.weights_or_none()
    if len(bags.first) < len(lengths) or not is_in_order:
        num_ids = None if bags.num_ids is None else int(bags.num_ids.sum())
        values, lengths, weights = take_bags(
            values, lengths, bags.first, weights=weights, num_ids=num_ids
        )
    batch_sizes = [[size] for size in bags.counts.tolist()]
    return KeyedJaggedTensor(
        features.keys(), values, weights, lengths, stride_per_key_per_rank=batch_sizes
    )


def select_bags(
    output_dist: nn.Module, merging: BagMerging, shards: Sequence[FeatureShard], num_ranks: int
) -> None:
    """Send, from now on, only the first of the equal rows that a lookup made for equal bags.

    A batch whose bags were merged before the input dist is left as it is.
    Args: shards: the features of this rank's lookup
    """
    dims = torch.tensor([shard.dim for shard in shards], dtype=torch.int64)
    shares = merging.shares_of(shard.table for shard in shards)[:, None].expand(-1, num_ranks)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before(_dist: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        context: Any = args[1] if len(args) > 1 else None
        notes = notes_on(context)
        if notes.merged is None or notes.merged.in_lookup:
            return None
        ids = notes.received
        assert ids is not None
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
        rows = rows_to_send(chosen, sizes, dims, variable=False).rows()
        context.variable_batch_per_feature = True
        context.batch_size_per_rank_per_feature = bags.counts.view(sizes.shape).T.tolist()
        context.batch_size_per_feature_pre_a2a = notes.merged.bags.counts.tolist()
        return (take_rows(args[0], rows), *args[1:])

    output_dist.register_forward_pre_hook(before)


def expand_bags(
    output_dist: nn.Module, shards: Sequence[FeatureShard], callbacks: Sequence[Callback]
) -> None:
    """Return, from now on, a row for every sample, as for a batch that was sent whole.

    Args:
        shards: the features in the order of the dist's result
        callbacks: functions that TorchRec applies to a whole batch's rows before it hands them on
    """
    dims = torch.tensor([shard.dim for shard in shards], dtype=torch.int64)
    column = exclusive_cumsum(dims)[:-1]
    width = int(dims.sum())

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def after(_dist: nn.Module, args: tuple[Any, ...], awaitable: Any) -> None:
        merged = notes_on(args[1]).merged if len(args) > 1 else None
        if merged is None:
            return
        counts = merged.bags.counts
        start = exclusive_cumsum(counts * dims)[:-1]
        blocks = BagBlocks(start, counts, dims, column, torch.arange(len(dims)))
        inverse = merged.bags.inverse.view(len(dims), -1)
        expanded: Any = _Expand.apply
        awaitable.callbacks.append(lambda rows: expanded(rows, blocks, inverse, width))
        awaitable.callbacks.extend(callbacks)

    output_dist.register_forward_hook(after)


class _Expand(Function):
    """Function from rows of distinct bags to [B, W] of all samples; backward sums equal bags."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, blocks: BagBlocks, inverse: Tensor, width: int) -> Tensor:
        use_here(inverse)  # made by the input dist
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


def distinct_ids(
    features: KeyedJaggedTensor, shares: Tensor, *, by_id: bool = False
) -> tuple[UniqueBags, KeyedJaggedTensor, Tensor]:
    """Find the distinct ids of each of F unpooled features.

    TorchRec's use_index_dedup does the same, but not table by table. On CPU FBGEMM has no operator
    for it.
    Args:
        shares: [F] float64, the largest share of distinct ids at which equal ones are merged
        by_id: whether distinct ids are sent in increasing order
    Returns: the distinct ids, each as a bag of one; a batch that holds each distinct id once,
        spread evenly over as many samples as before; and [N] int64, the place in that batch of each
        of the N ids.
    """
    values = features.values()
    num_ids = torch.tensor(features.length_per_key(), dtype=torch.int64)
    one_each = torch.ones_like(values, dtype=torch.int32)
    unique = unique_bags(values, one_each, num_ids, shares)
    if by_id:
        unique = sort_by_id(unique, values, one_each, num_ids)
    first = exclusive_cumsum(unique.counts)[:-1]
    before = torch.repeat_interleave(first, num_ids)
    spread = _spread(unique.counts, features.stride()).reshape(-1)
    before, lengths = upload(values.device, before, spread)
    reverse = unique.inverse + before
    distinct = KeyedJaggedTensor(
        features.keys(),
        values.index_select(0, unique.first),
        lengths=lengths.to(features.lengths().dtype),
    )
    return unique, distinct, reverse


def _spread(counts: Tensor, num_samples: int) -> Tensor:
    """Return [F, B] lengths that add up to the [F] counts, as even as can be."""
    sample = torch.arange(num_samples)
    if not num_samples:
        return counts.new_zeros(len(counts), 0)
    return (counts // num_samples)[:, None] + (sample < (counts % num_samples)[:, None])
