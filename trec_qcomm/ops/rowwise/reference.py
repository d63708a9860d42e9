"""Row-wise quantization in plain torch: the definition, written to be read.

A segment's rows x become y = x * 2^k with 2^13 <= max|y| < 2^14. Then, for each row on its own:
    low = min y rounded down;  scale = (max y - low) / (2^bits - 1) rounded up
    q   = floor((y - low) / scale + u),  decoded (q * scale + low) * 2^-k
Segment bytes: FORMAT.md, "rowwise". All arithmetic is float32, one rounding an operation.
"""

import math
from functools import partial

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.ops.batch.rank_sum.reference import sum_of_parts
from trec_qcomm.ops.bits import from_bytes, to_bytes

HEADER_NBYTES = 8
MIN_EXPONENT, MAX_EXPONENT = -114, 162
_FLT_MAX = torch.finfo(torch.float32).max


def power_of_two(x: Tensor) -> int:
    """Return k such that max|finite x| * 2^k lies in [2^13, 2^14); 0 where that maximum is 0."""
    amax = float(torch.where(x.isfinite(), x, 0).abs().max()) if x.numel() else 0.0
    return 0 if amax == 0 else 14 - math.frexp(amax)[1]


def times_power_of_two(x: Tensor, k: int) -> Tensor:
    """Return x * 2^k in two exact steps, because 2^k itself may be no float32."""
    first = min(max(k, -126), 126)
    if k < 0:  # the step that may leave the normal range comes last
        return x * 2.0 ** (k - first) * 2.0**first
    return x * 2.0**first * 2.0 ** (k - first)


def half_down(x: Tensor) -> Tensor:
    """Return the largest float16 <= x, [..] float32; zeros become +0."""
    h = x.to(torch.float16)
    bits = h.view(torch.int16).to(torch.int32) & 0xFFFF
    lower = torch.where(bits < 0x8000, bits - 1, bits + 1)
    bits = torch.where(h.float() > x, lower, bits)
    bits = torch.where(bits == 0x8000, 0, bits)
    return bits.to(torch.int16).view(torch.float16)


def half_up(x: Tensor) -> Tensor:
    """Return the smallest float16 >= x, [..] float32 >= 0; zeros become +0."""
    h = x.to(torch.float16)
    bits = (h.view(torch.int16) & 0x7FFF) + (h.float() < x).to(torch.int16)
    return bits.view(torch.float16)


def dither(seed: int, first: int, count: int) -> Tensor:
    """Return [count] float32 in [0, 1), a function of the seed and each value's number.

    It is a 32-bit integer hash ("lowbias32" by C. Wellons, public domain) of the value's number in
    the batch, keyed by the two halves of the seed; its upper 24 bits are the fraction.

    Args: first: the number of the first value.  count: how many values.
    """

    def times(a: Tensor, b: int) -> Tensor:
        return (a * b) & 0xFFFFFFFF  # a < 2^32, so wrapping int64 keeps the low 32 bits

    h = (torch.arange(first, first + count, dtype=torch.int64) + (seed & 0xFFFFFFFF)) & 0xFFFFFFFF
    h = times(h ^ (h >> 16), 0x7FEB352D)
    h = h ^ (seed >> 32)
    h = times(h ^ (h >> 15), 0x846CA68B)
    return ((h ^ (h >> 16)) >> 8).to(torch.float32) * 2.0**-24


