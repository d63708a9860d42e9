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

from torch import Tensor

from trec_qcomm.comm.dense.chunks import ChunkSpan
from trec_qcomm.comm.dense.coder import MessageCoder
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION, OWNER
from trec_qcomm.comm.rounds import Rounds


def two_shot(coder: MessageCoder, values: Tensor) -> Rounds:
    """Replace `values` [E] by the sum over ranks; see the module."""
    rank, n, chunks = coder.rank, coder.world_size, coder.chunks
    peers = [p for p in range(n) if p != rank]
    own_chunk = chunks.span(range(rank, rank + 1))
    all_chunks = ChunkSpan(0, len(values), chunks.frames(tuple(range(c, c + 1) for c in range(n))))
    messages = coder.send(values, all_chunks, CONTRIBUTION, decoded=False)
    contributions = chunks.copies(range(rank, rank + 1), tuple(peers))
    received = yield from coder.exchange([(p, messages[p]) for p in peers], peers, contributions)
    own_values = values[own_chunk.begin : own_chunk.end]
    if not coder.has_residuals:  # else `values` are decoded
        coder.receive(messages[rank].to_itself(), own_chunk.placed, values, [rank])
    if peers:
        coder.add_up(received, contributions, own_values, peers)
    [message] = coder.send(values, own_chunk, OWNER)
    sums = chunks.frames(tuple(range(p, p + 1) for p in peers))
    received = yield from coder.exchange([(p, message) for p in peers], peers, sums)
    coder.receive(received, sums, values, peers)
