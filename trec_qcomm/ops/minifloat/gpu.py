"""Floats of 6 or 8 bits and one exponent a row, in Triton. Same bytes as reference.py.

Encoding is one launch, and so is decoding. A program takes BLOCK_ROWS whole rows of one segment.
Four codes of 6 bits are 3 bytes. Each lane stores and loads one byte, so alignment does not matter.
Words are transposed for it: where no axis has bytes beside each other, Triton gives neighbouring
lanes the first axis, which must be that along a row.
"""

import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.device import no_segment, power_of_two
from trec_qcomm.ops.frames.gpu import FramesOfSegments, terms_of_bytes
from trec_qcomm.ops.row_blocks import (
    RowBlocks,
    check_rows,
    note_segment,
    place_of,
    rows_of_program,
    seal_rows,
    store_zeros,
)
from trec_qcomm.ops.rowwise.gpu import dither, halves_of
from trec_qcomm.ops.value_bits import (
    FP16,
    FP32,
    INF,
    MAGNITUDE,
    MAX_BF16,
    MAX_FP16,
    MAX_FP32,
    as_bits,
    bits_of,
    loadable,
    to_store,
)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    bits: int,
    exponent_bits: int,
    stochastic: bool,
    seed: int,
    frames: FramesOfSegments | None = None,
) -> tuple[int, None]:
    """Write the segments, and seal their frames if these are given.

    Returns: -1, because no value is refused; and None, because flushed values are not counted.
    """
    blocks = RowBlocks.from_segments(segments, at, values.device, frames)
    rows, kind = as_bits(values)
    blocks.launch(
        _encode, rows, payload, blocks.numbers, *halves_of(seed), ROWS=kind, BITS=bits,
        EXPONENT_BITS=exponent_bits, STOCHASTIC=stochastic, frames=frames,
    )  # fmt: skip
    return -1, None


def decode(
    encoded: Encoded, segments: Segments, out: Tensor, *, bits: int, exponent_bits: int
) -> Tensor:
    """Write the rows; return [1] int32, the first segment with an exponent byte of 0, or -1."""
    blocks = RowBlocks.from_segments(segments, encoded.at, out.device, encoded.frames)
    wrong, (rows, kind) = no_segment(out.device), loadable(out)
    options = {"ROWS": kind, "BITS": bits, "EXPONENT_BITS": exponent_bits}
    blocks.launch(_decode, encoded.payload, rows, wrong, frames=encoded.frames, **options)
    return wrong


@triton.jit
def _factors_of(k):
    """Return first and second such that x * 2^k == x * first * second.

    The multiplication that may leave the normal range is the second.
    """
    near = tl.minimum(tl.maximum(k, -126), 126)
    main, rest = power_of_two(near), power_of_two(k - near)
    return tl.where(k < 0, rest, main), tl.where(k < 0, main, rest)


@triton.jit
def _places(width, live, j, BLOCK_ROWS: tl.constexpr):
    """Return where bytes number j of this program's rows are, from its first row on, and which
    exist."""
    row = tl.arange(0, BLOCK_ROWS)
    return (row * width)[:, None] + j[None, :], live[:, None] & (j < width)[None, :]


