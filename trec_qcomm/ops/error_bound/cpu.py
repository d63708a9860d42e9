"""Error-bounded quantization in numba, with the encoder bitpack. Same bytes as reference.py.

A segment is read twice: for its range, and to quantize it in groups of 1024 values, which stay in
the first cache until they are packed.

The other encoders need all indices of a segment at once. rans is in rans_segments.py, which is
compiled only if it is used, because compiling it takes a minute. Segments of vector_lz go through
the reference.
"""

from importlib import import_module

import numpy as np
import torch

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.bitpack import cpu as bitpack
from trec_qcomm.ops.bitpack.cpu import BLOCK, GROUP, SPARE_NBYTES
from trec_qcomm.ops.dispatch import arrays, kernels_of
from trec_qcomm.ops.error_bound import HEADER_NBYTES, NUM_REASONS
from trec_qcomm.ops.error_bound.quantizer import cpu as quantizer

RAW, BITPACK, VECTOR_LZ, RANS, CONSTANT = 0, 1, 2, 3, 4
MAX_VERBATIM = 2**25 - 1
OK, BAD_SIZE, BAD_ENCODER, BAD_STEP, BAD_INDICES, BAD_VERBATIM, OTHER_ENCODER = range(7)
_RANS_SEGMENTS = "trec_qcomm.ops.error_bound.rans_segments"  # decodes bitpack, too

# Without reference counts: see ops.bitpack.cpu.
_inner = inner(_nrt=False)


def encode(values, segments, payload, at, *, bounds, relative, encoder, nbytes):
    """Write the segments, at most nbytes [S] each; write the bytes that they took to nbytes.

    Returns: -1, because no value is refused; and [S], numbers of flushed values, or None if all are
        0.
    """
    if encoder == "vector_lz":
        options = {"bounds": bounds, "relative": relative, "encoder": encoder, "nbytes": nbytes}
        where = values.detach(), segments, payload, at
        return kernels_of(__package__, "reference").encode(*where, **options)
    most = nbytes.numpy()
    flushed = np.empty_like(most)
    write = import_module(_RANS_SEGMENTS).encode if encoder == "rans" else _encode
    rows, data = arrays(values, payload)
    where = rows, *segments.arrays, segments.dim, data, at.numpy(), most.copy()
    write(*where, bounds.numpy(), relative, most, flushed)
    return -1, torch.from_numpy(flushed) if flushed.any() else None


def decode(encoded, segments, out):
    """Write the rows back.

    Returns: -1, or NUM_REASONS times the index of the first invalid segment, plus the reason.
    Raises: CorruptFrameError: the first invalid segment is one of vector_lz.
    """
    data, rows = arrays(encoded.payload, out)
    vectors = encoded.at.numpy(), encoded.nbytes.numpy(), *segments.arrays
    read, first = _decode, 0
    while True:
        segment, reason = read(data, *(v[first:] for v in vectors), segments.dim, rows)
        first += int(segment)
        if reason != OTHER_ENCODER:
            return -1 if segment < 0 else first * NUM_REASONS + reason
        if data[vectors[0][first] + 4] & 15 == RANS:
            read = import_module(_RANS_SEGMENTS).decode
        else:
            reference = kernels_of(__package__, "reference")
            reference.decode(encoded, segments, out.detach(), [first])
            first += 1


@_inner
def _encode_groups(
    values, start, stride, dim, num_values, bound, step, inverse, out, positions, scratch
):
    """Quantize and bit-pack a segment group by group.

    Returns: (nbytes, num_verbatim); nbytes is -1 where out or positions has no room.
    """
    x, words, narrow, widths, spare = scratch
    at, num_verbatim = np.int64(0), np.int64(0)
    for first in range(0, num_values, GROUP):
        n = min(GROUP, num_values - first)
        all_bits, num_verbatim = quantizer.quantize_group(
            values, start, stride, dim, first, n, bound, step, inverse,
            x, words, narrow, positions, num_verbatim,
        )  # fmt: skip
        if num_verbatim < 0:
            return np.int64(-1), num_verbatim
        at = bitpack.pack_group(words, all_bits, n, out, at, out.size, narrow, widths, spare)
        if at < 0:
            return at, num_verbatim
    return at, num_verbatim


