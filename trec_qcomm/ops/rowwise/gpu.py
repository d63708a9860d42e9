"""Row-wise quantization in Triton. Same bytes as reference.py.

Encoding reads the rows twice, in three launches: the largest magnitude of each segment, then the
segments' headers (and the zeros after their last byte), then the rows. Decoding is two launches. A
program takes BLOCK_ROWS whole rows. Each lane stores and loads one byte of codes, so alignment does
not matter.
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
    words,
)
from trec_qcomm.ops.rowwise.reference import MAX_EXPONENT, MIN_EXPONENT

_INF = tl.constexpr(0x7F800000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_FLT_MAX = tl.constexpr(3.4028234663852886e38)
_CLAMPED = tl.constexpr(-105)  # cpu.py says why
_MIN_EXPONENT = tl.constexpr(MIN_EXPONENT)
_MAX_EXPONENT = tl.constexpr(MAX_EXPONENT)
_HEADERS = 128  # segments whose headers one program writes or checks


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    bits: int,
    stochastic: bool,
    seed: int,
) -> Tensor:
    """Write the segments; return [1] int32, the first one that holds NaN or inf, or -1."""
    batch = DeviceSegments.from_segments(segments, at, values.device)
    amax = torch.zeros(batch.num_segments, dtype=torch.int32, device=values.device)
    nonfinite, halves = no_segment(values.device), words(payload, torch.int16)
    seeds = halves_of(seed)
    launch(_largest, batch.num_blocks, values, amax, nonfinite, *batch.layout, **batch.tiling)
    launch(
        _write_headers, batch.num_blocks_of(_HEADERS), amax, payload, halves, *batch.layout,
        BITS=bits, BLOCK=_HEADERS,
    )  # fmt: skip
    launch(
        _quantize, batch.num_blocks, values, amax, payload, halves, batch.numbers, *seeds,
        *batch.layout, BITS=bits, STOCHASTIC=stochastic, **batch.tiling,
    )  # fmt: skip
    return nonfinite


def decode(encoded: Encoded, segments: Segments, out: Tensor, *, bits: int) -> Tensor:
    """Write the rows; return [1] int32, the first segment with an exponent that no encoder writes,
    or -1."""
    batch, payload = DeviceSegments.from_segments(segments, encoded.at, out.device), encoded.payload
    wrong, halves = no_segment(out.device), words(payload, torch.int16)
    headers = batch.num_blocks_of(_HEADERS)
    launch(_check_headers, headers, halves, wrong, *batch.layout, BLOCK=_HEADERS)
    launch(
        _dequantize,
        batch.num_blocks,
        payload,
        halves,
        out,
        *batch.layout,
        BITS=bits,
        **batch.tiling,
    )
    return wrong


@triton.jit
def _largest(
    values, amax, first_bad, offsets, start, stride, at, num_segments, num_rows, dim,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Raise amax [S] int32, 0 before, to the bits of each segment's largest finite magnitude.

    Magnitudes are ordered as their bits are.
    """
    live, segment, _, begin = rows_of_block(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    d = tl.arange(0, BLOCK_DIM)
    mask = live[:, None] & (d < dim)[None, :]
    x = tl.load(values + begin[:, None] + d[None, :], mask=mask, other=0.0)
    bits = x.to(tl.int32, bitcast=True) & _MAGNITUDE
    largest = tl.max(tl.where(bits < _INF, bits, 0), 1)
    bad = tl.max(bits, 1) >= _INF
    note_first(first_bad, bad, segment)
    lowest = tl.min(segment, 0)
    if lowest == tl.max(segment, 0):
        tl.atomic_max(amax + lowest, tl.max(largest, 0))
    else:
        tl.atomic_max(amax + segment, largest, mask=live)


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
def _write_headers(
    amax, payload, halves, offsets, start, stride, at, num_segments, num_rows, dim,
    BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the exponent of each segment, and zeros after its rows up to a multiple of 8 bytes."""
    segment = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = segment < num_segments
    place = tl.load(at + segment, mask=live, other=0)
    begin = tl.load(offsets + segment, mask=live, other=0)
    n = tl.load(offsets + segment + 1, mask=live, other=0) - begin
    k = _exponent(tl.load(amax + segment, mask=live, other=0))
    header = halves + place // 2
    tl.store(header, k.to(tl.int16), mask=live)
    for t in tl.static_range(1, 4):
        tl.store(header + t, tl.zeros_like(k).to(tl.int16), mask=live)
    end = 8 + n * (4 + (dim * BITS + 7) // 8)
    for t in tl.static_range(7):
        beyond = live & (end + t < (end + 7) // 8 * 8)
        tl.store(payload + place + end + t, tl.zeros_like(k).to(tl.uint8), mask=beyond)


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
    """Return the dither of the values of these numbers, as reference.dither defines it. All
    arguments are uint32."""
    h = number + seed_low
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = h ^ seed_high
    h = (h ^ (h >> 15)) * 0x846CA68B
    return ((h ^ (h >> 16)) >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


# Without this, a seed of 1 becomes a constant, and one divisible by 16 compiles another kernel.
@triton.jit(do_not_specialize=["seed_low", "seed_high"])
def _quantize(
    values, amax, payload, halves, numbers, seed_low, seed_high,
    offsets, start, stride, at, num_segments, num_rows, dim,
    BITS: tl.constexpr, STOCHASTIC: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Write scale, low and codes of each row; the names are those of reference.quantize_rows."""
    TOP: tl.constexpr = (1 << BITS) - 1
    live, segment, i, begin = rows_of_block(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    d = tl.arange(0, BLOCK_DIM)
    mask = live[:, None] & (d < dim)[None, :]
    x = tl.load(values + begin[:, None] + d[None, :], mask=mask, other=0.0)
    finite = (x.to(tl.int32, bitcast=True) & _MAGNITUDE) < _INF
    clean = tl.min((finite | ~mask).to(tl.int32), 1) > 0
    first, second = factors_of(_exponent(tl.load(amax + segment)))
    y = tl.where(finite, x, 0.0) * first[:, None] * second[:, None]
    counted = mask & finite
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
    if STOCHASTIC:
        number = ((tl.load(numbers + segment) + i * dim)[:, None] + d[None, :]).to(tl.uint32)
        u = dither(number, seed_low.to(tl.uint32), seed_high.to(tl.uint32))
    else:
        u = 0.5
    above = tl.where(counted, y - low[:, None], 0.0)
    q = tl.minimum((above * inverse[:, None] + u).to(tl.int32), levels[:, None])
    q = tl.where(finite, q, tl.where(x == float("inf"), TOP - 2, tl.where(x < 0, TOP - 1, TOP)))
    q = tl.where(mask, q, 0)

    n = tl.load(offsets + segment + 1) - tl.load(offsets + segment)
    place = tl.load(at + segment) + 8
    marked = scale_bits | tl.where(clean, 0, 0x8000)
    tl.store(halves + place // 2 + i, marked.to(tl.int16), mask=live)
    tl.store(halves + place // 2 + n + i, low_bits.to(tl.int16), mask=live)
    PER: tl.constexpr = 8 // BITS
    BYTES: tl.constexpr = (BLOCK_DIM + PER - 1) // PER
    num_bytes = (dim * BITS + 7) // 8
    if BLOCK_DIM >= PER:
        parts = tl.reshape(q, (BLOCK_ROWS, BYTES, PER)) << (tl.arange(0, PER) * BITS)[None, None, :]
        codes = tl.sum(parts, 2)
    else:
        codes = tl.sum(q << (d * BITS)[None, :], 1)[:, None]
    j = tl.arange(0, BYTES)
    to = (place + 4 * n + i * num_bytes)[:, None] + j[None, :]
    tl.store(payload + to, codes.to(tl.uint8), mask=live[:, None] & (j < num_bytes)[None, :])


@triton.jit
def _check_headers(
    halves, first_bad, offsets, start, stride, at, num_segments, num_rows, dim,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Note the first segment with an exponent that no encoder writes."""
    segment = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = segment < num_segments
    k = tl.load(halves + tl.load(at + segment, mask=live, other=0) // 2, mask=live, other=0)
    note_first(first_bad, live & ((k < _MIN_EXPONENT) | (k > _MAX_EXPONENT)), segment)


@triton.jit
def _dequantize(
    payload, halves, out, offsets, start, stride, at, num_segments, num_rows, dim,
    BITS: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Write the rows. Rows of a segment with a bad exponent become anything."""
    TOP: tl.constexpr = (1 << BITS) - 1
    live, segment, i, begin = rows_of_block(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    n = tl.load(offsets + segment + 1) - tl.load(offsets + segment)
    place = tl.load(at + segment)
    k = tl.load(halves + place // 2).to(tl.int32)
    k = tl.minimum(tl.maximum(k, _MIN_EXPONENT), _MAX_EXPONENT)
    place = place + 8
    marked = tl.load(halves + place // 2 + i).to(tl.int32)
    scale = _half_value(marked & 0x7FFF)
    low = _half_value(tl.load(halves + place // 2 + n + i).to(tl.int32))
    d = tl.arange(0, BLOCK_DIM)
    mask = live[:, None] & (d < dim)[None, :]
    codes = place + 4 * n + i * ((dim * BITS + 7) // 8)
    packed = tl.load(payload + codes[:, None] + (d * BITS // 8)[None, :], mask=mask, other=0)
    q = (packed.to(tl.int32) >> (d * BITS % 8)[None, :]) & TOP
    y = q.to(tl.float32) * scale[:, None] + low[:, None]
    first, second = factors_of(-k)
    x = y * first[:, None] * second[:, None]
    clamped = (k <= _CLAMPED)[:, None] & (tl.abs(y) <= _FLT_MAX)
    x = tl.where(clamped, tl.minimum(tl.maximum(x, -_FLT_MAX), _FLT_MAX), x)
    dirty = ((marked & 0x8000) != 0)[:, None]
    x = tl.where(dirty & (q == TOP - 2), float("inf"), x)
    x = tl.where(dirty & (q == TOP - 1), float("-inf"), x)
    x = tl.where(dirty & (q == TOP), float("nan"), x)
    tl.store(out + begin[:, None] + d[None, :], x, mask=mask)
