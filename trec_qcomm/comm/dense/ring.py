"""Ring all-reduce: partial sums of chunks go round once, then the sums do.

Rank r sends to r+1 only. In N-1 rounds each rank adds its own values to the partial sum of a chunk
that came in and passes it on; then rank r has the sum of chunk r, encodes it once, and N-1 rounds
pass these bytes on unchanged. The owner, too, goes on with what its bytes decode to.

Knows: ranks, chunks. Does not know: codecs, process groups, residuals.
Quantizations of a value: N-1 on its way and 1 as a sum. A chunk is encoded N times in all, so a
codec with |error| <= e gives |error of the sum| <= N e.
Bytes sent: frames of all chunks but one, twice: 2 (N-1)/N of all frames.
Source: Yang et al. 2020, with one residual a value: each rank encodes each chunk once.
"""

from torch import Tensor

from trec_qcomm.comm.dense.coder import Coder, Message
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION
from trec_qcomm.comm.rounds import Rounds


def ring(coder: Coder, values: Tensor) -> Rounds:
    """Make `values` [E] the sum over ranks; see the module."""
    rank, n = coder.rank, coder.world_size
    after, before = (rank + 1) % n, (rank - 1) % n
    parts = [coder.chunks.part(range(c, c + 1)) for c in range(n)]
    for step in range(n - 1):
        to_send, due = parts[(rank - step - 1) % n], parts[(rank - step - 2) % n]
        [message] = coder.send(values, to_send, CONTRIBUTION)
        arrived = yield coder.round([(after, message)], [before], due.placed)
        own = values[due.begin : due.end].clone()
        coder.receive(arrived, due.placed, values, [before])
        values[due.begin : due.end] += own
    [message] = coder.send(values, parts[rank], CONTRIBUTION)
    for step in range(n - 1):
        due = parts[(rank - step - 1) % n]
        arrived = yield coder.round([(after, message)], [before], due.placed)
        coder.receive(arrived, due.placed, values, [before])
        message = Message.of(arrived.buffer, due.placed)
