"""Algorithms of the all-reduce: who sends which chunks to whom, in which rounds.

Each algorithm replaces `values` [E] by their sum over ranks. All ranks end with equal bits.

Knows: ranks, nodes, chunks. Does not know: codecs, process groups, residuals.
Shapes: N ranks; E values.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import ChunkSpan
from trec_qcomm.comm.dense.coder import Message, MessageCoder, messages_of
from trec_qcomm.comm.dense.error_feedback import (
    CONTRIBUTION,
    INSIDE,
    OWNER,
    Site,
    node_sites,
    stage_site,
)
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rounds import ReceivedMessages, Round, Rounds


def ring(coder: MessageCoder, values: Tensor) -> Rounds:
    """Send the partial sums of chunks round a ring once, and then the sums.

    Rank r sends only to rank r+1. In each of N-1 rounds a rank receives the partial sum of a chunk,
    adds its own values, and passes the sum on. Then rank r has the sum of chunk r. It encodes the
    sum once, and N-1 more rounds pass these bytes on unchanged. The owner, too, keeps the decoded
    sum.

    Quantizations of a value: N-1 in partial sums and 1 in the sum. A chunk is encoded N times in
    all, so a codec with |error| <= e gives |error of the sum| <= N e.
    Bytes sent: frames of all chunks but one, twice: 2 (N-1)/N of all frames.
    Source: Yang et al. 2020 (quantized ring all-reduce with error compensation). Ours: one residual
    a value, because each rank encodes each chunk once.

    Args: values: [E], replaced by the sum over ranks.
    """
    rank, n = coder.rank, coder.world_size
    after, before = (rank + 1) % n, (rank - 1) % n
    chunks = [coder.chunks.span(range(c, c + 1)) for c in range(n)]
    for step in range(n - 1):
        to_send, to_receive = chunks[(rank - step - 1) % n], chunks[(rank - step - 2) % n]
        [message] = coder.send(values, to_send, CONTRIBUTION)
        received = yield coder.round([(after, message)], [before], to_receive.placed)
        own_values = values[to_receive.begin : to_receive.end].clone()
        coder.receive(received, to_receive.placed, values, [before])
        values[to_receive.begin : to_receive.end] += own_values
    [message] = coder.send(values, chunks[rank], CONTRIBUTION)
    for step in range(n - 1):
        to_receive = chunks[(rank - step - 1) % n]
        received = yield coder.round([(after, message)], [before], to_receive.placed)
        coder.receive(received, to_receive.placed, values, [before])
        [message] = messages_of(received, to_receive.placed)


def recursive_doubling(coder: MessageCoder, values: Tensor) -> Rounds:
    """Exchange all values in pairs of ranks, twice as far apart in each stage.

    M is the largest power of two that is not above N, and there are log2 M stages. First, rank M +
    i sends its values to rank i, which adds them to its own. At stage k, ranks r and r xor 2^k
    exchange their encoded values, and both add the two decoded messages. Before that stage the
    ranks of a group of 2^k hold equal bits, and they encode them alike. At the end rank i sends the
    last two messages to rank M + i, which adds them up and so gets the same bits.

    Quantizations of a value: log2 M, and 1 more for ranks M and up. With |error| <= e each, the
    error of the sum is at most (2 (M-1) + N-M) e: M / 2^k different groups encode at stage k.
    Bytes sent: log2 M whole frames by ranks below M, 1 by ranks M and up. A rank i that has a
    partner M + i sends 2 more.
    Source: Yang et al. 2020 (quantized recursive doubling). MPI implementations fold ranks beyond a
    power of two in the same way; undoing the fold by two messages is ours.

    Args: values: [E], replaced by the sum over ranks.
    """
    rank, n = coder.rank, coder.world_size
    power, chunks = 1 << (n.bit_length() - 1), range(coder.chunks.num_chunks)
    whole = coder.chunks.span(chunks)
    if rank >= power:
        [message] = coder.send(values, whole, CONTRIBUTION)
        yield coder.round([(rank - power, message)], [], None)
        last_two = coder.chunks.copies(chunks, (0, 1))
        received = yield coder.round([], [rank - power] * 2, last_two)
        pair = values.new_empty(2, len(values))
        coder.receive(received, last_two, pair, [rank - power] * 2)
        torch.add(pair[0], pair[1], out=values)
        return
    folded = [rank + power] if rank + power < n else []
    if folded:
        received = yield coder.round([], folded, whole.placed)
        other = torch.empty_like(values)
        coder.receive(received, whole.placed, other, folded)
        values += other
    last: list[Message] = []
    for stage in range(power.bit_length() - 1):
        partner = rank ^ (1 << stage)
        [message] = coder.send(values, whole, stage_site(stage), noise_group=rank >> stage)
        received = yield coder.round([(partner, message)], [partner], whole.placed)
        # The lower rank's values come first on both ranks: of two NaN a sum takes the first's bits.
        place = int(rank > partner)
        summand = coder.chunks.copies(chunks, (1 - place,))
        coder.add_up(received, summand, values, [partner], place)
        if folded:
            messages = [message, *messages_of(received, whole.placed)]
            last = messages if rank < partner else messages[::-1]
    if folded:
        yield coder.round([(folded[0], message) for message in last], [], None)


class Sums(NamedTuple):
    """Frames of the sums of some chunks.

    Args:
        message: the frame that this rank encoded.
        place: index of this rank's chunk among the chunks.
        received, placed: the frames of the other owners, and the places of their rows.
    """

    message: Message
    place: int
    received: ReceivedMessages
    placed: PlacedFrames

    def messages(self) -> list[Message]:
        """Return all frames, in the order of the chunks, to be sent on."""
        others = messages_of(self.received, self.placed)
        return [*others[: self.place], self.message, *others[self.place :]]


def two_shot(coder: MessageCoder, values: Tensor) -> Rounds:
    """Send each chunk to its owner, who sends the sum to all ranks.

    The owner of a chunk decodes N contributions, its own among them, and adds them up in float32 in
    rank order. It encodes the sum, sends it, and itself keeps the decoded sum.

    Quantizations of a value: 2, whatever N is. With |error| <= e each, the error of the sum is at
    most (N + 1) e, plus the sum's own rounding, (N-1) 2^-24 sum|x|.
    Bytes: the frames of the other ranks' chunks, then the frame of its own chunk N-1 times. That is
    2 (N-1)/N of all frames.
    Source: ours; ZeRO++ and torchft all-reduce in the same two steps (all-to-all and sum,
    all-gather).

    Args: values: [E], replaced by the sum over ranks.
    """
    ranks = range(coder.world_size)
    yield from sum_chunks(coder, values, ranks, ranks, (CONTRIBUTION, OWNER))


def sum_chunks(
    coder: MessageCoder,
    values: Tensor,
    ranks: Sequence[int],
    owned: range,
    sites: tuple[Site, Site],
) -> Generator[Round, ReceivedMessages, Sums]:
    """Replace adjacent chunks of `values` [E] by their sums over some ranks.

    Args:
        ranks: the ranks, in order, this one among them.
        owned: indices of the chunks; each rank owns one, in this order.
        sites: site at which contributions are encoded, and site at which sums are.
    Returns: the frames of the sums.
    """
    chunks, place = coder.chunks, ranks.index(coder.rank)
    others = [n for n in range(len(ranks)) if n != place]
    peers = [ranks[n] for n in others]
    each = tuple(range(c, c + 1) for c in owned)
    own_chunk = chunks.span(each[place])
    begin, end = chunks.bounds[owned.start], chunks.bounds[owned.stop]
    messages = coder.send(
        values, ChunkSpan(begin, end, chunks.frames(each)), sites[0], decoded=False
    )
    contributions = chunks.copies(each[place], tuple(others))
    sends = [(ranks[n], messages[n]) for n in others]
    received = yield coder.round(sends, peers, contributions)
    own_values = values[own_chunk.begin : own_chunk.end]
    if coder.residuals is None:  # else `values` are decoded
        coder.receive(messages[place].to_itself(), own_chunk.placed, values, [coder.rank])
    if peers:
        coder.add_up(received, contributions, own_values, peers, place)
    [message] = coder.send(values, own_chunk, sites[1])
    sums = chunks.frames(tuple(each[n] for n in others))
    received = yield coder.round([(p, message) for p in peers], peers, sums)
    coder.receive(received, sums, values, peers)
    return Sums(message, place, received, sums)


@dataclass(frozen=True)
class Nodes:
    """Nodes of N ranks, as one rank sees them.

    Args: rank, world_size: this rank, and N.  ranks_per_node: L.
    Raises: ValueError: N is no multiple of L.
    """

    rank: int
    world_size: int
    ranks_per_node: int

    def __post_init__(self) -> None:
        size = self.ranks_per_node
        if type(size) is not int or size < 1 or self.world_size % size:
            raise ValueError(
                f"algorithm: hierarchical: {self.world_size} ranks are not nodes of {size!r} each"
            )

    @property
    def num_nodes(self) -> int:
        """Number M of nodes."""
        return self.world_size // self.ranks_per_node

    @property
    def place(self) -> int:
        """Index of this rank in its node."""
        return self.rank % self.ranks_per_node

    @property
    def inside(self) -> range:
        """Ranks of this node."""
        first = self.rank - self.place
        return range(first, first + self.ranks_per_node)

    @property
    def across(self) -> range:
        """Ranks at this rank's place in all nodes."""
        return range(self.place, self.world_size, self.ranks_per_node)

    @property
    def other_places(self) -> list[int]:
        """Indices of the other ranks of this node."""
        return [place for place in range(self.ranks_per_node) if place != self.place]

    def shard(self, place: int) -> range:
        """Return the indices of the chunks that the ranks at a place add up."""
        return range(place * self.num_nodes, (place + 1) * self.num_nodes)


