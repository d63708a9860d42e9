"""Row-wise quantization in plain torch: the definition, written to be read.

Let 2^e be the smallest power of two above the row's largest finite magnitude, 2^-100 at least.
    low   = the largest multiple of 2^(e - 11) that is not above any value
    scale = (max - low) / (2^bits - 1), rounded up to a significand of 8 bits
    q     = floor((x - low) / scale + u),  decoded q * scale + low
Rows of 2^126 and more are divided by 4 before all this, and multiplied by 4 after it.
Row's header, 32 bits: FORMAT.md, "rowwise". All arithmetic is float32, one rounding an operation.
"""

import math
from functools import partial

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.ops.batch.rank_sum.reference import sum_of_parts
from trec_qcomm.ops.bits import from_bytes, to_bytes

MIN_EXPONENT = -100
BIAS = 127  # e + BIAS is a byte of the header
HUGE = 126  # rows of a larger e are divided by 4
MARK = 1 << 11  # bit of a header: the row holds NaN or inf
_FLT_MAX = torch.finfo(torch.float32).max


def exponents(amax: Tensor) -> Tensor:
    """Return [n] int32, e of rows whose largest finite magnitudes are amax, [n] float32."""
    e = torch.frexp(amax)[1]  # amax = m 2^e with 1/2 <= m < 1
    return torch.where(amax == 0, MIN_EXPONENT, e).clamp(min=MIN_EXPONENT)


def power_of_two(k: Tensor) -> Tensor:
    """Return 2^k as float32; k: int32 in -126..127."""
    return ((k + 127) << 23).view(torch.float32)


def grid(header: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what headers say of their rows.

    Args:    header: [n] int32.
    Returns: [n, 1] each: low and scale as float32, whether the row is marked, and the factor of
             its values, 4 or 1.
    """
    header = header[:, None]
    e = ((header >> 24) & 0xFF) - BIAS
    huge = e > HUGE
    e = torch.where(huge, e - 2, e)
    low = ((header << 8) >> 20).float() * power_of_two(e - 11)
    scale = ((header & (MARK - 1)) + ((e + BIAS - 14 - bits) << 7) << 16).view(torch.float32)
    return low, scale, header & MARK != 0, torch.where(huge, 4.0, 1.0)


def headers(lo: Tensor, hi: Tensor, clean: Tensor, bits: int) -> Tensor:
    """Return [n] int32, the headers of rows.

    Args: lo, hi: [n] float32, the range of each row's finite values.  clean: [n], whether a row
        has no others. If it has, its top three codes are +inf, -inf and NaN; with 2 bits that
        leaves one code, low, for the middle of the range.
    """
    e = exponents(torch.maximum(-lo, hi))
    huge = e > HUGE
    near = torch.where(huge, e - 2, e)
    factor = torch.where(huge, 0.25, 1.0)
    lo, hi = lo * factor, hi * factor
    levels = torch.where(clean, 2**bits - 1, 2**bits - 4)
    if bits == 2:
        lo = torch.where(clean, lo, lo * 0.5 + hi * 0.5)
        hi = torch.where(clean, hi, lo)
    low = (lo * power_of_two(11 - near)).floor()
    width = hi - low * power_of_two(near - 11)
    scale = (width / levels.clamp(min=1)).view(torch.int32)
    scale = ((scale + 0xFFFF) >> 16) - ((near + BIAS - 14 - bits) << 7)  # 0xFFFF rounds up
    word = scale.clamp(min=0) | torch.where(clean, 0, MARK).to(torch.int32)
    return word | (low.to(torch.int32) & 0xFFF) << 12 | e + BIAS << 24


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


def quantize_rows(x: Tensor, *, bits: int, u: Tensor | float) -> tuple[Tensor, Tensor]:
    """Quantize each row to `bits`-bit integers with its own scale.

    Args:    x: [n, D] float32.  u: 1/2 for nearest, or [n, D] in [0, 1) for stochastic rounding.
    Returns: q: [n, D] uint8.  header: [n] int32.
    """
    finite = x.isfinite()
    clean = finite.all(1)
    lo = torch.where(finite, x, math.inf).amin(1)
    hi = torch.where(finite, x, -math.inf).amax(1)
    lo, hi = torch.where(lo > hi, 0, lo), torch.where(lo > hi, 0, hi)
    header = headers(lo, hi, clean, bits)
    low, scale, _, factor = grid(header, bits)
    above = torch.where(finite, x / factor - low, 0)
    top = 2**bits - 1
    levels = torch.where(clean, top, top - 3)[:, None].to(torch.int32)
    q = (above * torch.where(levels > 0, 1 / scale, 0) + u).to(torch.int32)
    q = torch.minimum(q, levels)
    q = torch.where(x == math.inf, top - 2, q)
    q = torch.where(x == -math.inf, top - 1, q)
    q = torch.where(x.isnan(), top, q)
    return q.to(torch.uint8), header


def dequantize_rows(q: Tensor, header: Tensor, *, bits: int) -> Tensor:
    """Return [n, D] float32, the values of codes: the inverse of `quantize_rows`.

    Args: q: [n, D] uint8.  header: [n] int32.
    """
    low, scale, marked, factor = grid(header, bits)
    x = ((q.float() * scale + low) * factor).clamp(-_FLT_MAX, _FLT_MAX)
    top = 2**bits - 1
    for code, value in ((top - 2, math.inf), (top - 1, -math.inf), (top, math.nan)):
        x = torch.where(marked & (q == code), value, x)
    return x


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
        u: Tensor | float = 0.5
        if stochastic:
            first = int(segments.first_numbers[s])
            u = dither(seed, first, x.numel()).view(x.shape)
        q, header = quantize_rows(x, bits=bits, u=u)
        data = torch.cat([header.view(torch.uint8), to_bytes(q, bits).flatten()])
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
        header = data[: 4 * num_rows].view(torch.int32)
        if bool(((header >> 24 & 0xFF) < MIN_EXPONENT + BIAS).any()):
            return s
        width = -(-dim * bits // 8)
        packed = data[4 * num_rows :][: num_rows * width].view(num_rows, width)
        x = dequantize_rows(from_bytes(packed, bits, dim).to(torch.uint8), header, bits=bits)
        write_rounded(x, rows)
    return -1


def write_rounded(values: Tensor, out: Tensor) -> None:
    """Write float32 values in the dtype of `out`. Finite ones stay finite: the largest at most.

    Values that `out` has already keep their bits, NaN's too: others' rows may lie there.
    """
    largest = torch.finfo(out.dtype).max
    rounded = torch.where(values.isinf(), values, values.clamp(-largest, largest)).to(out.dtype)
    is_there = values.view(torch.int32) == out.float().view(torch.int32)
    out.copy_(torch.where(is_there, out, rounded))


def decode_sum(
    encoded: Encoded, segments: Segments, out: Tensor, *, bits: int, held_at: int
) -> int:
    """Write the sums; return the first segment of all parts with a wrong exponent, or -1."""
    return sum_of_parts(encoded, segments, out, partial(decode, bits=bits), held_at)
