"""Count the rows that are not sent, because bags are merged or partial rows are empty.

A rank knows its own batch before merging, so its count of gradients that it does not send is exact.
It sees only the distinct bags of other ranks' batches. So its count of rows that it does not send
is exact only if all ranks have equal batch sizes. Unpooled rows and ids that are not sent are
estimated from how often the ids of this rank's own batch repeat.
Shapes: P ranks; F shards of all owners, F_r of this rank's own.
"""

from typing import Any

import torch
from torch import Tensor, nn

from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.integration.ids.batch_notes import notes_on


class LeftOutRows:
    """Counter of the rows and gradients that a collective does not send to other ranks.

    Attributes:
        is_mine: [F] bool, shards that this rank owns
    """

    def __init__(self, collective: RowCollective) -> None:
        self._collective = collective
        shards_by_rank = collective.layout.shards_by_rank
        numbers = {table: n for n, table in enumerate(collective.forward_traffic.tables)}
        shards = [shard for shards in shards_by_rank for shard in shards]
        self._table = int64_tensor([numbers[shard.table] for shard in shards])
        self._dim = int64_tensor([shard.dim for shard in shards])
        owner = int64_tensor([rank for rank, shards in enumerate(shards_by_rank) for _ in shards])
        self.is_mine = owner == collective.rank

    def add(self, rows: Tensor, gradients: Tensor) -> None:
        """Count one exchange. Rows for this rank itself do not count.

        Args:
            rows: [P, F_r], number of rows of each shard that are not sent to each rank
            gradients: [F], number of gradients of each shard that are not sent to its owner
        """
        collective, is_mine = self._collective, self.is_mine
        num_rows = rows.clamp(min=0).sum(0) - rows[collective.rank].clamp(min=0)
        traffics = [(collective.forward_traffic, is_mine, num_rows)]
        if torch.is_grad_enabled():
            num_gradients = gradients.clamp(min=0)[~is_mine]
            traffics.append((collective.backward_traffic, ~is_mine, num_gradients))
        for traffic, where, number in traffics:
            nbytes = traffic.value_nbytes * self._dim[where] * number.round().long()
            traffic.add_left_out(self._table[where], nbytes)


def count_left_out(output_dist: nn.Module, collective: RowCollective) -> None:
    """Count, from now on, the rows that a dist of whole columns does not send.

    Args: collective: an all-to-all of this dist, whose owners send whole columns
    """
    left_out = LeftOutRows(collective)
    num_ranks, num_shards = collective.world_size, int(left_out.is_mine.sum())

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def after(_dist: nn.Module, args: tuple[Any, ...], _awaitable: Any) -> None:
        context: Any = args[1] if len(args) > 1 else None
        merged = notes_on(context).merged
        if merged is None:
            return
        sizes = int64_tensor(context.batch_size_per_rank or [merged.batch_size] * num_ranks)
        sent = context.batch_size_per_rank_per_feature or [[]] * num_ranks
        distinct = int64_tensor([n for of_rank in sent for n in of_rank])
        rows = sizes[:, None] - distinct.view(num_ranks, num_shards)
        left_out.add(rows, merged.batch_size - merged.bags.counts)

    output_dist.register_forward_hook(after)