def hierarchical(coder: MessageCoder, inside: MessageCoder, values: Tensor, nodes: Nodes) -> Rounds:
    """Add up inside each node, do a two-shot between nodes, and pass the sums on inside each node.

    N ranks form M nodes of L ranks each. Adjacent ranks share a node: rank `node L + place` has
    that place in its node. Place p takes shard p of the values, which is the adjacent chunks p M to
    (p + 1) M.

    1. Inside a node: each rank sends each other rank the values of that rank's shard. It adds up,
       in rank order, what it receives for its own shard. The codec of this hop, `Coding.intra`, is
       mostly exact or bf16.
    2. Between nodes: the M ranks at one place all-reduce their shard as two_shot does; each owns
       one chunk of the shard. Only this hop crosses nodes, and only this hop keeps residuals.
    3. Inside a node: each rank passes on the frames of its shard's sums as they came. So nothing is
       rounded again, and all ranks of all nodes decode the same bytes.

    With a single node, or one rank a node, there is only one hop, and `settled` takes two_shot.

    Quantizations of a value: 1 by the codec inside, 2 by the codec between nodes, whatever N is.
    With |error| <= d inside and <= e between, the error of the sum is at most
    (N - M) d + (M + 1) e, plus the rounding of the sums.
    Bytes sent, as a fraction of all frames: between nodes 2 (M-1)/N, which is 1/L of what a flat
    two_shot sends to other nodes. Inside, (L-1)/L in float32 or bf16, and (L-1)/L of coded sums.
    Source: known parts (NCCL's and Horovod's hierarchical all-reduce; ZeRO++ codes the hop between
    nodes). Passing on coded sums is ours.

    Args: coder: the coder between nodes.  inside: the coder of the hop inside a node.
    """
    yield from _add_up_inside(inside, values, nodes)
    shard, sites = nodes.shard(nodes.place), node_sites(nodes.num_nodes)
    sums = yield from sum_chunks(coder, values, nodes.across, shard, sites)
    yield from _pass_on(coder, inside, sums.messages(), values, nodes)


