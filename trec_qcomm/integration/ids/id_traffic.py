"""Hooks that count what input dists send, and note how many ids each rank was sent.

Ids travel as in TorchRec.
"""

from typing import Any

from torch import Tensor, nn

from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.integration.compat.private import inner_dist, input_dist_tensors, process_group
from trec_qcomm.integration.ids.batch_notes import SentIds, notes_on

_FIRST = int64_tensor([0])  # ids are counted under one table


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
        splits_and_tensors = input_dist_tensors(awaitable)
        nbytes = sum(
            (sum(splits) - splits[rank]) * tensor.element_size()
            for splits, tensor in splits_and_tensors
        )
        num_sizes = len(splits_and_tensors) + (not features.variable_stride_per_key())
        count = int64_tensor([nbytes + 8 * num_sizes * (world_size - 1)])
        traffic.add_bytes(_FIRST, count, count, 0)
        notes = notes_on(input_dist)
        if notes.repetition is not None:
            left_out = round(nbytes * (notes.repetition.nbytes_ratio - 1))
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
