"""Two-shot all-reduce: each chunk goes to its owner, and the owner sends the sum to all.

The owner of a chunk decodes N contributions, its own among them, and adds them up in float32 in the
order of the ranks. It encodes the sum and keeps what the encoded sum decodes to.

Knows: ranks, chunks. Does not know: codecs, process groups, residuals.
Quantizations of a value: 2, whatever N is. With |error| <= e each, the error of the sum is at most
(N + 1) e, and the sum's own rounding, (N-1) 2^-24 sum|x|.
Bytes sent: the frames of the other ranks' chunks, then the frame of its own chunk N-1 times:
2 (N-1)/N of all frames.
Source: ours; ZeRO++ and torchft all-reduce in the same two steps (all-to-all and sum, all-gather).
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from torch import Tensor

from trec_qcomm.comm.dense.chunks import ChunkSpan
from trec_qcomm.comm.dense.coder import MessageCoder
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION, OWNER, Site
from trec_qcomm.comm.dense.messages import Message
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rounds import ReceivedMessages, Round, Rounds


class Sums(NamedTuple):
    """Frames of the sums of some chunks.

    Args:
        message: the frame that this rank encoded.
        place: number of its chunk among them.
        received, placed: the frames of the other owners.
    """

    message: Message
    place: int
    received: ReceivedMessages
    placed: PlacedFrames

    def messages(self) -> list[Message]:
        """Return all frames, in the order of the chunks, to be sent on."""
        others = Message.all_passed_on(self.received, self.placed)
        return [*others[: self.place], self.message, *others[self.place :]]


def two_shot(coder: MessageCoder, values: Tensor) -> Rounds:
    """Replace `values` [E] by the sum over ranks; see the module."""
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
        owned: numbers of the chunks, of which each rank owns one, in this order.
        sites: where contributions are encoded, and where sums are.
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
    received = yield from coder.exchange(sends, peers, contributions)
    own_values = values[own_chunk.begin : own_chunk.end]
    if not coder.has_residuals:  # else `values` are decoded
        coder.receive(messages[place].to_itself(), own_chunk.placed, values, [coder.rank])
    if peers:
        coder.add_up(received, contributions, own_values, peers, place)
    [message] = coder.send(values, own_chunk, sites[1])
    sums = chunks.frames(tuple(each[n] for n in others))
    received = yield from coder.exchange([(p, message) for p in peers], peers, sums)
    coder.receive(received, sums, values, peers)
    return Sums(message, place, received, sums)
