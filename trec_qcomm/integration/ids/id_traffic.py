"""Hooks that pack what input dists send, count it, and note how many ids each rank was sent."""

from typing import Any

import torch
from torch import Tensor, nn

from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.integration.compat.private import inner_dist, input_dist_tensors, process_group
from trec_qcomm.integration.ids.batch_notes import SentIds, notes_on
from trec_qcomm.integration.ids.packed_batch import PackedBatch

_FIRST = int64_tensor([0])  # ids are counted under one table


def pack_ids(input_dist: Any) -> None:
    """From now on let a TorchRec input dist send its ids packed (PackedBatch)."""
    inner = inner_dist(input_dist)
    if process_group(inner).size() == 1:  # TorchRec sends nothing then
        return

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before(_inner: nn.Module, args: tuple[KeyedJaggedTensor]) -> tuple[PackedBatch]:
        return (PackedBatch.view_of(args[0]),)

    inner.register_forward_pre_hook(before)


def record_sent_ids(input_dist: Any, traffic: Traffic) -> None:
    """From now on count what a TorchRec input dist sends, and note it (BatchNotes.sent).

    Counted are lengths, ids and weights to other ranks, and the sizes sent before them. The hook
    sits on the inner all-to-all, whose `forward` (and not `__call__`) is what
    TrainPipelineSparseDist replaces.
    """
    inner = inner_dist(input_dist)
    pg = process_group(inner)
    rank, world_size = pg.rank(), pg.size()

    def after(_inner: nn.Module, args: tuple[KeyedJaggedTensor], awaitable: Any) -> None:
        (features,) = args
        splits_and_tensors, num_sizes = input_dist_tensors(awaitable)
        wire = plain = sum(
            (sum(splits) - splits[rank]) * tensor.element_size()
            for splits, tensor in splits_and_tensors
        )
        plain_sizes = num_sizes
        if isinstance(features, PackedBatch):
            plain, plain_sizes = features.unpacked_nbytes(rank)
        has_stride = not features.variable_stride_per_key()  # which is sent, too
        raw = int64_tensor([plain + 8 * (plain_sizes + has_stride) * (world_size - 1)])
        count = int64_tensor([wire + 8 * (num_sizes + has_stride) * (world_size - 1)])
        traffic.add_bytes(_FIRST, raw, count, 0)
        notes = notes_on(input_dist)
        if notes.repetition is not None:
            left_out = round(plain * (notes.repetition.nbytes_ratio - 1))
            traffic.add_left_out(_FIRST, int64_tensor([left_out]))
        notes.sent = SentIds(
            features.length_per_key(), features.stride_per_key(), features.lengths()
        )

    inner.register_forward_hook(after)


def count_remapped_ids(output_dist: Any, traffic: Traffic) -> None:
    """From now on count what a managed collision module sends when it returns remapped ids."""

    def after(_dist: nn.Module, args: tuple[Tensor, Any], _awaitable: Any) -> None:
        ids, context = args
        rank = process_group(inner_dist(output_dist)).rank()
        splits = context.output_splits
        num_ids = sum(splits) - splits[rank]
        count = int64_tensor([num_ids * ids.element_size() * (ids.numel() // max(len(ids), 1))])
        traffic.add_bytes(_FIRST, count, count, 0)

    output_dist.register_forward_hook(after)
