"""Floats of 6 bits under an exponent a row, in Triton. Same bytes as reference.py; one launch to
encode, one to decode.

A program takes BLOCK_ROWS whole rows. Four codes are three bytes; each lane stores and loads one
byte, so alignment does not matter.
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
    power_of_two,
    rows_of_block,
)
from trec_qcomm.ops.rowwise.gpu import dither, factors_of, halves_of

_INF = tl.constexpr(0x7F800000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_FLT_MAX = tl.constexpr(3.4028234663852886e38)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    exponent_bits: int,
    stochastic: bool,
    seed: int,
) -> None:
    """Write the segments."""
    batch = DeviceSegments.from_segments(segments, at, values.device)
    launch(
        _encode, batch.num_blocks, values.detach().view(torch.int32), payload, batch.numbers,
        *halves_of(seed), *batch.layout, EXPONENT_BITS=exponent_bits, STOCHASTIC=stochastic,
        **batch.tiling,
    )  # fmt: skip


def decode(encoded: Encoded, segments: Segments, out: Tensor, *, exponent_bits: int) -> Tensor:
    """Write the rows; return [1] int32, the first segment with an exponent byte of 0, or -1."""
    batch = DeviceSegments.from_segments(segments, encoded.at, out.device)
    wrong = no_segment(out.device)
    launch(
        _decode, batch.num_blocks, encoded.payload, out, wrong, *batch.layout,
        EXPONENT_BITS=exponent_bits, **batch.tiling,
    )  # fmt: skip
    return wrong


# Without this, a seed of 1 becomes a constant, and one divisible by 16 compiles another kernel.
@triton.jit(do_not_specialize=["seed_low", "seed_high"])
def _encode(
    values, payload, numbers, seed_low, seed_high,
    offsets, start, stride, at, num_segments, num_rows, dim,
    EXPONENT_BITS: tl.constexpr, STOCHASTIC: tl.constexpr, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Write the exponents and codes of the rows, and zeros after a segment's last row.

    The names are those of reference.quantize. values: bits of float32.
    """
    M: tl.constexpr = 5 - EXPONENT_BITS
    TOP: tl.constexpr = (1 << EXPONENT_BITS) - 1
    live, segment, i, begin = rows_of_block(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    d = tl.arange(0, BLOCK_DIM)
    mask = live[:, None] & (d < dim)[None, :]
    bits = tl.load(values + begin[:, None] + d[None, :], mask=mask, other=0)
    finite = (bits & _MAGNITUDE) < _INF
    amax = tl.max(tl.where(finite, bits & _MAGNITUDE, 0), 1)
    e = tl.maximum((amax >> 23) - 126, -126)
    first, second = factors_of(-e)
    x = tl.where(finite, bits, 0).to(tl.float32, bitcast=True)
    y = tl.abs(x * first[:, None] * second[:, None])
    f = tl.maximum((y.to(tl.int32, bitcast=True) >> 23) - 127 + TOP, 1)
    if STOCHASTIC:
        number = ((tl.load(numbers + segment) + i * dim)[:, None] + d[None, :]).to(tl.uint32)
        u = dither(number, seed_low.to(tl.uint32), seed_high.to(tl.uint32))
    else:
        u = 0.5
    code = ((f - 1) << M) + (y * power_of_two(M + TOP - f) + u).to(tl.int32)
    code = tl.where(finite, code, (TOP << M) + 1)
    code = tl.where((bits < 0) & (code > 0), code | 32, code)
    code = tl.where((bits & _MAGNITUDE) > _INF, 32, code)
    code = tl.where(mask, code, 0)

    n = tl.load(offsets + segment + 1) - tl.load(offsets + segment)
    place, width = tl.load(at + segment), (dim * 6 + 7) // 8
    tl.store(payload + place + i, (e + 127).to(tl.uint8), mask=live)
    to = place + n + i * width
    WORDS: tl.constexpr = (BLOCK_DIM + 3) // 4
    if BLOCK_DIM >= 4:
        parts = tl.reshape(code, (BLOCK_ROWS, WORDS, 4)) << (tl.arange(0, 4) * 6)[None, None, :]
        word = tl.sum(parts, 2)
    else:
        word = tl.sum(code << (d * 6)[None, :], 1)[:, None]
    j = 3 * tl.arange(0, WORDS)
    for t in tl.static_range(3):
        there = live[:, None] & (j + t < width)[None, :]
        tl.store(payload + (to[:, None] + j[None, :] + t), (word >> (8 * t)).to(tl.uint8), there)
    end = n * (1 + width)
    for t in tl.static_range(7):
        beyond = live & (i == n - 1) & (end + t < (end + 7) // 8 * 8)
        tl.store(payload + place + end + t, tl.zeros_like(e).to(tl.uint8), mask=beyond)


@triton.jit
def _decode(
    payload, out, first_bad, offsets, start, stride, at, num_segments, num_rows, dim,
    EXPONENT_BITS: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Write the rows. A row with a bad exponent becomes anything."""
    M: tl.constexpr = 5 - EXPONENT_BITS
    TOP: tl.constexpr = (1 << EXPONENT_BITS) - 1
    LARGEST: tl.constexpr = TOP << M
    live, segment, i, begin = rows_of_block(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    n = tl.load(offsets + segment + 1) - tl.load(offsets + segment)
    place, width = tl.load(at + segment), (dim * 6 + 7) // 8
    byte = tl.load(payload + place + i, mask=live, other=1).to(tl.int32)
    note_first(first_bad, byte == 0, segment)
    e = tl.maximum(byte - 127, -126)

    WORDS: tl.constexpr = (BLOCK_DIM + 3) // 4
    at_row, j = place + n + i * width, 3 * tl.arange(0, WORDS)
    word = tl.zeros([BLOCK_ROWS, WORDS], tl.int32)
    for t in tl.static_range(3):
        there = live[:, None] & (j + t < width)[None, :]
        part = tl.load(payload + (at_row[:, None] + j[None, :] + t), mask=there, other=0)
        word |= part.to(tl.int32) << (8 * t)
    PER: tl.constexpr = 4 if BLOCK_DIM >= 4 else BLOCK_DIM
    parts = word[:, :, None] >> (tl.arange(0, PER) * 6)[None, None, :]
    q = tl.reshape(parts, (BLOCK_ROWS, BLOCK_DIM)) & 63

    code = q & 31
    f = code >> M
    k = code - (f << M) + tl.where(f > 0, 1 << M, 0)
    y = k.to(tl.float32) * power_of_two(tl.maximum(f, 1) - TOP - M)
    first, second = factors_of(e)
    x = tl.minimum(y * first[:, None] * second[:, None], _FLT_MAX)  # y may be 2^128, rounded up
    x = tl.where(code == LARGEST + 1, float("inf"), x)
    x = tl.where(q >= 32, -x, x)
    x = tl.where((code > LARGEST + 1) | (q == 32), float("nan"), x)
    d = tl.arange(0, BLOCK_DIM)
    mask = live[:, None] & (d < dim)[None, :]
    tl.store(out + begin[:, None] + d[None, :], x, mask=mask)
