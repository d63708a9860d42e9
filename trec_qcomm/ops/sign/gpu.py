"""Signs and a magnitude a row, in Triton. Same bytes as reference.py; one launch to encode, one to
decode.

A magnitude is a sum in float64 from the first column to the last. So each lane goes along a row of
its own, 4 columns in a load; the rest of a cache line waits in the first cache. A batch of few rows
with many columns each therefore leaves a GPU idle.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.device import (
    DeviceSegments,
    launch,
    no_segment,
    note_first,
    rows_of_block,
    words,
)
from trec_qcomm.ops.value_tiles import lists_of_tile, row_and_column, tiles_of

_INF = tl.constexpr(0x7F800000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_NAN = tl.constexpr(0x7FC00000)
_ROWS = 128  # rows of a program that encodes, one a lane


def encode(values: Tensor, segments: Segments, payload: Tensor, at: Tensor) -> None:
    """Write the segments."""
    batch, dim = DeviceSegments.from_segments(segments, at, values.device), segments.dim
    launch(
        _encode, -(-batch.num_rows // _ROWS), values.detach().view(torch.int32),
        words(payload, torch.int32), payload, *batch.layout, WORDS=dim % 32 == 0,
        STEPS=batch.tiling["STEPS"], VECTOR=1 if dim % 4 else batch.vector, BLOCK_ROWS=_ROWS,
    )  # fmt: skip


def decode(encoded: Encoded, segments: Segments, out: Tensor) -> Tensor:
    """Write the rows; return [1] int32, the first segment with a magnitude below 0, or -1."""
    payload, wrong = encoded.payload, no_segment(out.device)
    layout, programs, options = tiles_of(segments, encoded.at, out.device)
    launch(
        _decode, programs, payload, words(payload, torch.int32), out.detach().view(torch.int32),
        wrong, *layout, segments.num_segments, segments.dim, **options,
    )  # fmt: skip
    return wrong


@triton.jit
def _four(values, begin, live, c, dim, VECTOR: tl.constexpr):
    """Return four [R] int32: the bits of columns c to c + 3 of each row, 0 beyond the last."""
    at = tl.multiple_of(begin + c, VECTOR)
    j = tl.arange(0, 4)[None, :]
    mask = (live & (c < dim))[:, None] if VECTOR == 4 else live[:, None] & (c + j < dim)
    x = tl.load(values + at[:, None] + j, mask=mask, other=0)
    even, odd = tl.split(tl.reshape(x, (x.shape[0], 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _store_word(words, payload, to, word, live, c, width, WORDS: tl.constexpr):
    """Store the sign bits of columns c to c + 31 of each row, whose first byte is at `to`."""
    if WORDS:
        tl.store(words + (to + c // 8) // 4, word, mask=live)
    else:
        byte = c // 8 + tl.arange(0, 4)[None, :]
        bits = word[:, None] >> (8 * tl.arange(0, 4))[None, :]
        mask = live[:, None] & (byte < width)
        tl.store(payload + to[:, None] + byte, bits.to(tl.uint8), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _encode(
    values, words, payload, offsets, start, stride, at, num_segments, num_rows, dim,
    WORDS: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Write the magnitude and the signs of each row, and zeros after a segment's last row.

    Args: values: bits of float32.  WORDS: whether the signs of a row fill words of 32 bits.
    """
    live, segment, i, begin = rows_of_block(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    n = tl.load(offsets + segment + 1) - tl.load(offsets + segment)
    place, width = tl.load(at + segment), (dim + 7) // 8
    to = place + 4 * n + i * width
    total, largest = tl.zeros([BLOCK_ROWS], tl.float64), tl.zeros([BLOCK_ROWS], tl.int32)
    c = 0
    while c < dim:
        word = tl.zeros([BLOCK_ROWS], tl.int32)
        for q in tl.static_range(0, 32, 4):
            four = _four(values, begin, live, c + q, dim, VECTOR)
            for k in tl.static_range(4):
                magnitude = four[k] & _MAGNITUDE
                largest = tl.maximum(largest, magnitude)
                total += magnitude.to(tl.float32, bitcast=True).to(tl.float64)
                word |= ((four[k] >> 31) & 1) << (q + k)
        _store_word(words, payload, to, word, live, c, width, WORDS)
        c += 32
    scale = (total / tl.cast(dim, tl.float64)).to(tl.float32).to(tl.int32, bitcast=True)
    bad = live & (largest >= _INF)
    if tl.max(bad.to(tl.int32), 0) > 0:
        has_nan, has_plus, has_minus = largest > _INF, ~live, ~live
        c = 0
        while c < dim:
            word = tl.zeros([BLOCK_ROWS], tl.int32)
            for q in tl.static_range(0, 32, 4):
                four = _four(values, begin, bad, c + q, dim, VECTOR)
                for k in tl.static_range(4):
                    infinite = (four[k] & _MAGNITUDE) >= _INF
                    has_plus = has_plus | (infinite & (four[k] > 0))
                    has_minus = has_minus | (infinite & (four[k] < 0))
                    word |= infinite.to(tl.int32) << (q + k)
            _store_word(words, payload, to, word, bad, c, width, WORDS)
            c += 32
        several = has_nan | (has_plus & has_minus)
        special = tl.where(several, _NAN, tl.where(has_plus, _INF, _INF | -0x80000000))
        scale = tl.where(bad, special, scale)
    tl.store(words + place // 4 + i, scale, mask=live)
    end = n * (4 + width)
    for t in tl.static_range(7):
        beyond = live & (i == n - 1) & (end + t < (end + 7) // 8 * 8)
        tl.store(payload + place + end + t, tl.zeros_like(scale).to(tl.uint8), mask=beyond)


@triton.jit
def _decode(
    payload, words, out, first_bad, first, start, stride, at, num_segments, dim,
    STEPS: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the rows, as bits. Rows with a magnitude below 0 become anything."""
    live, segment, number = lists_of_tile(first, num_segments, STEPS, VECTOR, BLOCK)
    row, column = row_and_column(number, dim, WIDE)
    place, size = tl.load(at + segment), tl.load(first + segment + 1) - tl.load(first + segment)
    scale = tl.load(words + place // 4 + row, mask=live, other=0)
    finite = (scale & _MAGNITUDE) < _INF
    note_first(first_bad, live & finite & (scale < 0), segment)
    zero, one = tl.where(finite, scale, 0), tl.where(finite, scale ^ -0x80000000, scale)
    num_rows, _ = row_and_column(size, dim, WIDE)
    signs = payload + place + 4 * num_rows + row * ((dim + 7) // 8) + column // 8
    byte = tl.load(signs, mask=live, other=0).to(tl.int32) >> (column % 8).to(tl.int32)
    v = tl.arange(0, VECTOR)[None, :]
    negative = ((byte[:, None] >> v) & 1) == 1
    to = tl.load(start + segment) + row * tl.load(stride + segment) + column
    to = tl.multiple_of(to, VECTOR)[:, None] + v
    tl.store(out + to, tl.where(negative, one[:, None], zero[:, None]), mask=live[:, None])
