"""Hierarchical all-reduce: sums inside a node, a two-shot between nodes, sums to all of a node.

N ranks are M nodes of L ranks each. Adjacent ranks share a node: rank `node L + place` is at that
place of its node. Place p takes shard p of the values, the adjacent chunks p M to (p + 1) M.

1. Inside a node: each rank sends each other one that rank's shard, and adds up, in the order of the
   ranks, what comes for its own. The codec of this hop, `Coding.intra`, is mostly exact or bf16.
2. Between nodes: the M ranks at one place all-reduce their shard as two_shot does, each the owner
   of one of its chunks. Only this hop crosses nodes, and only here residuals are kept.
3. Inside a node: each rank passes the frames of its shard's sums on as they came, so that nothing
   is rounded again, and all ranks of all nodes decode the same bytes.

One node alone, or nodes of one rank, have one hop: `settled` makes a two_shot of it.

Knows: ranks, nodes, chunks. Does not know: codecs, process groups, residuals.
Quantizations of a value: 1 by the codec inside, 2 by the one between nodes, whatever N is. With
|error| <= d and e, the error of the sum is at most (N - M) d + (M + 1) e, and the sums' rounding.
Bytes sent of all frames: between nodes 2 (M-1)/N, 1/L of what ranks of a flat two_shot send to
other nodes; inside, (L-1)/L in float32 or bf16, and (L-1)/L of coded sums.
Source: ours, of known parts (NCCL's and Horovod's hierarchical all-reduce; ZeRO++ codes the hop
between nodes). That coded sums are passed on is ours.
"""

from collections.abc import Generator
from dataclasses import dataclass

from torch import Tensor

from trec_qcomm.comm.dense.algorithms.two_shot import sum_chunks
from trec_qcomm.comm.dense.chunks import ChunkSpan
from trec_qcomm.comm.dense.coder import MessageCoder
from trec_qcomm.comm.dense.error_feedback import INSIDE, node_sites
from trec_qcomm.comm.dense.messages import Message
from trec_qcomm.comm.rounds import ReceivedMessages, Round, Rounds


@dataclass(frozen=True)
class Nodes:
    """The nodes of N ranks, as one of them sees them.

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
        """M, the number of nodes."""
        return self.world_size // self.ranks_per_node

    @property
    def place(self) -> int:
        """Number of this rank in its node."""
        return self.rank % self.ranks_per_node

    @property
    def inside(self) -> range:
        """The ranks of this node."""
        first = self.rank - self.place
        return range(first, first + self.ranks_per_node)

    @property
    def across(self) -> range:
        """The ranks at this place of all nodes."""
        return range(self.place, self.world_size, self.ranks_per_node)

    @property
    def other_places(self) -> list[int]:
        """Numbers of the other ranks of this node."""
        return [place for place in range(self.ranks_per_node) if place != self.place]

    def shard(self, place: int) -> range:
        """Return the numbers of the chunks that the ranks at a place add up."""
        return range(place * self.num_nodes, (place + 1) * self.num_nodes)


def hierarchical(coder: MessageCoder, inside: MessageCoder, values: Tensor, nodes: Nodes) -> Rounds:
    """Replace `values` [E] by the sum over ranks; see the module.

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
    received = yield from inside.exchange(sends, peers, contributions)
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
    received = yield from coder.exchange(sends, sources, expected, sent=inside.sent)
    coder.receive(received, expected, values, sources)
