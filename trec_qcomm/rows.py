"""Rows without TorchRec: tables that are sharded by rows over ranks, such as tables of n-grams.

    from trec_qcomm.codecs import Rowwise
    from trec_qcomm.rows import ByRange, RowChannel

    channel = RowChannel(dim=64, codec=Rowwise(8))
    owner = ByRange(num_rows=1_000_000, num_ranks=dist.get_world_size())
    shard = nn.Parameter(torch.randn(len(owner.rows_of(dist.get_rank())), 64))
    vectors = exchange_rows(ids, shard, owner, channel=channel)    # [*ids.shape, 64]

Each rank asks the owners of its ids for rows, once for each different id. Ids travel packed. Rows
and gradients travel coded. A rank sums the gradients of equal ids before coding, and the owner of a
row sums the gradients of all ranks. `all_to_all` is the exchange of rows alone.

With torch.compile the calls break the graph. With activation checkpointing the exchange is made
again in backward, on all ranks alike.

Knows: collectives of rows, messages of ids. Does not know: TorchRec, models.
Shapes: N ids; P ranks; rows of D values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import embedding

from trec_qcomm.codecs import Identity
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.comm.rows.sequence import SequenceAllToAll
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.wire.id_messages import pack, unpack

_TABLE = "rows"


class Owner(Protocol):
    """Rule that says which rank has the row of an id."""

    def rank_of(self, ids: Tensor) -> Tensor:
        """Return [N] int64, the rank (in the group) that has each row. Args: ids: [N]."""

    def place_of(self, ids: Tensor) -> Tensor:
        """Return [N] int64, the index of each row in its owner's shard. Args: ids: [N]."""


