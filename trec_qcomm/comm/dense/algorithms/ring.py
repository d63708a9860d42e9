"""Ring all-reduce: the partial sums of the chunks go round the ring once, then the sums do.

Rank r sends to rank r+1 only. In each of N-1 rounds a rank adds its own values to the partial sum
of a chunk that it received, and passes it on. Then rank r has the sum of chunk r. It encodes the
sum once, and N-1 more rounds pass these bytes on unchanged. The owner, too, keeps the decoded sum.

Knows: ranks, chunks. Does not know: codecs, process groups, residuals.
Quantizations of a value: N-1 on its way and 1 as a sum. A chunk is encoded N times in all, so a
codec with |error| <= e gives |error of the sum| <= N e.
Bytes sent: frames of all chunks but one, twice: 2 (N-1)/N of all frames.
Source: Yang et al. 2020 (quantized ring all-reduce with error compensation). Ours: one residual a
value, as each rank encodes each chunk once.
"""

from torch import Tensor

from trec_qcomm.comm.dense.coder import MessageCoder
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION
from trec_qcomm.comm.dense.messages import Message
from trec_qcomm.comm.rounds import Rounds


def ring(coder: MessageCoder, values: Tensor) -> Rounds:
    """Replace `values` [E] by the sum over ranks; see the module."""
    rank, n = coder.rank, coder.world_size
    after, before = (rank + 1) % n, (rank - 1) % n
    chunks = [coder.chunks.span(range(c, c + 1)) for c in range(n)]
    for step in range(n - 1):
        to_send, to_receive = chunks[(rank - step - 1) % n], chunks[(rank - step - 2) % n]
        [message] = coder.send(values, to_send, CONTRIBUTION)
        received = yield from coder.exchange([(after, message)], [before], to_receive.placed)
        own_values = values[to_receive.begin : to_receive.end].clone()
        coder.receive(received, to_receive.placed, values, [before])
        values[to_receive.begin : to_receive.end] += own_values
    [message] = coder.send(values, chunks[rank], CONTRIBUTION)
    for step in range(n - 1):
        to_receive = chunks[(rank - step - 1) % n]
        received = yield from coder.exchange([(after, message)], [before], to_receive.placed)
        coder.receive(received, to_receive.placed, values, [before])
        message = Message.passed_on(received, to_receive.placed)
