"""Segments of kept columns in numba. Same bytes as reference.py.

A segment is read once. Each row's mask is computed and noted, and the values that it keeps are
gathered into a buffer, to be scaled and rounded together. Scratch is never larger than the rows.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.copying import copy
from trec_qcomm.ops.sparsify.masks import gather, scatter
from trec_qcomm.ops.sparsify.positions import (
    BITMAP,
    COLUMNS,
    COUNTED_COLUMNS,
    positions_nbytes,
    read_positions,
    write_columns,
)
from trec_qcomm.ops.sparsify.selection import select
from trec_qcomm.ops.sparsify.values import (
    FLT_MAX,
    FLT_MIN,
    FP32,
    INT8,
    load_values,
    store_values,
    value_nbytes,
    value_scale,
)

OK, BAD_SIZE, BAD_FORM, BAD_SCALE, BAD_COUNT, BAD_COLUMNS = 0, 1, 2, 3, 4, 5


@inner
def _most_rows(offsets):
    most = 0
    for s in range(offsets.size - 1):
        most = max(most, offsets[s + 1] - offsets[s])
    return most


@inner(forceinline=True)
def _header(data, kind, form, scale):
    data[0], data[1], data[2], data[3] = kind, form, 0, 0
    data[4:8].view(np.float32)[0] = scale


@kernel
def encode(
    values, offsets, start, stride, dim, payload, at, kind, k, levels, bits, mask_at, nbytes
):  # fmt: skip
    """Write the segments. k: columns a row, or 0 to keep those above `levels`.  nbytes: [S] int64,
    written."""
    words, keys = values.view(np.int32), np.empty(dim, np.int32)
    flags = np.zeros((dim + 7) // 8 * 8, np.uint8)
    flag_words = flags.view(np.uint64)  # a view costs some 20 ns: none in the loop over rows
    most_rows = _most_rows(offsets)
    scratch = np.empty(most_rows * (k if k > 0 else dim), np.float32)
    columns, counts = np.empty(scratch.size, np.int32), np.empty(most_rows, np.int32)
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        num_kept = select(
            values, words, start[s], stride[s], n, k, levels[s], bits, mask_at[s], keys, flags,
            flag_words, scratch, columns, counts,
        )  # fmt: skip
        kept, form = scratch[:num_kept], COLUMNS if k > 0 else COUNTED_COLUMNS
        size = positions_nbytes(form, n, dim, num_kept)
        if size >= positions_nbytes(BITMAP, n, dim, num_kept):
            form, size = BITMAP, positions_nbytes(BITMAP, n, dim, num_kept)
        begin = 12 + num_kept * value_nbytes(kind)
        end = begin + size
        nbytes[s] = (end + 7) // 8 * 8
        data = payload[at[s] : at[s] + nbytes[s]]
        data[end:] = 0
        scale = value_scale(kept, kind)
        _header(data, kind, form, scale)
        data[8:12].view(np.uint32)[0] = num_kept
        store_values(kept, kind, scale, data[12:begin])
        if form == BITMAP:
            copy(bits[mask_at[s] : mask_at[s] + size], data[begin:end])
        else:
            write_columns(columns[:num_kept], counts[:n], dim, form, data[begin:end])


@kernel
def encode_masked(
    values, offsets, start, stride, dim, payload, at, kind, bits, mask_at, counts
):  # fmt: skip
    """Write the segments. counts: [S], how many values the masks keep."""
    scratch = np.empty(counts.max() if counts.size else 0, np.float32)
    for s in range(start.size):
        num_kept, place = 0, mask_at[s]
        for i in range(offsets[s + 1] - offsets[s]):
            begin = start[s] + i * stride[s]
            num_kept = gather(values[begin : begin + dim], bits, place, scratch, num_kept)
            place += (dim + 7) // 8
        end = 8 + num_kept * value_nbytes(kind)
        data = payload[at[s] : at[s] + (end + 7) // 8 * 8]
        data[end:] = 0
        scale = value_scale(scratch[:num_kept], kind)
        _header(data, kind, 0, scale)
        store_values(scratch[:num_kept], kind, scale, data[8:end])


@inner(forceinline=True)
def _scatter_rows(kept, bits, place, start, stride, num_rows, dim, out):
    num_kept = 0
    for i in range(num_rows):
        row = out[start + i * stride : start + i * stride + dim]
        num_kept = scatter(row, bits, place, kept, num_kept)
        place += (dim + 7) // 8


@inner
def _bad_header(data, kind):
    """Return what is wrong with the fields that both formats have, or OK."""
    if kind > INT8:
        return BAD_FORM
    scale = data[4:8].view(np.float32)[0]
    if kind != FP32 and not FLT_MIN <= scale <= FLT_MAX:
        return BAD_SCALE
    return OK


@inner
def _decode_segment(data, num_rows, dim, bits, place, scratch, columns, counts):
    """Read a segment's masks, and its values to scratch; return what is wrong (BAD_... or OK), and
    how many values there are."""
    if data.size < 12:
        return BAD_SIZE, 0
    kind, form = data[0], data[1]
    bad = _bad_header(data, kind)
    if bad != OK:
        return bad, 0
    if form > COUNTED_COLUMNS:
        return BAD_FORM, 0
    num_kept = np.int64(data[8:12].view(np.uint32)[0])
    if num_kept > num_rows * dim:
        return BAD_COUNT, 0
    begin = 12 + num_kept * value_nbytes(kind)
    end = begin + positions_nbytes(form, num_rows, dim, num_kept)
    if data.size != (end + 7) // 8 * 8:
        return BAD_SIZE, 0
    positions, places = data[begin:end], columns[:num_kept]
    if not read_positions(positions, form, dim, counts[:num_rows], places, bits, place):
        return BAD_COLUMNS, 0
    scale = data[4:8].view(np.float32)[0]
    load_values(data[12:begin], kind, scale, scratch[:num_kept])
    return OK, num_kept


@kernel
def decode(payload, at, nbytes, offsets, start, stride, dim, out, bits, mask_at):
    """Write the rows; return what is wrong (BAD_... or OK), and in which segment."""
    most_rows = _most_rows(offsets)
    scratch, counts = np.empty(most_rows * dim, np.float32), np.empty(most_rows, np.int32)
    columns = np.empty(scratch.size, np.int32)
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        data = payload[at[s] : at[s] + nbytes[s]]
        bad, num_kept = _decode_segment(
            data, n, dim, bits, mask_at[s], scratch, columns, counts
        )  # fmt: skip
        if bad != OK:
            return bad, s
        _scatter_rows(scratch[:num_kept], bits, mask_at[s], start[s], stride[s], n, dim, out)
    return OK, -1


@kernel
def decode_masked(payload, at, nbytes, offsets, start, stride, dim, out, bits, mask_at, counts):
    """Write the rows; return what is wrong (BAD_... or OK), and in which segment. counts: [S], how
    many values the masks keep."""
    scratch = np.empty(counts.max() if counts.size else 0, np.float32)
    for s in range(start.size):
        data, num_kept = payload[at[s] : at[s] + nbytes[s]], counts[s]
        if data.size < 8:
            return BAD_SIZE, s
        kind = data[0]
        bad = _bad_header(data, kind)
        if bad != OK:
            return bad, s
        end = 8 + num_kept * value_nbytes(kind)
        if data.size != (end + 7) // 8 * 8:
            return BAD_SIZE, s
        load_values(data[8:end], kind, data[4:8].view(np.float32)[0], scratch[:num_kept])
        n = offsets[s + 1] - offsets[s]
        _scatter_rows(scratch, bits, mask_at[s], start[s], stride[s], n, dim, out)
    return OK, -1