@dataclass(frozen=True)
class ByRange:
    """Rule by which each rank has adjacent rows. Numbers of rows differ by one at most.

    Args: num_rows: rows of the table.  num_ranks: P.
    """

    num_rows: int
    num_ranks: int

    def rows_of(self, rank: int) -> range:
        """Return the ids whose rows a rank has."""
        return range(*(n * self.num_rows // self.num_ranks for n in (rank, rank + 1)))

    def rank_of(self, ids: Tensor) -> Tensor:
        return torch.bucketize(ids, self._begins(ids), right=True) - 1

    def place_of(self, ids: Tensor) -> Tensor:
        return ids - self._begins(ids)[self.rank_of(ids)]

    def _begins(self, ids: Tensor) -> Tensor:
        """Return where each rank's rows begin, and the end."""
        return ids.new_tensor([self.rows_of(rank).start for rank in range(self.num_ranks + 1)])


@dataclass(frozen=True)
class ByModulo:
    """Rule by which rank r has the ids r, r + P, r + 2 P and so on. Args: num_ranks: P."""

    num_ranks: int

    def rank_of(self, ids: Tensor) -> Tensor:
        return ids % self.num_ranks

    def place_of(self, ids: Tensor) -> Tensor:
        return ids // self.num_ranks


class RowChannel:
    """Codecs, counters and number of calls of the exchanges of rows in one group.

    All ranks of the group make it with the same arguments, and use it in the same order. Layers may
    share a channel or have one each. A channel is a Stateful of torch.distributed.checkpoint: a run
    that loads its state draws the same noise.

    Args:
        dim: D.
        codec: codec of the rows; None: Identity, which is exact.
        backward: codec of the gradients of the rows; None: `codec`.
        group: process group of the ranks; None: all ranks.
        seed: seed of stochastic rounding.
        dtype: dtype of the rows, float32, float16 or bfloat16.
        name: text for errors and traces.
    Attributes:
        collective: exchange of the rows, with their counters.
        ids_nbytes: bytes of ids and sizes that this rank has sent to others.
    Raises: ValueError: a codec that does not take such rows.
    """

    def __init__(
        self,
        dim: int,
        codec: Codec | None = None,
        backward: Codec | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        name: str = _TABLE,
    ) -> None:
        pg = dist.group.WORLD if group is None else group
        if pg is None:
            raise ValueError("group: torch.distributed is not initialized; call init_process_group")
        layout = Layout(((FeatureShard(_TABLE, _TABLE, 0, dim),),) * pg.size(), dtype)
        codec = Identity() if codec is None else codec
        codecs = DirectionCodecs({_TABLE: codec}, {_TABLE: backward or codec})
        exact = DirectionCodecs({_TABLE: Identity()}, {_TABLE: Identity()})
        self.dim, self.ids_nbytes = dim, 0
        self.collective = SequenceAllToAll(
            pg, layout, codecs=codecs, exact=exact, name=name, seed=seed
        )

    def state_dict(self) -> dict[str, Any]:
        """Return {"step": [] int64, the number of training calls}."""
        return {"step": torch.tensor(self.collective.step)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.collective.step = int(state["step"])


@torch.compiler.disable  # type: ignore[untyped-decorator]
def all_to_all(rows: Tensor, splits: Sequence[int], channel: RowChannel) -> Tensor:
    """Send rows to all ranks, and return the rows that came from them, for autograd. Collective.

    Args: rows: [N, D], of the channel's dtype, rank by rank.  splits: P numbers of rows.
    Returns: [M, D], rank by rank. Backward sends the gradients of these rows back.
    Raises: ValueError: rows of another shape or dtype.  CorruptFrameError: a frame is wrong.
        LostPeerError: a peer is gone.
    """
    if len(splits) != channel.collective.world_size:
        raise ValueError(
            f"splits: {len(splits)} for {channel.collective.world_size} ranks; give one a rank"
        )
    sent = torch.tensor(splits, dtype=torch.int64)
    received = _exchanged(channel, sent, rows.device)
    came: Tensor = channel.collective.start(rows, sent[None], received).wait()
    return came


@torch.compiler.disable  # type: ignore[untyped-decorator]
def exchange_rows(
    ids: Tensor,
    lookup: Tensor | Callable[[Tensor], Tensor],
    owner: Owner,
    channel: RowChannel,
    *,
    unique: bool = True,
    packed_ids: bool = True,
) -> Tensor:
    """Return [*ids.shape, D], the rows of this rank's ids, for autograd. Collective.

    Args:
        ids: int64 or int32, of any shape.
        lookup: this rank's shard of the table, [rows, D]; or a function that returns the rows
            [M, D] of [M] ids of this rank, for autograd.
        owner: rule that says where rows are.
        channel: codecs and group.
        unique: whether equal ids are sent once.
        packed_ids: whether ids travel packed.
    Raises: ValueError: an id without an owner.  CorruptFrameError: a message is wrong.
        LostPeerError: a peer is gone.
    """
    size, flat = channel.collective.world_size, ids.reshape(-1)
    wanted, inverse = torch.unique(flat, return_inverse=True) if unique else (flat, ...)
    ranks = owner.rank_of(wanted)
    if len(ranks) and not 0 <= int(ranks.min()) <= int(ranks.max()) < size:
        raise ValueError(f"ids: owner.rank_of gives a rank that is none of 0 to {size - 1}")
    order = torch.argsort(ranks, stable=True)
    counts = torch.bincount(ranks, minlength=size).cpu()
    asked, asked_counts = _send_ids(wanted[order], counts, channel, is_packed=packed_ids)
    rows = lookup(asked) if callable(lookup) else embedding(owner.place_of(asked), lookup)
    came: Tensor = channel.collective.start(rows, asked_counts[None], counts).wait()
    return came.index_select(0, torch.argsort(order)[inverse]).view(*ids.shape, channel.dim)


def _send_ids(
    ids: Tensor, counts: Tensor, channel: RowChannel, *, is_packed: bool
) -> tuple[Tensor, Tensor]:
    """Return the ids [M] that all ranks ask this one for, and [P] their numbers, on CPU."""
    if not is_packed:
        asked = _exchanged(channel, counts, ids.device)
        return _all_to_all(channel, ids, counts.tolist(), asked.tolist()), asked
    one_each = torch.ones(len(ids), dtype=torch.int32, device=ids.device)
    messages = pack(Bags(ids, one_each, counts), [1] * len(counts), even_bags=None)
    nbytes = _exchanged(channel, torch.tensor(messages.nbytes), ids.device)
    buffer = _all_to_all(channel, messages.buffer, messages.nbytes, nbytes.tolist())
    bags = unpack(buffer, channel.collective.peers.ranks, [_TABLE], None, (ids.dtype, torch.int32))
    return bags.ids, bags.num_bags


def _exchanged(channel: RowChannel, numbers: Tensor, device: torch.device) -> Tensor:
    """Return [P] on CPU, the number that each rank has for this one.

    Args: numbers: [P] int64 on CPU, for each rank.  device: where the group sends from.
    Raises: CorruptFrameError: one that is negative, or above 32 bits.
    """
    ones = [1] * len(numbers)
    came = _all_to_all(channel, numbers.to(device), ones, ones).cpu()
    for rank, number in zip(channel.collective.peers.ranks, came.tolist(), strict=True):
        if number >> 32:
            raise CorruptFrameError(f"{number} rows, ids or bytes of ids announced", rank=rank)
    return came


def _all_to_all(
    channel: RowChannel, values: Tensor, sent: list[int], received: list[int]
) -> Tensor:
    op, begin = channel.collective, perf_counter()
    channel.ids_nbytes += (sum(sent) - sent[op.rank]) * values[:1].nbytes
    came = values.new_empty(sum(received), *values.shape[1:])
    try:
        dist.all_to_all_single(came, values.contiguous(), received, sent, group=op.pg)
    except RuntimeError as error:
        raise op.peers.lost(error, f"ids of {op.name}", since=begin) from error
    return came
