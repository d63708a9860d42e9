"""The encoders of error_bound that need all indices of a segment at once, in numba.

They are vector_lz, rans, and "auto": the shorter of these two. The functions have the arguments and
the parts of cpu.py, but go through an int32 buffer of a segment's indices. Only `_encode_indices`
and `_decode_indices` know which encoders there are.
"""
# mypy: ignore-errors

import numpy as np

from trec_qcomm.kernels import inner, kernel
from trec_qcomm.ops.bitpack import cpu as bitpack
from trec_qcomm.ops.bitpack.cpu import GROUP
from trec_qcomm.ops.error_bound import cpu
from trec_qcomm.ops.error_bound.cpu import (
    BAD_INDICES,
    BAD_VERBATIM,
    BITPACK,
    HEADER_NBYTES,
    MAX_VERBATIM,
    OK,
    OTHER_ENCODER,
    RANS,
    VECTOR_LZ,
)
from trec_qcomm.ops.error_bound.quantizer import cpu as quantizer
from trec_qcomm.ops.rans import cpu as rans
from trec_qcomm.ops.vector_lz import cpu as vector_lz

AUTO = 15  # vector_lz or rans, whichever is shorter; not on the wire


@inner
def _encode_indices(encoder, q, dim, out):
    """Encode the indices q [N] of one segment.

    Returns: (nbytes, the encoder used); nbytes is -1 where out has no room.
    """
    if encoder == AUTO:
        return _encode_shortest(q, dim, out)
    nbytes = np.int64(-1)
    if encoder == BITPACK:
        nbytes = bitpack.encode_segment(q, dim, out)
    elif encoder == VECTOR_LZ:
        nbytes = vector_lz.encode_segment(q, dim, out)
    elif encoder == RANS:
        nbytes = rans.encode_segment(q, dim, out)
    return nbytes, encoder


@inner
def _encode_shortest(q, dim, out):
    """Encode with vector_lz or rans, whichever is shorter; if they are equal, with vector_lz.

    vector_lz is the faster, and ends as bitpack where no row repeats.
    """
    nbytes, kind = np.int64(vector_lz.encode_segment(q, dim, out)), VECTOR_LZ
    max_size = out.size if nbytes < 0 else nbytes - 1
    rans_bytes = np.empty(max_size, np.uint8)
    size = np.int64(rans.encode_segment(q, dim, rans_bytes))
    if size >= 0:
        out[:size] = rans_bytes[:size]
        return size, RANS
    return nbytes, kind


@inner
def _decode_indices(encoder, data, dim, q):
    """Decode all of data into q [N]. Return False where it is invalid."""
    if encoder == VECTOR_LZ:
        return vector_lz.decode_segment(data, dim, q)
    if encoder == RANS:
        return rans.decode_segment(data, dim, q)
    return False


@inner
def quantize_and_encode(
    values, start, stride, dim, num_values, bound, step, inverse, out, positions, scratch, encoder
):
    """Quantize and encode one segment into out.

    Returns: (nbytes, num_verbatim, the encoder used); nbytes is -1 where out or positions has no
             room.
    """
    x, words, narrow = scratch[0], scratch[1], scratch[2]
    q, num_verbatim = np.empty(num_values, np.int32), np.int64(0)
    for first in range(0, num_values, GROUP):
        n = min(GROUP, num_values - first)
        _, num_verbatim = quantizer.quantize_group(
            values, start, stride, dim, first, n, bound, step, inverse,
            x, words, narrow, positions, num_verbatim,
        )  # fmt: skip
        if num_verbatim < 0:
            return np.int64(-1), num_verbatim, encoder
        bitpack.unzigzag(words, q, first, n)
    nbytes, kind = _encode_indices(encoder, q, dim, out)
    return nbytes, num_verbatim, kind


@kernel
def encode(
    values, offsets, start, stride, dim, payload, at, max_nbytes, bounds, relative, nbytes, flushed,
    encoder,
):  # fmt: skip
    """Do what cpu.encode does, with `encoder`, one of VECTOR_LZ, RANS, AUTO."""
    positions, scratch = cpu.positions_scratch(offsets, dim), cpu.group_scratch()
    for s in range(start.size):
        num_values = (offsets[s + 1] - offsets[s]) * dim
        nbytes[s], flushed[s] = 0, 0
        if num_values == 0:
            continue
        width, bound, step, inverse = cpu.begin_segment(
            values, start[s], stride[s], dim, num_values, bounds[s], relative
        )
        out, room = payload[at[s] : at[s] + max_nbytes[s]], cpu.raw_nbytes(num_values)
        segment_positions = positions[: min(room // 8, MAX_VERBATIM)]
        size, num_verbatim, kind = np.int64(-1), np.int64(0), encoder
        if step > 0:
            size, num_verbatim, kind = quantize_and_encode(
                values, start[s], stride[s], dim, num_values, bound, step, inverse,
                out[HEADER_NBYTES:room], segment_positions, scratch, encoder,
            )  # fmt: skip
        nbytes[s] = cpu.end_segment(
            values, start[s], stride[s], dim, num_values, width, step, kind, size, num_verbatim,
            segment_positions, out,
        )  # fmt: skip
        flushed[s] = cpu.flushed_values(
            values, start[s], stride[s], dim, num_values, step, relative, out
        )


@inner
def _decode_rows(data, start, stride, dim, num_values, out, scratch):
    """Decode a segment of one of these encoders. Return OK, or the reason why it is invalid.

    Args: data: the whole segment, whose header is valid.
    """
    kind, step, size, num_verbatim = cpu.read_header(data)
    q, x = np.empty(num_values, np.int32), scratch[0]
    if not _decode_indices(kind, data[HEADER_NBYTES : HEADER_NBYTES + size], dim, q):
        return BAD_INDICES
    for first in range(0, num_values, GROUP):
        n = min(GROUP, num_values - first)
        for k in range(n):
            x[k] = np.float32(np.float32(q[first + k]) * step)
        quantizer.scatter(x, n, start, stride, dim, first, out)
    verbatim = data[data.size - 8 * num_verbatim :].view(np.uint32)
    return OK if cpu.place_verbatim(verbatim, start, stride, dim, num_values, out) else BAD_VERBATIM


@kernel
def decode(payload, at, nbytes, offsets, start, stride, dim, out):
    """Do what cpu.decode does, for all encoders."""
    scratch = cpu.group_scratch()
    for s in range(start.size):
        num_values = (offsets[s + 1] - offsets[s]) * dim
        reason = cpu.decode_segment(
            payload, at[s], nbytes[s], start[s], stride[s], dim, num_values, out, scratch
        )
        if reason == OTHER_ENCODER:
            data = payload[at[s] : at[s] + nbytes[s]]
            reason = _decode_rows(data, start[s], stride[s], dim, num_values, out, scratch)
        if reason != OK:
            return s, reason
    return -1, OK
