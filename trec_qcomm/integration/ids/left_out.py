"""Count of the rows and ids that are not sent, because bags are merged or partial rows are empty.

A rank knows its own batch before merging, so the count of gradients that it does not send is exact.
Of other ranks' batches it sees only the distinct bags, so the count of rows that it does not send
them is exact only where all ranks have equal batch sizes. Unpooled rows and ids that are not sent
are estimated from how often the ids of this rank's own batch repeat.
Shapes: P ranks; F features of all owners, F_r of this rank's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.layout import FeatureShard
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.integration.ids.batch_notes import MergedBags, notes_on


@dataclass(frozen=True, eq=False)
class IdRepetition:
    """How often the ids of a batch repeat.

    Args:
        nbytes_ratio: bytes of ids, lengths and weights of the whole batch, over the distinct ones
        by_feature: [F] float64, ids of each feature over its distinct ones; empty for pooled rows
    """

    nbytes_ratio: float
    by_feature: Tensor


def repetition(
    whole: KeyedJaggedTensor, distinct: KeyedJaggedTensor, by_feature: Tensor | None = None
) -> IdRepetition:
    """Return how often ids repeat, without waiting for a GPU."""
    ratio = _nbytes(whole) / max(_nbytes(distinct), 1)
    none = torch.zeros(0, dtype=torch.float64)
    return IdRepetition(max(ratio, 1.0), none if by_feature is None else by_feature)


def _nbytes(features: KeyedJaggedTensor) -> int:
    tensors = [features.values(), features.lengths()]
    weights = features.weights_or_none()
    tensors += [] if weights is None else [weights]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def add_left_out(traffic: Traffic, shards: Sequence[FeatureShard], num_rows: Tensor) -> None:
    """Count rows that are not sent.

    Args:
        traffic: counter of the collective's direction
        shards: F shards, with the tables and dims of the rows
        num_rows: [F] int64, rows of each shard that are left out
    """
    numbers = {table: number for number, table in enumerate(traffic.tables)}
    table = int64_tensor([numbers[shard.table] for shard in shards])
    dims = int64_tensor([shard.dim for shard in shards])
    traffic.add_left_out(table, traffic.value_nbytes * dims * num_rows.clamp(min=0))


def batch_size_of(merged: MergedBags) -> int:
    """Return the samples of this rank's batch before its bags were merged."""
    return merged.bags.inverse.numel() // max(len(merged.bags.counts), 1)


def count_left_out(output_dist: nn.Module, collective: RowCollective) -> None:
    """From now on count the rows that a dist of whole columns does not send.

    Args: collective: an all-to-all of this dist, whose owners send whole columns
    """
    rank, shards_by_rank = collective.rank, collective.layout.shards_by_rank
    every = [shard for shards in shards_by_rank for shard in shards]
    owner = torch.tensor(
        [r for r, shards in enumerate(shards_by_rank) for _ in shards], dtype=torch.int64
    )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def after(_dist: nn.Module, args: tuple[Any, ...], _awaitable: Any) -> None:
        context: Any = args[1] if len(args) > 1 else None
        merged = notes_on(context).merged
        if merged is None:
            return
        size = batch_size_of(merged)
        sizes = list(context.batch_size_per_rank) or [size] * len(shards_by_rank)
        sent = context.batch_size_per_rank_per_feature
        if shards_by_rank[rank] and sent:
            peers = [peer for peer in range(len(shards_by_rank)) if peer != rank]
            whole = int64_tensor([sizes[peer] for peer in peers])[:, None]
            distinct = int64_tensor(n for peer in peers for n in sent[peer])
            left_out = whole - distinct.view(len(peers), len(shards_by_rank[rank]))
            counter = collective.forward_traffic
            add_left_out(counter, shards_by_rank[rank], left_out.clamp(min=0).sum(0))
        if torch.is_grad_enabled():
            rows = (size - merged.bags.counts) * (owner != rank)
            add_left_out(collective.backward_traffic, every, rows)

    output_dist.register_forward_hook(after)
