"""Row-wise quantization in Triton. Same bytes as reference.py.

Encoding is one launch, and so is decoding. A program takes BLOCK_ROWS whole rows of one segment.
Codes are moved in words of 32 bits if a row fills them, else byte by byte.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.batch.rank_sum.gpu import plus
from trec_qcomm.ops.device import no_segment, power_of_two, words
from trec_qcomm.ops.frames.gpu import FramesOfSegments, terms, terms_of_bytes
from trec_qcomm.ops.row_blocks import (
    RowBlocks,
    check_rows,
    note_segment,
    place_of,
    rows_of_program,
    seal_rows,
    store_zeros,
)
from trec_qcomm.ops.rowwise import reference
from trec_qcomm.ops.value_bits import (
    FP16,
    FP32,
    INF,
    MAGNITUDE,
    MAX_BF16,
    MAX_FP16,
    MAX_FP32,
    float_of,
    loadable,
    to_store,
)

_MIN_EXPONENT = tl.constexpr(reference.MIN_EXPONENT)
_BIAS = tl.constexpr(reference.BIAS)
_HUGE = tl.constexpr(reference.HUGE)
_MARK = tl.constexpr(reference.MARK)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    bits: int,
    stochastic: bool,
    seed: int,
    frames: FramesOfSegments | None = None,
) -> tuple[Tensor, None]:
    """Write the segments, and seal their frames if these are given, without waiting for the GPU.

    Returns: [1] int32, the first segment that holds NaN or inf, or -1; and None, because flushed
        values are not counted.
    """
    blocks = RowBlocks.from_segments(segments, at, values.device, frames)
    nonfinite, (rows, kind) = no_segment(values.device), loadable(values)
    blocks.launch(
        _quantize, rows, payload, words(payload, torch.int32), nonfinite, blocks.numbers,
        *halves_of(seed), ROWS=kind, BITS=bits, STOCHASTIC=stochastic,
        WORDS=_fills_words(segments, bits), frames=frames,
    )  # fmt: skip
    return nonfinite, None


def decode(encoded: Encoded, segments: Segments, out: Tensor, *, bits: int) -> Tensor:
    """Write the rows.

    Returns: [1] int32, the first segment with an exponent that no encoder writes, or -1.
    """
    blocks = RowBlocks.from_segments(segments, encoded.at, out.device, encoded.frames)
    payload, wrong, (rows, kind) = encoded.payload, no_segment(out.device), loadable(out)
    blocks.launch(
        _dequantize, payload, words(payload, torch.int32), rows, wrong, ROWS=kind, BITS=bits,
        WORDS=_fills_words(segments, bits), frames=encoded.frames,
    )  # fmt: skip
    return wrong


def decode_sum(
    encoded: Encoded, segments: Segments, out: Tensor, *, bits: int, held_at: int
) -> Tensor:
    """Write the sums.

    Returns: [1] int32, the first segment of all parts with an exponent that no encoder writes, or
        -1.
    """
    blocks = RowBlocks.from_segments(segments, encoded.at, out.device, encoded.frames)
    payload, wrong = encoded.payload, no_segment(out.device)
    num_terms = len(encoded.at) // max(segments.num_segments, 1) + (held_at >= 0)
    blocks.launch(
        _dequantize_sum, payload, words(payload, torch.int32), out, wrong, num_terms, held_at,
        BITS=bits, WORDS=_fills_words(segments, bits), frames=encoded.frames,
    )  # fmt: skip
    return wrong


def _fills_words(segments: Segments, bits: int) -> bool:
    """Return whether a row's codes are whole words of 32 bits."""
    return segments.dim * bits % 32 == 0


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
def _grid(header, BITS: tl.constexpr):
    """Return low, scale and the factor of the values of each row, as reference.grid does."""
    e = ((header >> 24) & 0xFF) - _BIAS
    huge = e > _HUGE
    e = tl.where(huge, e - 2, e)
    low = ((header << 8) >> 20).to(tl.float32) * power_of_two(e - 11)
    scale = ((header & (_MARK - 1)) + ((e + (_BIAS - 14 - BITS)) << 7)) << 16
    return low, scale.to(tl.float32, bitcast=True), tl.where(huge, 4.0, 1.0)