@triton.jit
def _sum_of_codes(begin, code, width, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Return the sum of the terms of codes of 8 bits, which are 0 where there is none.

    Args: begin: where the tile's codes begin: bytes from the frame's begin.
    """
    PER: tl.constexpr = 4 if BLOCK_DIM >= 4 else BLOCK_DIM
    parts = tl.reshape(code, (BLOCK_ROWS, BLOCK_DIM // PER, PER))
    word = tl.sum(parts << (tl.arange(0, PER) * 8)[None, None, :], 2)
    row, j = tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_DIM // PER)
    return tl.sum(terms_of_bytes(begin, (row * width)[:, None] + PER * j[None, :], word, 4))


# Without this, a seed of 1 becomes a constant, and one divisible by 16 compiles another kernel.
@triton.jit(do_not_specialize=["seed_low", "seed_high", "call"])
def _encode(
    values, payload, numbers, seed_low, seed_high,
    first, offsets, start, stride, at, num_segments, dim, headers, table, frame_of, flag, call,
    ROWS: tl.constexpr, BITS: tl.constexpr, EXPONENT_BITS: tl.constexpr, STOCHASTIC: tl.constexpr,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, FRAMES: tl.constexpr,
):  # fmt: skip
    """Write the exponents and codes of the rows, and zeros after a segment's last row.

    The names are those of reference.quantize. values: bits of ROWS.
    """
    SIGN: tl.constexpr = 1 << (BITS - 1)
    M: tl.constexpr = BITS - 1 - EXPONENT_BITS
    TOP: tl.constexpr = (1 << EXPONENT_BITS) - 1
    segment, n, i, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    d = tl.arange(0, BLOCK_DIM)
    mask = live[:, None] & (d < dim)[None, :]
    word = tl.load(values + begin + (away[:, None] + d[None, :]), mask=mask, other=0)
    bits = bits_of(word, ROWS)
    finite = (bits & MAGNITUDE) < INF
    amax = tl.max(tl.where(finite, bits & MAGNITUDE, 0), 1)
    e = tl.maximum((amax >> 23) - 126, -126)
    near, far = _factors_of(-e)
    x = tl.where(finite, bits, 0).to(tl.float32, bitcast=True)
    y = tl.abs(x * near[:, None] * far[:, None])
    f = tl.maximum((y.to(tl.int32, bitcast=True) >> 23) - 127 + TOP, 1)
    if STOCHASTIC:
        number = (tl.load(numbers + segment) + i * dim).to(tl.uint32)
        number += (tl.arange(0, BLOCK_ROWS) * dim).to(tl.uint32)[:, None] + d.to(tl.uint32)[None, :]
        u = dither(number, seed_low.to(tl.uint32), seed_high.to(tl.uint32))
    else:
        u = 0.5
    code = ((f - 1) << M) + (y * power_of_two(M + TOP - f) + u).to(tl.int32)
    code = tl.where(finite, code, (TOP << M) + 1)
    code = tl.where((bits < 0) & (code > 0), code | SIGN, code)
    code = tl.where((bits & MAGNITUDE) > INF, SIGN, code)
    code = tl.where(mask, code, 0)

    width, row = (BITS * dim + 7) // 8, tl.arange(0, BLOCK_ROWS)
    begins, origin = place_of(segment, at, frame_of, table, FRAMES)
    tl.store(payload + begins + i + row, (e + 127).to(tl.uint8), mask=live)
    at_codes = begins + n + i * width
    to = payload + at_codes
    if FRAMES:
        exponents = tl.where(live, e + 127, 0)
        total = tl.sum(terms_of_bytes(begins + i - origin, row, exponents, 1))
    if BITS == 8:
        place, there = _places(width, live, d, BLOCK_ROWS)
        tl.store(to + place, code.to(tl.uint8), there)
        if FRAMES:
            total += _sum_of_codes(at_codes - origin, code, width, BLOCK_ROWS, BLOCK_DIM)
    else:
        WORDS: tl.constexpr = (BLOCK_DIM + 3) // 4
        if BLOCK_DIM >= 4:
            parts = tl.reshape(code, (BLOCK_ROWS, WORDS, 4)) << (tl.arange(0, 4) * 6)[None, None, :]
            word = tl.sum(parts, 2)
        else:
            word = tl.sum(code << (d * 6)[None, :], 1)[:, None]
        if FRAMES:
            place = (row * width)[:, None] + 3 * tl.arange(0, WORDS)[None, :]
            total += tl.sum(terms_of_bytes(at_codes - origin, place, word, 3))
        word = tl.trans(word)
        for t in tl.static_range(3):
            place, there = _places(width, live, 3 * tl.arange(0, WORDS) + t, BLOCK_ROWS)
            tl.store(to + tl.trans(place), (word >> (8 * t)).to(tl.uint8), tl.trans(there))
    if i == 0:
        store_zeros(payload, begins + n * (1 + width))
    if FRAMES:
        seal_rows(payload, total, segment, n, i, headers, table, frame_of, call, BLOCK_ROWS)


@triton.jit(do_not_specialize=["call"])
def _decode(
    payload, out, first_bad, first, offsets, start, stride, at, num_segments, dim,
    headers, table, frame_of, flag, call,
    ROWS: tl.constexpr, BITS: tl.constexpr, EXPONENT_BITS: tl.constexpr, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    FRAMES: tl.constexpr,
):  # fmt: skip
    """Write the rows. A row with a bad exponent becomes anything."""
    SIGN: tl.constexpr = 1 << (BITS - 1)
    M: tl.constexpr = BITS - 1 - EXPONENT_BITS
    TOP: tl.constexpr = (1 << EXPONENT_BITS) - 1
    LARGEST: tl.constexpr = TOP << M
    MOST: tl.constexpr = MAX_FP32 if ROWS == FP32 else MAX_FP16 if ROWS == FP16 else MAX_BF16
    segment, n, i, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    width, row = (BITS * dim + 7) // 8, tl.arange(0, BLOCK_ROWS)
    begins, origin = place_of(segment, at, frame_of, table, FRAMES)
    exponents = tl.load(payload + begins + i + row, mask=live, other=1).to(tl.int32)
    note_segment(first_bad, tl.min(exponents, 0) == 0, segment)
    e = tl.maximum(exponents - 127, -126)

    at_codes, d = begins + n + i * width, tl.arange(0, BLOCK_DIM)
    source = payload + at_codes
    if FRAMES:
        exponents = tl.where(live, exponents, 0)
        total = tl.sum(terms_of_bytes(begins + i - origin, row, exponents, 1))
    if BITS == 8:
        place, there = _places(width, live, d, BLOCK_ROWS)
        q = tl.load(source + place, mask=there, other=0).to(tl.int32)
        if FRAMES:
            total += _sum_of_codes(at_codes - origin, q, width, BLOCK_ROWS, BLOCK_DIM)
    else:
        WORDS: tl.constexpr = (BLOCK_DIM + 3) // 4
        word = tl.zeros([WORDS, BLOCK_ROWS], tl.int32)
        for t in tl.static_range(3):
            place, there = _places(width, live, 3 * tl.arange(0, WORDS) + t, BLOCK_ROWS)
            byte = tl.load(source + tl.trans(place), mask=tl.trans(there), other=0)
            word |= byte.to(tl.int32) << (8 * t)
        word = tl.trans(word)
        if FRAMES:
            place = (row * width)[:, None] + 3 * tl.arange(0, WORDS)[None, :]
            total += tl.sum(terms_of_bytes(at_codes - origin, place, word, 3))
        PER: tl.constexpr = 4 if BLOCK_DIM >= 4 else BLOCK_DIM
        parts = word[:, :, None] >> (tl.arange(0, PER) * 6)[None, None, :]
        q = tl.reshape(parts, (BLOCK_ROWS, BLOCK_DIM)) & 63

    code = q & (SIGN - 1)
    f = code >> M
    k = code - (f << M) + tl.where(f > 0, 1 << M, 0)
    y = k.to(tl.float32) * power_of_two(tl.maximum(f, 1) - TOP - M)
    near, far = _factors_of(e)
    x = tl.minimum(y * near[:, None] * far[:, None], MOST)  # y may be 2^128, rounded up
    x = tl.where(code == LARGEST + 1, float("inf"), x)
    x *= tl.where(q >= SIGN, -1.0, 1.0)  # not -x, which Triton takes for 0 - x: never -0
    x = tl.where((code > LARGEST + 1) | (q == SIGN), float("nan"), x)
    mask = live[:, None] & (d < dim)[None, :]
    tl.store(out + begin + (away[:, None] + d[None, :]), to_store(x, ROWS), mask=mask)
    if FRAMES:
        check_rows(
            payload, total, begins + n * (1 + width), origin, segment, n, i, headers, table,
            frame_of, flag, call, BLOCK_ROWS,
        )  # fmt: skip