def quantize_rows(y: Tensor, *, bits: int, u: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize each row to `bits`-bit integers with its own scale.

    Args:     y: [n, D] float32, finite values within +-2^14.  u: 1/2 for nearest, or [n, D] in
              [0, 1) for stochastic rounding.
    Returns:  q: [n, D] uint8.  scale: [n] int16, bits of a float16, negative where the row holds
              NaN or inf.  low: [n] float16.
    Numerics: low is rounded down and scale up, so nothing clips. A row with NaN or inf keeps its
              top three codes for +inf, -inf and NaN; with 2 bits that leaves one code, low.
    """
    finite = y.isfinite()
    clean = finite.all(1)
    lo = torch.where(finite, y, math.inf).amin(1)
    hi = torch.where(finite, y, -math.inf).amax(1)
    lo, hi = torch.where(lo > hi, 0, lo), torch.where(lo > hi, 0, hi)
    top = 2**bits - 1
    levels = torch.where(clean, top, top - 3)
    if top == 3:  # one code is left: the middle is nearest to all
        lo = torch.where(clean, lo, lo * 0.5 + hi * 0.5)
    low = half_down(lo)
    width = torch.where(levels > 0, hi - low.float(), 0)
    scale = half_up(width / levels.clamp(min=1))
    inverse = torch.where(scale > 0, 1 / scale.float(), 0)
    above = torch.where(finite, y - low.float()[:, None], 0)
    q = (above * inverse[:, None] + u).to(torch.int32)
    q = torch.minimum(q, levels[:, None].to(torch.int32))
    q = torch.where(y == math.inf, top - 2, q)
    q = torch.where(y == -math.inf, top - 1, q)
    q = torch.where(y.isnan(), top, q)
    marked = scale.view(torch.int16) | torch.where(clean, 0, -0x8000).to(torch.int16)
    return q.to(torch.uint8), marked, low


def dequantize_rows(q: Tensor, scale: Tensor, low: Tensor, *, bits: int) -> Tensor:
    """Return [n, D] float32, the values of codes: the inverse of `quantize_rows`.

    Args: q: [n, D] uint8.  scale: [n] int16.  low: [n] float16.
    """
    step = (scale & 0x7FFF).view(torch.float16).float()
    y = q.float() * step[:, None] + low.float()[:, None]
    top = 2**bits - 1
    dirty = (scale < 0)[:, None]
    for code, value in ((top - 2, math.inf), (top - 1, -math.inf), (top, math.nan)):
        y = torch.where(dirty & (q == code), value, y)
    return y


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    bits: int,
    stochastic: bool,
    seed: int,
) -> tuple[int, None]:
    """Write the segments.

    Returns: the first segment that holds NaN or inf, or -1; and None, because flushed values are
        not counted.
    """
    nonfinite = -1
    for s in range(segments.num_segments):
        x = segments.block(values, s).float().contiguous()
        if nonfinite < 0 and not bool(x.isfinite().all()):
            nonfinite = s
        k = power_of_two(x)
        u: Tensor | float = 0.5
        if stochastic:
            first = int(segments.first_numbers[s])
            u = dither(seed, first, x.numel()).view(x.shape)
        q, scale, low = quantize_rows(times_power_of_two(x, k), bits=bits, u=u)
        header = torch.tensor([k, 0, 0, 0], dtype=torch.int16)
        parts = [header, scale, low.view(torch.int16), to_bytes(q, bits)]
        data = torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])
        end = int(at[s]) + int(aligned(torch.tensor(data.numel())))
        payload[int(at[s]) : end] = 0
        payload[int(at[s]) : int(at[s]) + data.numel()] = data
    return nonfinite, None


def decode(encoded: Encoded, segments: Segments, out: Tensor, *, bits: int) -> int:
    """Write the rows; return the first segment with an exponent that no encoder writes, or -1."""
    for s in range(segments.num_segments):
        rows = segments.block(out, s)
        num_rows, dim = rows.shape
        data = encoded.payload[int(encoded.at[s]) :].clone()
        k = int(data[:2].view(torch.int16))
        if not MIN_EXPONENT <= k <= MAX_EXPONENT:
            return s
        codes = HEADER_NBYTES + 4 * num_rows
        scale, low = data[HEADER_NBYTES:codes].view(torch.int16).view(2, num_rows)
        width = -(-dim * bits // 8)
        packed = data[codes : codes + num_rows * width].view(num_rows, width)
        q = from_bytes(packed, bits, dim).to(torch.uint8)
        y = dequantize_rows(q, scale, low.view(torch.float16), bits=bits)
        x = times_power_of_two(y, -k)
        overflow = x.isinf() & y.isfinite()  # the largest float32 rounded up
        x = torch.where(overflow, x.sign() * _FLT_MAX, x)
        largest = torch.finfo(rows.dtype).max
        rows.copy_(torch.where(x.isfinite(), x.clamp(-largest, largest), x))
    return -1


def decode_sum(
    encoded: Encoded, segments: Segments, out: Tensor, *, bits: int, held_at: int
) -> int:
    """Write the sums; return the first segment of all parts with a wrong exponent, or -1."""
    return sum_of_parts(encoded, segments, out, partial(decode, bits=bits), held_at)
