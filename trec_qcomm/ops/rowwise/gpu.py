"""Row-wise quantization in Triton. Same bytes as reference.py.

Encoding reads the rows twice, in two launches: once for the largest magnitude of each segment, once
to encode. The program of a segment's first rows also writes its header. Decoding is one launch. A
program takes BLOCK_ROWS whole rows of one segment. Codes are moved in words of 32 bits if a row
fills them, else byte by byte.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.batch.rank_sum.gpu import plus
from trec_qcomm.ops.device import no_segment, power_of_two, words
from trec_qcomm.ops.row_blocks import RowBlocks, note_segment, rows_of_program, store_zeros
from trec_qcomm.ops.rowwise.reference import MAX_EXPONENT, MIN_EXPONENT

_INF = tl.constexpr(0x7F800000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_FLT_MAX = tl.constexpr(3.4028234663852886e38)
_CLAMPED = tl.constexpr(-105)  # cpu.py says why
_MIN_EXPONENT = tl.constexpr(MIN_EXPONENT)
_MAX_EXPONENT = tl.constexpr(MAX_EXPONENT)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    bits: int,
    stochastic: bool,
    seed: int,
) -> tuple[Tensor, None]:
    """Write the segments, without waiting for the GPU.

    Returns: [1] int32, the first segment that holds NaN or inf, or -1; and None, because flushed
        values are not counted.
    """
    blocks = RowBlocks.from_segments(segments, at, values.device)
    # No segment that is not finite, and no magnitude of any segment yet.
    # Both begin at multiples of 16 bytes: Triton compiles a kernel anew for others.
    noted = torch.full((blocks.num_segments + 4,), -1, dtype=torch.int32, device=values.device)
    nonfinite, amax = noted[:1], noted[4:]
    blocks.launch(_largest, values, amax, nonfinite)
    blocks.launch(
        _quantize, values, amax, payload, words(payload, torch.int16), words(payload, torch.int32),
        blocks.numbers, *halves_of(seed), BITS=bits, STOCHASTIC=stochastic,
        WORDS=_fills_words(segments, bits),
    )  # fmt: skip
    return nonfinite, None


def decode(encoded: Encoded, segments: Segments, out: Tensor, *, bits: int) -> Tensor:
    """Write the rows.

    Returns: [1] int32, the first segment with an exponent that no encoder writes, or -1.
    """
    blocks = RowBlocks.from_segments(segments, encoded.at, out.device)
    payload, wrong = encoded.payload, no_segment(out.device)
    blocks.launch(
        _dequantize, payload, words(payload, torch.int16), words(payload, torch.int32), out, wrong,
        BITS=bits, WORDS=_fills_words(segments, bits),
    )  # fmt: skip
    return wrong


def decode_sum(
    encoded: Encoded, segments: Segments, out: Tensor, *, bits: int, held_at: int
) -> Tensor:
    """Write the sums.

    Returns: [1] int32, the first segment of all parts with an exponent that no encoder writes, or
        -1.
    """
    blocks = RowBlocks.from_segments(segments, encoded.at, out.device)
    payload, wrong = encoded.payload, no_segment(out.device)
    num_terms = len(encoded.at) // max(segments.num_segments, 1) + (held_at >= 0)
    blocks.launch(
        _dequantize_sum, payload, words(payload, torch.int16), words(payload, torch.int32), out,
        wrong, num_terms, held_at, BITS=bits, WORDS=_fills_words(segments, bits),
    )  # fmt: skip
    return wrong


def _fills_words(segments: Segments, bits: int) -> bool:
    """Return whether a row's codes are whole words of 32 bits."""
    return segments.dim * bits % 32 == 0


