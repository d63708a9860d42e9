"""Sum in rank order, in plain torch: the definition."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments


def rank_sum(parts: Tensor, out: Tensor) -> None:
    """Write the sum of [P, N] values to `out`, of the same dtype."""
    total = out.view(-1)
    total.copy_(parts[0])
    for part in parts[1:]:
        total += part
        total.masked_fill_(total.isnan(), math.nan)


def sum_of_parts(
    encoded: Encoded,
    segments: Segments,
    out: Tensor,
    decode: Callable[[Encoded, Segments, Tensor], int | None],
    held_at: int,
) -> int:
    """Decode part after part, and write the sum to `out`: the definition of all `decode_sum`.

    Args:
        encoded: for each part, for each segment, its bytes.
        segments: the rows of one part, and their places in `out`.
        decode: function that decodes one part; it returns the first bad segment, or -1 or None.
        held_at: index, among the terms, of the rows that `out` holds, or -1.
    Returns: the first bad segment of all parts, or -1.
    """
    num_segments, terms = segments.num_segments, []
    for begin in range(0, len(encoded.at), max(num_segments, 1)):
        which = slice(begin, begin + num_segments)
        part = Encoded(encoded.payload, encoded.at[which], encoded.nbytes[which])
        terms.append(out.clone())
        wrong = decode(part, segments, terms[-1])
        if wrong is not None and wrong >= 0:
            return begin + wrong
    if held_at >= 0:
        terms.insert(held_at, out.clone())
    if terms:
        sums = torch.empty_like(out)
        rank_sum(torch.stack([term.view(-1) for term in terms]), sums)
        for s in range(num_segments):
            segments.block(out, s).copy_(segments.block(sums, s))
    return -1
