"""Sum of the decoded rows of several parts, in numba. Same bits as reference.decode_sum.

Values of all parts are added up where they lie. A stretch at a time stays in the cache, so only the
sums are written to memory. Shapes: P parts of S segments.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.adjacent import group_end
from trec_qcomm.ops.batch.rank_sum.cpu import add
from trec_qcomm.ops.cast.cpu import FP16, FP32, lines
from trec_qcomm.ops.copying import copy
from trec_qcomm.ops.float16 import half_value

_STRETCH = 4096  # values, 16 KiB


@inner(forceinline=True)
def _read(words, halves, place, kind, to):
    """Decode adjacent values. Args: place: the first of them, in values of the payload."""
    bits = to.view(np.uint32)
    if kind == FP32:
        line = words[place : place + to.size]
        for d in range(to.size):
            bits[d] = line[d]
    else:
        half = halves[place : place + to.size]
        if kind == FP16:
            for d in range(to.size):
                to[d] = half_value(half[d])
        else:
            for d in range(to.size):
                bits[d] = np.uint32(half[d]) << np.uint32(16)


@inner(forceinline=True)
def _sum_stretch(words, halves, at, place, kind, sums, x, held, held_at):
    """Write the sums of adjacent values.

    Args: at: [P], where a segment begins in each part, in values.  place: the first value in the
        segment.  x, held: memory for as many values.
    """
    if held_at > 0:
        copy(sums, held)
    for p in range(at.size):
        if p == held_at and p > 0:
            add(sums, held)
        if p == 0 and held_at != 0:
            _read(words, halves, at[p] + place, kind, sums)
        else:
            _read(words, halves, at[p] + place, kind, x)
            add(sums, x)
    if held_at == at.size:
        add(sums, held)


@kernel
def decode_sum(payload, at, offsets, start, stride, dim, out, kind, held_at):
    """Write the sums.

    Args: at: [P, S].  held_at: index, among the terms, of the values that `out` holds, or -1.
    """
    words = payload[: payload.size // 4 * 4].view(np.uint32)
    halves = payload[: payload.size // 2 * 2].view(np.uint16)
    x, held = np.empty(_STRETCH, np.float32), np.empty(_STRETCH, np.float32)
    in_values = at.T.copy() // (4 if kind == FP32 else 2)
    begin = 0
    while begin < start.size:
        end = group_end(begin, offsets, start, stride, dim)
        num_lines, length = lines(offsets[begin + 1] - offsets[begin], stride[begin], dim)
        for i in range(num_lines):
            for s in range(begin, end):
                for first in range(0, length, _STRETCH):
                    size = min(length - first, _STRETCH)
                    to = start[s] + i * stride[s] + first
                    _sum_stretch(
                        words, halves, in_values[s], i * length + first, kind,
                        out[to : to + size], x[:size], held[:size], held_at,
                    )  # fmt: skip
        begin = end
