"""The encoder rans of error_bound, in numba, which needs all indices of a segment at once.

The functions have the arguments and the parts of cpu.py, but use an int32 buffer of a segment's
indices. Encoders of extensions are made of the same parts.
"""
# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.bitpack.cpu import GROUP
from trec_qcomm.ops.error_bound import cpu
from trec_qcomm.ops.error_bound.cpu import (
    BAD_INDICES,
    BAD_VERBATIM,
    HEADER_NBYTES,
    MAX_VERBATIM,
    OK,
    OTHER_ENCODER,
    RANS,
)
from trec_qcomm.ops.error_bound.quantizer import cpu as quantizer
from trec_qcomm.ops.rans import cpu as rans


@inner
def most_values(offsets, dim):
    """Return the number of values of the largest segment."""
    most = np.int64(0)
    for s in range(offsets.size - 1):
        most = max(most, (offsets[s + 1] - offsets[s]) * dim)
    return most


@inner
def quantize_segment(
    values, start, stride, dim, num_values, bound, step, inverse, positions, scratch, q
):
    """Quantize one segment into q, int32, with room for full groups.

    Returns: (num_verbatim, lowest index, highest index); num_verbatim is -1 if positions has no
        room.
    """
    num_verbatim, low, high = np.int64(0), np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for first in range(0, num_values, GROUP):
        n = min(GROUP, num_values - first)
        lowest, highest, num_verbatim = quantizer.quantize_indices(
            values, start, stride, dim, first, n, bound, step, inverse, scratch, q, positions,
            num_verbatim,
        )  # fmt: skip
        if num_verbatim < 0:
            break
        low, high = min(low, lowest), max(high, highest)
    return num_verbatim, low, high