@triton.jit
def _headers(x, inside, BITS: tl.constexpr):
    """Return what encodes a tile of rows, as reference.headers does.

    Args: inside: which columns exist. Those that do not hold 0.
    Returns: of each row: header, low, scale, factor of values to be encoded, number of levels. And
        whether all rows are finite.
    """
    TOP: tl.constexpr = (1 << BITS) - 1
    magnitude = x.to(tl.int32, bitcast=True) & MAGNITUDE
    clean = tl.max(magnitude, 1) < INF
    all_clean = tl.min(clean.to(tl.int32), 0) > 0
    lo = tl.min(tl.where(inside, x, float("inf")), 1)
    hi = tl.max(tl.where(inside, x, float("-inf")), 1)
    if not all_clean:
        counted = inside & (magnitude < INF)
        lo = tl.min(tl.where(counted, x, float("inf")), 1)
        hi = tl.max(tl.where(counted, x, float("-inf")), 1)
        none = lo > hi
        lo, hi = tl.where(none, 0.0, lo), tl.where(none, 0.0, hi)
    amax = tl.maximum(-lo, hi).to(tl.int32, bitcast=True) & MAGNITUDE
    e = tl.maximum((amax >> 23) - 126, _MIN_EXPONENT)
    huge = e > _HUGE
    near, factor = tl.where(huge, e - 2, e), tl.where(huge, 0.25, 1.0)
    lo, hi = lo * factor, hi * factor
    levels = tl.where(clean, TOP, TOP - 3)
    if TOP == 3:
        lo = tl.where(clean, lo, lo * 0.5 + hi * 0.5)
        hi = tl.where(clean, hi, lo)
    exact = lo * power_of_two(11 - near)
    number = exact.to(tl.int32)
    number -= (number.to(tl.float32) > exact).to(tl.int32)  # tl.floor flushes subnormal numbers
    low = number.to(tl.float32) * power_of_two(near - 11)
    step = tl.div_rn(hi - low, tl.maximum(levels, 1).to(tl.float32)).to(tl.int32, bitcast=True)
    least = (near + (_BIAS - 14 - BITS)) << 7
    step = tl.maximum((step + 0xFFFF) >> 16, least)  # 0xFFFF rounds up
    scale = (step << 16).to(tl.float32, bitcast=True)
    header = (step - least) | tl.where(clean, 0, _MARK) | ((number & 0xFFF) << 12)
    return header | ((e + _BIAS) << 24), low, scale, factor, levels, all_clean


