"""Two-shot all-reduce: every rank sends every chunk to its owner, every owner its sum to all.

The owner of a chunk decodes N contributions, its own among them, adds them up in float32 in the
order of ranks, encodes the sum and goes on with what that decodes to.

Knows: ranks, chunks. Does not know: codecs, process groups, residuals.
Quantizations of a value: 2, whatever N is. With |error| <= e each, the error of the sum is at most
(N + 1) e, and the sum's own rounding, (N-1) 2^-24 sum|x|.
Bytes sent: frames of all chunks but the own, then its own chunk's N-1 times: 2 (N-1)/N of all.
Source: Yang et al. 2020 ("all-to-all, sum, all-gather"), with a residual at both places.
"""

from torch import Tensor

from trec_qcomm.comm.dense.chunks import Part
from trec_qcomm.comm.dense.coder import Coder
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION, OWNER
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.ops.rank_sum import rank_sum


def two_shot(coder: Coder, values: Tensor) -> Rounds:
    """Make `values` [E] the sum over ranks; see the module."""
    rank, n, chunks = coder.rank, coder.world_size, coder.chunks
    peers = [p for p in range(n) if p != rank]
    own = chunks.part(range(rank, rank + 1))
    everything = Part(0, len(values), chunks.frames(tuple(range(c, c + 1) for c in range(n))))
    messages = coder.send(values, everything, CONTRIBUTION)
    due = chunks.copies(range(rank, rank + 1), tuple(peers))
    arrived = yield coder.round([(p, messages[p]) for p in peers], peers, due)
    parts = values.new_empty(n, own.end - own.begin)
    parts[rank] = values[own.begin : own.end]
    coder.receive(arrived, due, parts, peers)
    rank_sum(parts, values[own.begin : own.end])
    [message] = coder.send(values, own, OWNER)
    others = chunks.frames(tuple(range(p, p + 1) for p in peers))
    arrived = yield coder.round([(p, message) for p in peers], peers, others)
    coder.receive(arrived, others, values, peers)
