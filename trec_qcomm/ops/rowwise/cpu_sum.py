"""Sum of the decoded rows of several parts, in numba. Same bits as reference.decode_sum.

Rows of all parts are added up where they lie. A stretch of rows at a time stays in the cache, so
only the sums are written to memory.
Shapes: P parts of S segments; T segments in a group, n rows each.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.adjacent import group_end, largest_group
from trec_qcomm.ops.batch.rank_sum.cpu import add
from trec_qcomm.ops.copying import copy
from trec_qcomm.ops.rowwise.cpu import decode_row, is_damaged

_STRETCH = 8192  # values, 32 KiB


@inner
def _add(
    payload, heads, at, begin_row, end_row, n, start, stride, dim, out, bits, q, x, is_first
):  # fmt: skip
    """Add a stretch of the rows of a group of one part to the sums, or begin these with it.

    Args: at, start: [T].  q, x: memory for a row's codes and values.
    """
    width = (dim * bits + 7) // 8
    for i in range(begin_row, end_row):
        for t in range(start.size):
            sums = out[start[t] + i * stride : start[t] + i * stride + dim]
            decode_row(
                payload, heads, at[t], i, n, width, np.uint64(0), dim, sums if is_first else x,
                bits, q,
            )  # fmt: skip
            if not is_first:
                add(sums, x)


@inner
def _hold(out, begin_row, end_row, start, stride, dim, held, adds):
    """Copy a stretch of the rows of a group to `held`, one behind the other.

    Args: adds: whether to add `held` to these rows instead.
    """
    place = 0
    for i in range(begin_row, end_row):
        for t in range(start.size):
            begin = start[t] + i * stride
            row, kept = out[begin : begin + dim], held[place : place + dim]
            if adds:
                add(row, kept)
            else:
                copy(row, kept)
            place += dim


@kernel
def decode_sum(payload, at, offsets, start, stride, dim, out, bits, held_at):
    """Write the sums; return the first segment of all parts with a wrong exponent, or -1.

    Args: at: [P, S].  held_at: index, among the terms, of the rows that `out` holds, or -1.
    """
    heads = payload[: payload.size // 4 * 4].view(np.int32)
    num_parts, num_segments = at.shape
    for p in range(num_parts):
        for s in range(num_segments):
            if is_damaged(heads, at[p, s], offsets[s + 1] - offsets[s]):
                return p * num_segments + s
    most_segments = largest_group(offsets, start, stride, dim)
    q, x = np.empty(dim + 4, np.uint8), np.empty(dim, np.float32)
    held = np.empty(max(_STRETCH, most_segments * dim) if held_at > 0 else 0, np.float32)
    begin = 0
    while begin < num_segments:
        end = group_end(begin, offsets, start, stride, dim)
        n, starts, step = offsets[begin + 1] - offsets[begin], start[begin:end], stride[begin]
        num_rows = max(1, _STRETCH // ((end - begin) * dim))
        for i in range(0, n, num_rows):
            last = min(n, i + num_rows)
            if held_at > 0:
                _hold(out, i, last, starts, step, dim, held, False)
            for p in range(num_parts):
                if p == held_at and p > 0:
                    _hold(out, i, last, starts, step, dim, held, True)
                _add(
                    payload, heads, at[p, begin:end], i, last, n, starts, step, dim, out, bits, q,
                    x, p == 0 and held_at != 0,
                )  # fmt: skip
            if held_at == num_parts:
                _hold(out, i, last, starts, step, dim, held, True)
        begin = end
    return -1