@kernel
def encode(
    values, offsets, start, stride, dim, payload, at, max_nbytes, bounds, relative, nbytes, flushed
):
    """Do what cpu.encode does, with the encoder RANS."""
    positions, scratch = cpu.positions_scratch(offsets, dim), cpu.group_scratch()
    most = most_values(offsets, dim)
    rans_scratch = rans.encoder_scratch(most)
    q = np.empty((most + GROUP - 1) // GROUP * GROUP, np.int32)
    for s in range(start.size):
        num_values = (offsets[s + 1] - offsets[s]) * dim
        nbytes[s], flushed[s] = 0, 0
        if num_values == 0:
            continue
        out = payload[at[s] : at[s] + max_nbytes[s]]
        width, bound, step, inverse = cpu.begin_segment(
            values, start[s], stride[s], dim, num_values, bounds[s], relative
        )
        if s + 1 < start.size:
            rans_scratch[-1][0] = values[start[s + 1] :].ctypes.data
        room = cpu.raw_nbytes(num_values)
        segment_positions = positions[: min(room // 8, MAX_VERBATIM)]
        size, num_verbatim = np.int64(-1), np.int64(0)
        if step > 0:
            num_verbatim, low, high = quantize_segment(
                values, start[s], stride[s], dim, num_values, bound, step, inverse,
                segment_positions, scratch, q,
            )  # fmt: skip
            if num_verbatim >= 0:
                indices = out[HEADER_NBYTES:room]
                size = np.int64(rans.encode(q[:num_values], low, high, indices, rans_scratch))
        nbytes[s] = cpu.end_segment(
            values, start[s], stride[s], dim, num_values, width, step, RANS, size, num_verbatim,
            segment_positions, out,
        )  # fmt: skip
        flushed[s] = cpu.flushed_values(
            values, start[s], stride[s], dim, num_values, step, relative, out
        )


@inner
def indices_memory(start, stride, dim, num_values, out, q):
    """Return the int32 memory into which the indices of a segment are decoded.

    It is the memory of the rows, as bits, if they lie one after the other; else q.
    """
    return out[start : start + num_values].view(np.int32) if stride == dim else q[:num_values]


@inner
def finish_rows(data, start, stride, dim, q, out):
    """Write what the rows of a segment lack. Return OK, or BAD_VERBATIM.

    Args: data: the whole segment, whose header is valid.  q: memory of `indices_memory`, decoded.
    """
    _, _, _, num_verbatim = cpu.read_header(data)
    if stride != dim:
        quantizer.scatter(q.view(np.float32), q.size, start, stride, dim, 0, out)
    verbatim = data[data.size - 8 * num_verbatim :].view(np.uint32)
    return OK if cpu.place_verbatim(verbatim, start, stride, dim, q.size, out) else BAD_VERBATIM


@inner
def decode_rows(data, start, stride, dim, num_values, out, q, rans_scratch):
    """Decode a segment whose encoder is RANS.

    Returns: OK, OTHER_ENCODER for another encoder, or the reason why the segment is invalid.

    Args: data: the whole segment, whose header is valid.  q: int32 scratch, as many or more.
    """
    kind, step, size, _ = cpu.read_header(data)
    if kind != RANS:
        return OTHER_ENCODER
    indices = indices_memory(start, stride, dim, num_values, out, q)
    body = data[HEADER_NBYTES : HEADER_NBYTES + size]
    if not rans.decode(body, indices, step, rans_scratch):
        return BAD_INDICES
    return finish_rows(data, start, stride, dim, indices, out)


@inner
def _decode_two(first, data, starts, strides, dim, sizes, out, q, rans_scratch):
    """Decode two segments, which can pair. Return the reason of each.

    Args: first, data: all their bytes.  starts, strides, sizes: pairs of numbers.
    """
    _, first_step, first_size, _ = cpu.read_header(first)
    _, step, size, _ = cpu.read_header(data)
    first_q = indices_memory(starts[0], strides[0], dim, sizes[0], out, q[sizes[1] :])
    second_q = indices_memory(starts[1], strides[1], dim, sizes[1], out, q)
    good, good_too = rans.decode_two(
        first[HEADER_NBYTES : HEADER_NBYTES + first_size], first_q, first_step, rans_scratch[1],
        data[HEADER_NBYTES : HEADER_NBYTES + size], second_q, step, rans_scratch[0],
    )  # fmt: skip
    reason = first_reason = BAD_INDICES
    if good:
        first_reason = finish_rows(first, starts[0], strides[0], dim, first_q, out)
    if good_too:
        reason = finish_rows(data, starts[1], strides[1], dim, second_q, out)
    return first_reason, reason


@kernel
def decode(payload, at, nbytes, offsets, start, stride, dim, out):
    """Do what cpu.decode does, for the encoders bitpack and rans."""
    scratch, rans_scratch = cpu.group_scratch(), (rans.decoder_scratch(), rans.decoder_scratch())
    q, w = np.empty(2 * most_values(offsets, dim), np.int32), np.int64(-1)  # w waits for another
    bad, reason = np.int64(-1), OK
    for s in range(start.size):
        num_values, data = (offsets[s + 1] - offsets[s]) * dim, payload[at[s] : at[s] + nbytes[s]]
        reason = cpu.decode_segment(
            payload, at[s], nbytes[s], start[s], stride[s], dim, num_values, out, scratch
        )
        can_pair = (
            reason == OTHER_ENCODER
            and rans.can_pair(num_values)
            and cpu.read_header(data)[0] == RANS
            and (w < 0 or rans.can_pair_with(num_values, (offsets[w + 1] - offsets[w]) * dim))
        )
        if reason == OTHER_ENCODER and not can_pair:
            reason = decode_rows(
                data, start[s], stride[s], dim, num_values, out, q, rans_scratch[0]
            )
        elif can_pair and w < 0:
            w, reason = np.int64(s), OK
        elif can_pair:
            first_reason, reason = _decode_two(
                payload[at[w] : at[w] + nbytes[w]], data, (start[w], start[s]),
                (stride[w], stride[s]), dim, ((offsets[w + 1] - offsets[w]) * dim, num_values),
                out, q, rans_scratch,
            )  # fmt: skip
            if first_reason != OK:
                return w, first_reason
            w = np.int64(-1)
        if reason != OK:
            bad = s
            break
    if w >= 0:  # has found no other one, and comes before what is bad
        first_reason = decode_rows(
            payload[at[w] : at[w] + nbytes[w]], start[w], stride[w], dim,
            (offsets[w + 1] - offsets[w]) * dim, out, q, rans_scratch[0],
        )  # fmt: skip
        if first_reason != OK:
            return w, first_reason
    return bad, reason