@_inner
def _find_other_values(values, start, stride, dim, num_values, constant, positions):
    """Find the values whose bits are not `constant`, and keep their positions.

    Returns: how many there are, or -1: positions has no room.
    """
    num_verbatim = np.int64(0)
    for k in range(num_values):
        value = np.float32(values[start + k // dim * stride + k % dim])
        if value.view(np.int32) != constant:
            if num_verbatim == positions.size:
                return np.int64(-1)
            positions[num_verbatim] = k
            num_verbatim += 1
    return num_verbatim


@_inner
def _constant_of(values, start, stride, dim, num_values):
    """Return the bits of the first finite value, or of the first value where none is finite."""
    for k in range(num_values):
        value = values[start + k // dim * stride + k % dim]
        if np.isfinite(value):
            return np.float32(value).view(np.int32)
    return np.float32(values[start]).view(np.int32)


@inner
def _write_raw(values, start, stride, dim, num_values, out):
    """Write the rows raw. Return the segment's nbytes."""
    nbytes = HEADER_NBYTES + (4 * num_values + 7) // 8 * 8
    out[:HEADER_NBYTES] = 0
    out[4] = RAW | ((-4 * num_values) % 8 << 4)
    out[nbytes - 4 : nbytes] = 0
    body = out[HEADER_NBYTES : HEADER_NBYTES + 4 * num_values].view(np.float32)
    quantizer.gather(values, start, stride, dim, 0, num_values, body)
    return nbytes


@inner
def _write_header_and_verbatim(
    values, start, stride, dim, first_word, kind, indices_nbytes, positions, num_verbatim, out
):
    """Write header, padding and verbatim values around the indices. Return the nbytes."""
    padding = -indices_nbytes % 8
    end = HEADER_NBYTES + indices_nbytes + padding
    out[end - padding : end] = 0
    header = out[:HEADER_NBYTES].view(np.uint32)
    header[0] = first_word
    header[1] = kind | (padding << 4) | (num_verbatim << 7)
    verbatim = out[end : end + 8 * num_verbatim].view(np.uint32)
    for v in range(num_verbatim):
        k = np.int64(positions[v])
        value = np.float32(values[start + k // dim * stride + k % dim])
        verbatim[v], verbatim[num_verbatim + v] = positions[v], value.view(np.uint32)
    return end + 8 * num_verbatim


@inner
def begin_segment(values, start, stride, dim, num_values, requested_bound, relative):
    """Return (max - min, bound, step, 1 / step) of a segment; step is 0 if it is lossless.

    Args: requested_bound: float64, a fraction of max - min if `relative`.
    """
    lowest, highest = quantizer.finite_range(values, start, stride, dim, num_values)
    width = np.float64(highest) - np.float64(lowest) if lowest <= highest else np.float64(0)
    bound, step, inverse = quantizer.choose_step(
        requested_bound * width if relative else requested_bound, width
    )
    return width, bound, step, inverse


@inner
def end_segment(
    values, start, stride, dim, num_values, width, step, kind, nbytes, num_verbatim, positions, out
):
    """Write what surrounds the indices, or a constant, or raw rows if they are not longer.

    Args:    width: max - min of the finite values.
             kind: the encoder field of the header.
             nbytes, num_verbatim: sizes of the indices and of positions; -1: there was no room.
    Returns: the segment's nbytes.
    """
    first_word = np.float32(step).view(np.int32)
    if width == 0:
        kind, nbytes = CONSTANT, np.int64(0)
        first_word = _constant_of(values, start, stride, dim, num_values)
        num_verbatim = _find_other_values(
            values, start, stride, dim, num_values, first_word, positions
        )
    fits = (nbytes + 7) // 8 * 8 + 8 * num_verbatim < raw_nbytes(num_values)
    if nbytes < 0 or num_verbatim < 0 or not fits:
        return _write_raw(values, start, stride, dim, num_values, out)
    return _write_header_and_verbatim(
        values, start, stride, dim, np.uint32(first_word), kind, nbytes, positions, num_verbatim,
        out,
    )  # fmt: skip


@inner
def raw_nbytes(num_values):
    """Return the bytes of the rows in float32, padded to a multiple of 8."""
    return (4 * num_values + 7) // 8 * 8


@inner
def encode_segment(
    values, start, stride, dim, num_values, requested_bound, relative, out, positions, scratch
):
    """Write one segment to out, which has max_nbytes. Return (nbytes, number of flushed values)."""
    width, bound, step, inverse = begin_segment(
        values, start, stride, dim, num_values, requested_bound, relative
    )
    room = raw_nbytes(num_values)
    positions = positions[: min(room // 8, MAX_VERBATIM)]
    nbytes, num_verbatim = np.int64(-1), np.int64(0)
    if step > 0:
        nbytes, num_verbatim = _encode_groups(
            values, start, stride, dim, num_values, bound, step, inverse,
            out[HEADER_NBYTES:room], positions, scratch,
        )  # fmt: skip
    nbytes = end_segment(
        values, start, stride, dim, num_values, width, step, BITPACK, nbytes, num_verbatim,
        positions, out,
    )  # fmt: skip
    return nbytes, flushed_values(values, start, stride, dim, num_values, step, relative, out)


@inner
def flushed_values(values, start, stride, dim, num_values, step, relative, out):
    """Return the number of flushed values of a segment that was written to out.

    It is 0 for a bound that is not relative, which the user chose as it is, and for a raw segment,
    which is exact.
    """
    if not relative or step == 0 or (out[4] & 15) == RAW:
        return np.int64(0)
    return quantizer.count_flushed(values, start, stride, dim, num_values, step)


@inner
def group_scratch():
    """Return scratch for one group, (x, words, narrow, widths, spare), as in ops.bitpack.cpu."""
    return (
        np.empty(GROUP, np.float32),
        np.empty(GROUP, np.uint32),
        np.empty(GROUP, np.uint8),
        np.empty(GROUP // BLOCK, np.int64),
        np.empty(SPARE_NBYTES, np.uint8),
    )


@inner
def most_values(offsets, dim):
    """Return the number of values of the largest segment."""
    most = np.int64(0)
    for s in range(offsets.size - 1):
        most = max(most, (offsets[s + 1] - offsets[s]) * dim)
    return most


@inner
def positions_scratch(offsets, dim):
    """Return scratch for the verbatim positions of any segment.

    If a segment has more verbatim values than fit, it is shorter when sent raw.
    """
    return np.empty(most_values(offsets, dim) // 2 + 1, np.uint32)


@kernel
def _encode(
    values, offsets, start, stride, dim, payload, at, max_nbytes, bounds, relative, nbytes, flushed
):
    """Write every segment to payload[at:], at most max_nbytes [S] each.

    Args: nbytes, flushed: [S] int64, filled with sizes and with numbers of flushed values.
    """
    positions, scratch = positions_scratch(offsets, dim), group_scratch()
    for s in range(start.size):
        num_values = (offsets[s + 1] - offsets[s]) * dim
        nbytes[s], flushed[s] = 0, 0
        if num_values:
            out = payload[at[s] : at[s] + max_nbytes[s]]
            nbytes[s], flushed[s] = encode_segment(
                values, start[s], stride[s], dim, num_values, bounds[s], relative, out, positions,
                scratch,
            )  # fmt: skip


@_inner
def _decode_groups(payload, at, end, step, start, stride, dim, num_values, out, scratch):
    """Invert `_encode_groups`. Return False where payload[at:end] is invalid."""
    x, words, narrow, widths, spare = scratch
    for first in range(0, num_values, GROUP):
        n = min(GROUP, num_values - first)
        at, is_narrow = bitpack.unpack_group(payload, at, end, n, words, narrow, widths, spare)
        if at < 0:
            return False
        if stride == dim and is_narrow:
            quantizer.dequantize(narrow, step, out, start + first, n)
        elif stride == dim:
            quantizer.dequantize(words, step, out, start + first, n)
        else:
            if is_narrow:
                quantizer.dequantize(narrow, step, x, 0, n)
            else:
                quantizer.dequantize(words, step, x, 0, n)
            quantizer.scatter(x, n, start, stride, dim, first, out)
    return at == end


@_inner
def place_verbatim(verbatim, start, stride, dim, num_values, out):
    """Put verbatim values in place. Return False if a position is invalid.

    Args: verbatim: [2 V] uint32, positions, then bits.
    """
    num_verbatim, lowest = verbatim.size // 2, np.int64(0)
    for v in range(num_verbatim):
        k = np.int64(verbatim[v])
        if k < lowest or k >= num_values:
            return False
        out[start + k // dim * stride + k % dim] = np.uint32(verbatim[num_verbatim + v]).view(
            np.float32
        )
        lowest = k + 1
    return True


@inner
def read_header(data):
    """Return (kind, step, bytes of indices, number of verbatim values) of a segment of >= 8 bytes.

    The bytes of indices are negative where the segment is too short for its verbatim values.
    """
    header = data[:HEADER_NBYTES].view(np.uint32)
    num_verbatim = np.int64(header[1] >> 7)
    size = data.size - HEADER_NBYTES - 8 * num_verbatim - np.int64((header[1] >> 4) & 7)
    return np.int64(header[1] & 15), np.uint32(header[0]).view(np.float32), size, num_verbatim


@inner
def decode_segment(payload, at, nbytes, start, stride, dim, num_values, out, scratch):
    """Decode one segment. Return OK, OTHER_ENCODER, or the reason why it is invalid."""
    data = payload[at : at + nbytes]
    if num_values == 0:
        return OK if data.size == 0 else BAD_SIZE
    if data.size < HEADER_NBYTES:
        return BAD_SIZE
    kind, step, size, num_verbatim = read_header(data)
    if size < 0:
        return BAD_SIZE
    body, end = data[HEADER_NBYTES : HEADER_NBYTES + size], data.size - 8 * num_verbatim
    if kind == RAW:
        if size != 4 * num_values or num_verbatim:
            return BAD_SIZE
        quantizer.scatter(body.view(np.float32), num_values, start, stride, dim, 0, out)
    elif kind == CONSTANT:
        if size:
            return BAD_SIZE
        for k in range(num_values):
            out[start + k // dim * stride + k % dim] = step
    elif kind not in (BITPACK, VECTOR_LZ, RANS):
        return BAD_ENCODER
    elif not quantizer.MIN_NORMAL <= step <= quantizer.MAX:
        return BAD_STEP
    elif kind != BITPACK:
        return OTHER_ENCODER
    elif not _decode_groups(
        payload, at + HEADER_NBYTES, at + HEADER_NBYTES + size, step, start, stride, dim,
        num_values, out, scratch,
    ):  # fmt: skip
        return BAD_INDICES
    verbatim = data[end:].view(np.uint32)
    return OK if place_verbatim(verbatim, start, stride, dim, num_values, out) else BAD_VERBATIM


@kernel
def _decode(payload, at, nbytes, offsets, start, stride, dim, out):
    """Decode all segments.

    Returns: (-1, OK), or the first segment that is invalid or of another encoder, and the reason.
    """
    scratch = group_scratch()
    for s in range(start.size):
        num_values = (offsets[s + 1] - offsets[s]) * dim
        reason = decode_segment(
            payload, at[s], nbytes[s], start[s], stride[s], dim, num_values, out, scratch
        )
        if reason != OK:
            return s, reason
    return -1, OK
