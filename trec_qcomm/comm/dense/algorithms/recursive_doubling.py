"""Recursive doubling all-reduce: pairs of ranks exchange all values, twice as far in each stage.

M is the largest power of two that is not above N, and there are log2 M stages. Rank M + i first
sends its values to rank i, which adds them to its own. At stage k ranks r and r xor 2^k exchange
what they have, encoded, and both add the two decoded messages. The ranks of a group of 2^k hold
equal bits before that stage and encode them alike. At the end rank i sends rank M + i the last two
messages, so that it adds the same bits.

Knows: ranks. Does not know: codecs, process groups, residuals.
Quantizations of a value: log2 M, and 1 more for ranks M and up. With |error| <= e each, the error
of the sum is at most (2 (M-1) + N-M) e: M / 2^k different groups encode at stage k.
Bytes sent: log2 M whole frames; 1 by ranks M and up; 2 more by the ranks that these fold into.
Source: Yang et al. 2020 (quantized recursive doubling). The fold of ranks beyond a power of two is
that of MPI implementations; that two messages undo it is ours.
"""

import torch
from torch import Tensor

from trec_qcomm.comm.dense.coder import MessageCoder
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION, stage_site
from trec_qcomm.comm.dense.messages import Message
from trec_qcomm.comm.rounds import Rounds


def recursive_doubling(coder: MessageCoder, values: Tensor) -> Rounds:
    """Replace `values` [E] by the sum over ranks; see the module."""
    rank, n = coder.rank, coder.world_size
    power = 1 << (n.bit_length() - 1)
    whole = coder.chunks.span(range(n))
    if rank >= power:
        [message] = coder.send(values, whole, CONTRIBUTION)
        yield from coder.exchange([(rank - power, message)], [], None)
        last_two = coder.chunks.copies(range(n), (0, 1))
        received = yield from coder.exchange([], [rank - power] * 2, last_two)
        pair = values.new_empty(2, len(values))
        coder.receive(received, last_two, pair, [rank - power] * 2)
        torch.add(pair[0], pair[1], out=values)
        return
    folded = [rank + power] if rank + power < n else []
    if folded:
        received = yield from coder.exchange([], folded, whole.placed)
        other = torch.empty_like(values)
        coder.receive(received, whole.placed, other, folded)
        values += other
    last: list[Message] = []
    for stage in range(power.bit_length() - 1):
        partner = rank ^ (1 << stage)
        [message] = coder.send(values, whole, stage_site(stage), noise_group=rank >> stage)
        received = yield from coder.exchange([(partner, message)], [partner], whole.placed)
        other = torch.empty_like(values)
        coder.receive(received, whole.placed, other, [partner])
        messages = [message, Message.passed_on(received, whole.placed)]
        # The lower rank's values come first on both ranks: of two NaN a sum takes the first's bits.
        low, high = (values, other) if rank < partner else (other, values)
        values.copy_(torch.add(low, high))
        last = messages if rank < partner else messages[::-1]
    if folded:
        yield from coder.exchange([(folded[0], message) for message in last], [], None)
