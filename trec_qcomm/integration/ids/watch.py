"""Input dist: ids travel as in TorchRec. What is sent is counted and remembered."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trec_qcomm.core.stats import Traffic
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.integration.compat.private import inner_dist, input_dist_tensors, process_group


@dataclass(frozen=True, eq=False)
class Sent:
    """What one rank sent the owners of the tables, for each rank, for each of its features.

    Args: num_ids: of each.  lengths: int, of all bags of the first, then of the second, ...
        num_bags: of each.
    """

    num_ids: list[int]
    lengths: Tensor
    num_bags: list[int]


def watch_ids(input_dist: Any, traffic: Traffic) -> None:
    """From now on count what a TorchRec input dist sends, and note it.

    Counted are lengths, ids and weights to other ranks, and the sizes sent before them. What was
    sent, rank by rank, is left in `input_dist.sent` until the next call. The hook sits on the inner
    all-to-all, whose `forward` (and not `__call__`) is what TrainPipelineSparseDist replaces.
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
        count = torch.tensor([nbytes + 8 * num_sizes * (world_size - 1)])
        traffic.add_bytes(torch.tensor([0]), count, count, 0)
        input_dist.sent = Sent(
            features.length_per_key(), features.lengths(), features.stride_per_key()
        )

    inner.register_forward_hook(after)


def hand_over_ids(sharding_contexts: list[Any], input_dists: list[Any]) -> None:
    """Give each batch's context its own `sent`, before the next batch overwrites it."""
    for context, input_dist in zip(sharding_contexts, input_dists, strict=True):
        context.sent = getattr(input_dist, "sent", None)  # DATA_PARALLEL sends none
        input_dist.sent = None  # a batch that was not watched is not taken for this one


def watch_remapped_ids(output_dist: Any, traffic: Traffic) -> None:
    """Count what a managed collision module sends when it returns the remapped ids."""

    def after(_dist: nn.Module, args: tuple[Tensor, Any], _awaitable: Any) -> None:
        ids, context = args
        rank = process_group(inner_dist(output_dist)).rank()
        splits = context.output_splits
        num_ids = sum(splits) - splits[rank]
        count = torch.tensor([num_ids * ids.element_size() * (ids.numel() // max(len(ids), 1))])
        traffic.add_bytes(torch.tensor([0]), count, count, 0)

    output_dist.register_forward_hook(after)