def _add_up_inside(inside: MessageCoder, values: Tensor, nodes: Nodes) -> Rounds:
    """Replace this rank's shard of `values` [E] by its sum over the ranks of the node."""
    chunks, others, own_shard = inside.chunks, nodes.other_places, nodes.shard(nodes.place)
    peers = [nodes.inside[place] for place in others]
    to_send = chunks.frames(tuple(nodes.shard(place) for place in others))
    messages = inside.send(values, ChunkSpan(0, len(values), to_send), INSIDE, decoded=False)
    contributions = chunks.copies(own_shard, tuple(others))
    sends = list(zip(peers, messages, strict=True))
    received = yield inside.round(sends, peers, contributions)
    own_values = values[chunks.bounds[own_shard.start] : chunks.bounds[own_shard.stop]]
    inside.add_up(received, contributions, own_values, peers, nodes.place)


def _pass_on(
    coder: MessageCoder, inside: MessageCoder, sums: list[Message], values: Tensor, nodes: Nodes
) -> Generator[Round, ReceivedMessages, None]:
    """Write the sums of the other shards, which the ranks of the node have, to `values` [E]."""
    others = nodes.other_places
    expected = coder.chunks.frames(
        tuple(range(c, c + 1) for place in others for c in nodes.shard(place))
    )
    sources = [nodes.inside[place] for place in others for _ in sums]
    sends = [(nodes.inside[place], message) for place in others for message in sums]
    received = yield coder.round(sends, sources, expected, sent=inside.sent)
    coder.receive(received, expected, values, sources)
