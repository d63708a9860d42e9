"""The encoder rans of error_bound, in numba, which needs all indices of a segment at once.

The functions have the arguments and the parts of cpu.py, but use an int32 buffer of a segment's
indices.
"""
# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.bitpack import cpu as bitpack
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
def _quantize(values, start, stride, dim, num_values, bound, step, inverse, positions, scratch, q):
    """Quantize one segment into q, int32. Return num_verbatim, or -1 if positions has no room."""
    x, words, flags, _, _ = scratch
    num_verbatim = np.int64(0)
    for first in range(0, num_values, GROUP):
        n = min(GROUP, num_values - first)
        _, num_verbatim = quantizer.quantize_group(
            values, start, stride, dim, first, n, bound, step, inverse, x, words, flags, positions,
            num_verbatim,
        )  # fmt: skip
        if num_verbatim < 0:
            break
        bitpack.unzigzag(words, q, first, n)
    return num_verbatim


@kernel
def encode(
    values, offsets, start, stride, dim, payload, at, max_nbytes, bounds, relative, nbytes, flushed
):
    """Do what cpu.encode does, with the encoder RANS."""
    positions, scratch = cpu.positions_scratch(offsets, dim), cpu.group_scratch()
    most = cpu.most_values(offsets, dim)
    rans_scratch = rans.encoder_scratch(most)
    q = np.empty(most, np.int32)
    for s in range(start.size):
        num_values = (offsets[s + 1] - offsets[s]) * dim
        nbytes[s], flushed[s] = 0, 0
        if num_values == 0:
            continue
        out = payload[at[s] : at[s] + max_nbytes[s]]
        width, bound, step, inverse = cpu.begin_segment(
            values, start[s], stride[s], dim, num_values, bounds[s], relative
        )
        room = cpu.raw_nbytes(num_values)
        segment_positions = positions[: min(room // 8, MAX_VERBATIM)]
        size, num_verbatim = np.int64(-1), np.int64(0)
        if step > 0:
            num_verbatim = _quantize(
                values, start[s], stride[s], dim, num_values, bound, step, inverse,
                segment_positions, scratch, q,
            )  # fmt: skip
            if num_verbatim >= 0:
                indices = out[HEADER_NBYTES:room]
                size = np.int64(rans.encode(q[:num_values], indices, rans_scratch))
        nbytes[s] = cpu.end_segment(
            values, start[s], stride[s], dim, num_values, width, step, RANS, size, num_verbatim,
            segment_positions, out,
        )  # fmt: skip
        flushed[s] = cpu.flushed_values(
            values, start[s], stride[s], dim, num_values, step, relative, out
        )


@inner
def _decode_rows(data, start, stride, dim, num_values, out, q, rans_scratch):
    """Decode a segment whose encoder is RANS.

    Returns: OK, OTHER_ENCODER for another encoder, or the reason why the segment is invalid.

    Args: data: the whole segment, whose header is valid.  q: int32 scratch, as many or more.
    """
    kind, step, size, num_verbatim = cpu.read_header(data)
    if kind != RANS:
        return OTHER_ENCODER
    # Rows that lie one after the other are decoded in place.
    q = out[start : start + num_values].view(np.int32) if stride == dim else q[:num_values]
    body = data[HEADER_NBYTES : HEADER_NBYTES + size]
    if not rans.decode(body, q, step, rans_scratch):
        return BAD_INDICES
    if stride != dim:
        quantizer.scatter(q.view(np.float32), num_values, start, stride, dim, 0, out)
    verbatim = data[data.size - 8 * num_verbatim :].view(np.uint32)
    fits = cpu.place_verbatim(verbatim, start, stride, dim, num_values, out)
    return OK if fits else BAD_VERBATIM


@kernel
def decode(payload, at, nbytes, offsets, start, stride, dim, out):
    """Do what cpu.decode does, for the encoders bitpack and rans."""
    scratch, rans_scratch = cpu.group_scratch(), rans.decoder_scratch()
    q = np.empty(cpu.most_values(offsets, dim), np.int32)
    for s in range(start.size):
        num_values, data = (offsets[s + 1] - offsets[s]) * dim, payload[at[s] : at[s] + nbytes[s]]
        reason = cpu.decode_segment(
            payload, at[s], nbytes[s], start[s], stride[s], dim, num_values, out, scratch
        )
        if reason == OTHER_ENCODER:
            reason = _decode_rows(data, start[s], stride[s], dim, num_values, out, q, rans_scratch)
        if reason != OK:
            return np.int64(s), reason
    return np.int64(-1), OK
