"""Segments of error_bound whose indices vector_lz encodes, in numba.

The functions have the arguments and the parts of ops.error_bound.rans_segments.
"""
# mypy: ignore-errors

import numpy as np

from trec_qcomm.ext.dual_level.vector_lz import cpu as vector_lz
from trec_qcomm.jit import kernel
from trec_qcomm.ops.error_bound import cpu
from trec_qcomm.ops.error_bound.cpu import (
    BAD_INDICES,
    HEADER_NBYTES,
    MAX_VERBATIM,
    OK,
    OTHER_ENCODER,
    VECTOR_LZ,
)
from trec_qcomm.ops.error_bound.rans_segments import (
    decode_rows,
    finish_rows,
    indices_memory,
    most_values,
    quantize_segment,
)
from trec_qcomm.ops.rans import cpu as rans


@kernel
def encode(
    values, offsets, start, stride, dim, payload, at, max_nbytes, bounds, relative, nbytes, flushed
):
    """Encode as ops.error_bound.cpu.encode does, with the encoder VECTOR_LZ."""
    positions, scratch = cpu.positions_scratch(offsets, dim), cpu.group_scratch()
    q = np.empty(most_values(offsets, dim), np.int32)
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
            num_verbatim = quantize_segment(
                values, start[s], stride[s], dim, num_values, bound, step, inverse,
                segment_positions, scratch, q,
            )  # fmt: skip
            if num_verbatim >= 0:
                indices = out[HEADER_NBYTES:room]
                size = np.int64(vector_lz.encode_segment(q[:num_values], dim, indices))
        nbytes[s] = cpu.end_segment(
            values, start[s], stride[s], dim, num_values, width, step, VECTOR_LZ, size,
            num_verbatim, segment_positions, out,
        )  # fmt: skip
        flushed[s] = cpu.flushed_values(
            values, start[s], stride[s], dim, num_values, step, relative, out
        )


@kernel
def decode(payload, at, nbytes, offsets, start, stride, dim, out):
    """Decode as ops.error_bound.cpu.decode does, for all encoders."""
    scratch, rans_scratch = cpu.group_scratch(), rans.decoder_scratch()
    q = np.empty(most_values(offsets, dim), np.int32)
    for s in range(start.size):
        num_values, data = (offsets[s + 1] - offsets[s]) * dim, payload[at[s] : at[s] + nbytes[s]]
        reason = cpu.decode_segment(
            payload, at[s], nbytes[s], start[s], stride[s], dim, num_values, out, scratch
        )
        if reason == OTHER_ENCODER:
            reason = decode_rows(data, start[s], stride[s], dim, num_values, out, q, rans_scratch)
        if reason == OTHER_ENCODER:
            _, step, size, _ = cpu.read_header(data)
            indices = indices_memory(start[s], stride[s], dim, num_values, out, q)
            body = data[HEADER_NBYTES : HEADER_NBYTES + size]
            reason = BAD_INDICES
            if vector_lz.decode_segment(body, dim, indices):
                if step:
                    rans.dequantize(indices, step)
                reason = finish_rows(data, start[s], stride[s], dim, indices, out)
        if reason != OK:
            return np.int64(s), reason
    return np.int64(-1), OK