@triton.jit
def _largest(
    values, amax, first_bad, first, offsets, start, stride, at, num_segments, dim,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Raise amax [S] int32, -1 before, to the bits of each segment's largest finite magnitude.

    Magnitudes are ordered as their bits are.
    """
    segment, _, _, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    d = tl.arange(0, BLOCK_DIM)
    mask = live[:, None] & (d < dim)[None, :]
    x = tl.load(values + begin + (away[:, None] + d[None, :]), mask=mask, other=0.0)
    bits = tl.ravel(x.to(tl.int32, bitcast=True) & _MAGNITUDE)
    note_segment(first_bad, tl.max(bits, 0) >= _INF, segment)
    tl.atomic_max(amax + segment, tl.max(tl.where(bits < _INF, bits, 0), 0), sem="relaxed")


@triton.jit
def _exponent(amax):
    """Return k such that amax * 2^k lies in [2^13, 2^14); 0 for 0. amax: its bits."""
    normal = 13 - ((amax >> 23) - 127)
    # A denormal is its bits times 2^-149, and its bits are exact as a float.
    log = (amax.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    k = tl.where(amax >= (1 << 23), normal, 13 + 149 - log)
    return tl.where(amax == 0, 0, k)


@triton.jit
def factors_of(k):
    """Return first and second such that x * 2^k == x * first * second.

    The multiplication that may leave the normal range is the second.
    """
    near = tl.minimum(tl.maximum(k, -126), 126)
    main, rest = power_of_two(near), power_of_two(k - near)
    return tl.where(k < 0, rest, main), tl.where(k < 0, main, rest)


@triton.jit
def _half_down(x):
    """Return the bits of the largest float16 <= x, as int32; zeros become +0."""
    h = x.to(tl.float16)
    bits = h.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    lower = tl.where(bits < 0x8000, bits - 1, bits + 1)
    bits = tl.where(h.to(tl.float32) > x, lower, bits)
    return tl.where(bits == 0x8000, 0, bits)


@triton.jit
def _half_up(x):
    """Return the bits of the smallest float16 >= x >= 0, as int32; zeros become +0."""
    h = x.to(tl.float16)
    bits = h.to(tl.int16, bitcast=True).to(tl.int32) & 0x7FFF
    return tl.where(h.to(tl.float32) < x, bits + 1, bits)


@triton.jit
def _half_value(bits):
    """Return as float32 the float16 that has these int32 bits."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


def halves_of(seed: int) -> tuple[int, int]:
    """Return the low and the high 32 bits of a seed as signed numbers, so kernels take int32."""
    low, high = seed & 0xFFFFFFFF, seed >> 32
    return (low ^ 2**31) - 2**31, (high ^ 2**31) - 2**31


@triton.jit
def dither(number, seed_low, seed_high):
    """Return the dither of the values of these numbers, uint32, as reference.dither defines it."""
    h = number + seed_low
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = h ^ seed_high
    h = (h ^ (h >> 15)) * 0x846CA68B
    return ((h ^ (h >> 16)) >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit
def _scales(x, inside, first, second, BITS: tl.constexpr):
    """Return of each row of a tile: whether it is finite, its number of levels, the bits of scale
    and low, and both as reference.quantize_rows has them, with 1 / scale."""
    TOP: tl.constexpr = (1 << BITS) - 1
    magnitude = x.to(tl.int32, bitcast=True) & _MAGNITUDE
    clean = tl.max(magnitude, 1) < _INF
    counted = inside & (magnitude < _INF)
    y = x * first * second
    lo = tl.min(tl.where(counted, y, float("inf")), 1)
    hi = tl.max(tl.where(counted, y, float("-inf")), 1)
    none = lo > hi
    lo, hi = tl.where(none, 0.0, lo), tl.where(none, 0.0, hi)
    levels = tl.where(clean, TOP, TOP - 3)
    if TOP == 3:
        lo = tl.where(clean, lo, lo * 0.5 + hi * 0.5)
    low_bits = _half_down(lo)
    low = _half_value(low_bits)
    width = tl.where(levels > 0, hi - low, 0.0)
    scale_bits = _half_up(tl.div_rn(width, tl.maximum(levels, 1).to(tl.float32)))
    scale = _half_value(scale_bits)
    inverse = tl.where(scale > 0, tl.div_rn(1.0, tl.where(scale > 0, scale, 1.0)), 0.0)
    return clean, levels, scale_bits, low_bits, low, inverse


@triton.jit
def _pack(q, BITS: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Return codes as words of 32 bits, or as bytes."""
    PER: tl.constexpr = (32 if WORDS else 8) // BITS
    EACH: tl.constexpr = PER if PER < DIM else DIM  # both are powers of two
    parts = tl.reshape(q, (ROWS, DIM // EACH, EACH))
    return tl.sum(parts << (tl.arange(0, EACH) * BITS)[None, None, :], 2)


# Without this, a seed of 1 becomes a constant, and one divisible by 16 compiles another kernel.
@triton.jit(do_not_specialize=["seed_low", "seed_high"])
def _quantize(
    values, amax, payload, halves, words, numbers, seed_low, seed_high,
    first, offsets, start, stride, at, num_segments, dim,
    BITS: tl.constexpr, STOCHASTIC: tl.constexpr, WORDS: tl.constexpr, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Write scale, low and codes of each row, and header and end of each segment.

    The names are those of reference.quantize_rows. WORDS: whether a row's codes fill words.
    """
    TOP: tl.constexpr = (1 << BITS) - 1
    segment, n, i, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    place, k = tl.load(at + segment), _exponent(tl.maximum(tl.load(amax + segment), 0))
    near, far = factors_of(k)
    d = tl.arange(0, BLOCK_DIM)
    inside = (d < dim)[None, :]
    source = values + begin + (away[:, None] + d[None, :])
    x = tl.load(source, mask=live[:, None] & inside, other=0.0)
    clean, levels, scale_bits, low_bits, low, inverse = _scales(x, inside, near, far, BITS)
    row = tl.arange(0, BLOCK_ROWS)
    if STOCHASTIC:
        number = (tl.load(numbers + segment) + i * dim).to(tl.uint32)
        number += (row * dim).to(tl.uint32)[:, None] + d.to(tl.uint32)[None, :]
        u = dither(number, seed_low.to(tl.uint32), seed_high.to(tl.uint32))
    else:
        u = 0.5
    above = x * near * far - low[:, None]
    q = tl.minimum((above * inverse[:, None] + u).to(tl.int32), levels[:, None])
    finite = (x.to(tl.int32, bitcast=True) & _MAGNITUDE) < _INF
    q = tl.where(finite, q, tl.where(x == float("inf"), TOP - 2, tl.where(x < 0, TOP - 1, TOP)))
    codes = _pack(tl.where(inside, q, 0), BITS, WORDS, BLOCK_ROWS, BLOCK_DIM)

    half = halves + place // 2
    marked = scale_bits | tl.where(clean, 0, 0x8000)
    tl.store(half + 4 + i + row, marked.to(tl.int16), mask=live)
    tl.store(half + 4 + n + i + row, low_bits.to(tl.int16), mask=live)
    width, at_codes = (dim * BITS + 7) // 8, place + 8 + 4 * n
    if WORDS:
        j, width_in_words = tl.arange(0, BLOCK_DIM * BITS // 32)[None, :], dim * BITS // 32
        to = words + at_codes // 4 + i * width_in_words + ((row * width_in_words)[:, None] + j)
        tl.store(to, codes, mask=live[:, None] & (j < width_in_words))
    else:
        j = tl.arange(0, (BLOCK_DIM * BITS + 7) // 8)[None, :]
        to = payload + at_codes + i * width + ((row * width)[:, None] + j)
        tl.store(to, codes.to(tl.uint8), mask=live[:, None] & (j < width))
    if i == 0:
        t = tl.arange(0, 4)
        tl.store(half + t, tl.where(t == 0, k, 0).to(tl.int16))
        store_zeros(payload, at_codes + n * width)


@triton.jit
def _codes(
    payload, words, at_codes, i, row, live, dim,
    BITS: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Return the codes of a tile of rows."""
    TOP: tl.constexpr = (1 << BITS) - 1
    PER: tl.constexpr = (32 if WORDS else 8) // BITS
    if WORDS:
        j, width = tl.arange(0, DIM // PER)[None, :], dim // PER
        source = words + at_codes // 4 + i * width + ((row * width)[:, None] + j)
        word = tl.load(source, mask=live[:, None] & (j < width), other=0)
        parts = word[:, :, None] >> (tl.arange(0, PER) * BITS)[None, None, :]
        q = tl.reshape(parts, (ROWS, DIM)) & TOP
    else:
        d, width = tl.arange(0, DIM)[None, :], (dim * BITS + 7) // 8
        source = payload + at_codes + i * width + ((row * width)[:, None] + d // PER)
        byte = tl.load(source, mask=live[:, None] & (d < dim), other=0)
        q = (byte.to(tl.int32) >> (d % PER * BITS)) & TOP
    return q


@triton.jit
def _values(
    payload, halves, words, place, first_bad, number, n, i, live, dim,
    BITS: tl.constexpr, WORDS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Return the values of a tile of rows. Those of a segment with a bad exponent are anything.

    Args: place: where the segment begins.  number: the segment's, for `first_bad`.
        n: number of its rows.  i, live: the tile's first row, and which rows it has.
    """
    TOP: tl.constexpr = (1 << BITS) - 1
    k = tl.load(halves + place // 2).to(tl.int32)
    note_segment(first_bad, (k < _MIN_EXPONENT) | (k > _MAX_EXPONENT), number)
    k = tl.minimum(tl.maximum(k, _MIN_EXPONENT), _MAX_EXPONENT)
    row, half = tl.arange(0, BLOCK_ROWS), halves + place // 2 + 4 + i
    marked = tl.load(half + row, mask=live, other=0).to(tl.int32)
    scale = _half_value(marked & 0x7FFF)
    low = _half_value(tl.load(half + n + row, mask=live, other=0).to(tl.int32))
    at_codes = place + 8 + 4 * n
    q = _codes(payload, words, at_codes, i, row, live, dim, BITS, WORDS, BLOCK_ROWS, BLOCK_DIM)
    near, far = factors_of(-k)
    x = (q.to(tl.float32) * scale[:, None] + low[:, None]) * near * far
    # The largest float32 may have been rounded up; only a damaged segment has an inf of its own.
    sound = (scale < float("inf")) & (tl.abs(low) < float("inf"))
    limit = tl.where((k <= _CLAMPED) & sound, _FLT_MAX, float("inf"))[:, None]
    x = tl.maximum(x, -limit, propagate_nan=tl.PropagateNan.ALL)
    x = tl.minimum(x, limit, propagate_nan=tl.PropagateNan.ALL)
    special = q >= tl.where((marked & 0x8000) != 0, TOP - 2, TOP + 1)[:, None]
    rest = tl.where(q == TOP - 1, float("-inf"), float("nan"))
    return tl.where(special, tl.where(q == TOP - 2, float("inf"), rest), x)


@triton.jit
def _dequantize(
    payload, halves, words, out, first_bad, first, offsets, start, stride, at, num_segments, dim,
    BITS: tl.constexpr, WORDS: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Write the rows."""
    segment, n, i, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    x = _values(
        payload, halves, words, tl.load(at + segment), first_bad, segment, n, i, live, dim,
        BITS, WORDS, BLOCK_ROWS, BLOCK_DIM,
    )  # fmt: skip
    d = tl.arange(0, BLOCK_DIM)
    mask = live[:, None] & (d < dim)[None, :]
    tl.store(out + begin + (away[:, None] + d[None, :]), x, mask=mask)


@triton.jit(do_not_specialize=["num_terms", "held_at"])
def _dequantize_sum(
    payload, halves, words, out, first_bad, num_terms, held_at,
    first, offsets, start, stride, at, num_segments, dim,
    BITS: tl.constexpr, WORDS: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Write the sums of the rows of all parts. at: [number of parts, num_segments]."""
    segment, n, i, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    d = tl.arange(0, BLOCK_DIM)
    mask = live[:, None] & (d < dim)[None, :]
    to = out + begin + (away[:, None] + d[None, :])
    total = tl.full([BLOCK_ROWS, BLOCK_DIM], 0.0, tl.float32)
    term, number = 0, segment
    while term < num_terms:
        if term == held_at:
            x = tl.load(to, mask=mask, other=0.0)
        else:
            x = _values(
                payload, halves, words, tl.load(at + number), first_bad, number, n, i, live, dim,
                BITS, WORDS, BLOCK_ROWS, BLOCK_DIM,
            )  # fmt: skip
            number += num_segments
        total = tl.where(term == 0, x, plus(total, x))  # 0 + -0 is not -0
        term += 1
    tl.store(to, total, mask=mask)