@triton.jit
def _pack(q, BITS: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Return codes as words of 32 bits, or as bytes."""
    PER: tl.constexpr = (32 if WORDS else 8) // BITS
    EACH: tl.constexpr = PER if PER < DIM else DIM  # both are powers of two
    parts = tl.reshape(q, (ROWS, DIM // EACH, EACH))
    return tl.sum(parts << (tl.arange(0, EACH) * BITS)[None, None, :], 2)


# Without this, a seed of 1 becomes a constant, and one divisible by 16 compiles another kernel.
@triton.jit(do_not_specialize=["seed_low", "seed_high", "call"])
def _quantize(
    values, payload, words, nonfinite, numbers, seed_low, seed_high,
    first, offsets, start, stride, at, num_segments, dim, headers, table, frame_of, flag, call,
    ROWS: tl.constexpr, BITS: tl.constexpr, STOCHASTIC: tl.constexpr, WORDS: tl.constexpr,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, FRAMES: tl.constexpr,
):  # fmt: skip
    """Write header and codes of each row, and the end of each segment.

    The names are those of reference.quantize_rows. WORDS: whether a row's codes fill words.
    """
    TOP: tl.constexpr = (1 << BITS) - 1
    segment, n, i, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    place, origin = place_of(segment, at, frame_of, table, FRAMES)
    d = tl.arange(0, BLOCK_DIM)
    inside = (d < dim)[None, :]
    source = values + begin + (away[:, None] + d[None, :])
    x = float_of(tl.load(source, mask=live[:, None] & inside, other=0), ROWS)
    header, low, scale, factor, levels, all_clean = _headers(x, inside, BITS)
    note_segment(nonfinite, not all_clean, segment)
    inverse = tl.where(levels > 0, tl.div_rn(1.0, scale), 0.0)
    row = tl.arange(0, BLOCK_ROWS)
    if STOCHASTIC:
        number = (tl.load(numbers + segment) + i * dim).to(tl.uint32)
        number += (row * dim).to(tl.uint32)[:, None] + d.to(tl.uint32)[None, :]
        u = dither(number, seed_low.to(tl.uint32), seed_high.to(tl.uint32))
    else:
        u = 0.5
    above = x * factor[:, None] - low[:, None]
    q = tl.minimum((above * inverse[:, None] + u).to(tl.int32), levels[:, None])
    if not all_clean:
        finite = (x.to(tl.int32, bitcast=True) & MAGNITUDE) < INF
        rest = tl.where(x < 0, TOP - 1, TOP)
        q = tl.where(finite, q, tl.where(x == float("inf"), TOP - 2, rest))
    codes = _pack(tl.where(inside, q, 0), BITS, WORDS, BLOCK_ROWS, BLOCK_DIM)

    tl.store(words + place // 4 + i + row, header, mask=live)
    width, at_codes = (dim * BITS + 7) // 8, place + 4 * n
    SIZE: tl.constexpr = 4 if WORDS else 1
    j, width_in_words = tl.arange(0, (BLOCK_DIM * BITS + 7) // (8 * SIZE))[None, :], width // SIZE
    there, k = live[:, None] & (j < width_in_words), (row * width_in_words)[:, None] + j
    if WORDS:
        tl.store(words + at_codes // 4 + i * width_in_words + k, codes, mask=there)
    else:
        tl.store(payload + at_codes + i * width + k, codes.to(tl.uint8), mask=there)
    if i == 0:
        store_zeros(payload, at_codes + n * width)
    if FRAMES:
        codes, begin = tl.where(there, codes, 0), at_codes + i * width - origin
        total = tl.sum(terms(place + 4 * i - origin, row, tl.where(live, header, 0)))
        total += tl.sum(terms(begin, k, codes) if WORDS else terms_of_bytes(begin, k, codes, 1))
        seal_rows(payload, total, segment, n, i, headers, table, frame_of, call, BLOCK_ROWS)


@triton.jit
def _codes(
    payload, words, at_codes, origin, i, row, live, dim,
    BITS: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    FRAMES: tl.constexpr,
):  # fmt: skip
    """Return the codes of a tile of rows, and the sum of their terms if FRAMES."""
    TOP: tl.constexpr = (1 << BITS) - 1
    PER: tl.constexpr = (32 if WORDS else 8) // BITS
    total = tl.cast(0, tl.uint64)
    if WORDS:
        j, width = tl.arange(0, DIM // PER)[None, :], dim // PER
        there, k = live[:, None] & (j < width), (row * width)[:, None] + j
        word = tl.load(words + at_codes // 4 + i * width + k, mask=there, other=0)
        if FRAMES:
            total = tl.sum(terms(at_codes + 4 * i * width - origin, k, word))
        parts = word[:, :, None] >> (tl.arange(0, PER) * BITS)[None, None, :]
        q = tl.reshape(parts, (ROWS, DIM)) & TOP
    else:
        d, width = tl.arange(0, DIM)[None, :], (dim * BITS + 7) // 8
        there, k = live[:, None] & (d < dim), (row * width)[:, None] + d // PER
        byte = tl.load(payload + at_codes + i * width + k, mask=there, other=0)
        if FRAMES:
            once = tl.where(d % PER == 0, byte, 0)
            total = tl.sum(terms_of_bytes(at_codes + i * width - origin, k, once, 1))
        q = (byte.to(tl.int32) >> (d % PER * BITS)) & TOP
    return q, total


@triton.jit
def _values(
    payload, words, place, origin, first_bad, number, n, i, live, dim, LARGEST: tl.constexpr,
    BITS: tl.constexpr, WORDS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    FRAMES: tl.constexpr,
):  # fmt: skip
    """Return the values of a tile of rows, and the sum of their terms if FRAMES.

    Values of a row with a bad exponent are anything.

    Args: place, origin: where the segment and its frame begin.  number: the segment's, for
        `first_bad`.
        n: number of its rows.  i, live: the tile's first row, and which rows it has.
        LARGEST: largest finite value.
    """
    TOP: tl.constexpr = (1 << BITS) - 1
    row = tl.arange(0, BLOCK_ROWS)
    header = tl.load(words + place // 4 + i + row, mask=live, other=_BIAS << 24)
    least = tl.min(header.to(tl.uint32, bitcast=True), 0)
    note_segment(first_bad, least < (_MIN_EXPONENT + _BIAS) << 24, number)
    at_codes = place + 4 * n
    q, total = _codes(
        payload, words, at_codes, origin, i, row, live, dim, BITS, WORDS, BLOCK_ROWS, BLOCK_DIM,
        FRAMES,
    )  # fmt: skip
    if FRAMES:
        total += tl.sum(terms(place + 4 * i - origin, row, tl.where(live, header, 0)))
    low, scale, factor = _grid(header, BITS)
    x = (q.to(tl.float32) * scale[:, None] + low[:, None]) * factor[:, None]
    x = tl.minimum(tl.maximum(x, -LARGEST), LARGEST)
    special = q >= tl.where((header & _MARK) != 0, TOP - 2, TOP + 1)[:, None]
    rest = tl.where(q == TOP - 1, float("-inf"), float("nan"))
    return tl.where(special, tl.where(q == TOP - 2, float("inf"), rest), x), total


@triton.jit(do_not_specialize=["call"])
def _dequantize(
    payload, words, out, first_bad, first, offsets, start, stride, at, num_segments, dim,
    headers, table, frame_of, flag, call,
    ROWS: tl.constexpr, BITS: tl.constexpr, WORDS: tl.constexpr, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    FRAMES: tl.constexpr,
):  # fmt: skip
    """Write the rows."""
    segment, n, i, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    LARGEST: tl.constexpr = MAX_FP32 if ROWS == FP32 else MAX_FP16 if ROWS == FP16 else MAX_BF16
    place, origin = place_of(segment, at, frame_of, table, FRAMES)
    x, total = _values(
        payload, words, place, origin, first_bad, segment, n, i, live, dim, LARGEST,
        BITS, WORDS, BLOCK_ROWS, BLOCK_DIM, FRAMES,
    )  # fmt: skip
    d = tl.arange(0, BLOCK_DIM)
    mask = live[:, None] & (d < dim)[None, :]
    tl.store(out + begin + (away[:, None] + d[None, :]), to_store(x, ROWS), mask=mask)
    if FRAMES:
        check_rows(
            payload, total, place + n * (4 + (dim * BITS + 7) // 8), origin, segment, n, i,
            headers, table, frame_of, flag, call, BLOCK_ROWS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_terms", "held_at", "call"])
def _dequantize_sum(
    payload, words, out, first_bad, num_terms, held_at,
    first, offsets, start, stride, at, num_segments, dim, headers, table, frame_of, flag, call,
    BITS: tl.constexpr, WORDS: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, FRAMES: tl.constexpr,
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
            place, origin = place_of(number, at, frame_of, table, FRAMES)
            x, parts = _values(
                payload, words, place, origin, first_bad, number, n, i, live, dim, MAX_FP32,
                BITS, WORDS, BLOCK_ROWS, BLOCK_DIM, FRAMES,
            )  # fmt: skip
            if FRAMES:
                check_rows(
                    payload, parts, place + n * (4 + (dim * BITS + 7) // 8), origin, number, n, i,
                    headers, table, frame_of, flag, call, BLOCK_ROWS,
                )  # fmt: skip
            number += num_segments
        total = tl.where(term == 0, x, plus(total, x))  # 0 + -0 is not -0
        term += 1
    tl.store(to, total, mask=mask)
