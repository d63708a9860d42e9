"""Floats of 6 or 8 bits and one exponent a row, in plain torch: the definition, to be read.

A code is a sign, E exponent bits f and M = bits - 1 - E mantissa bits k. For a row x, 2^e is the
smallest power of two above max|x| (-126 <= e <= 128). With F = 2^E - 1, a code means
    f > 0: (1 + k 2^-M) 2^(e - F + f)        f = 0: k 2^(e - F + 1 - M)
The largest code in use, f = F and k = 0, is 2^e itself; values just below 2^e are rounded to it.
The code after it is inf, and the code of -0 is NaN. Shapes: n rows, D columns.
"""

import math

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.ops.bits import from_bytes, to_bytes
from trec_qcomm.ops.rowwise.reference import dither, power_of_two, write_rounded

MIN_EXPONENT, MAX_EXPONENT = -126, 128
BIAS = 127  # e + BIAS is the byte of a row, 1..255
_FLT_MAX = torch.finfo(torch.float32).max


def parameters(bits: int, exponent_bits: int) -> tuple[int, int, int]:
    """Return M, F and the sign's bit of a code."""
    return bits - 1 - exponent_bits, 2**exponent_bits - 1, 1 << (bits - 1)


def exponents(x: Tensor) -> Tensor:
    """Return [n] int32, e of the finite values of each row of [n, D]; -126 if they are all 0."""
    amax = torch.where(x.isfinite(), x, 0).abs().amax(1)
    e = torch.frexp(amax)[1]  # amax = m 2^e with 1/2 <= m < 1
    return torch.where(amax == 0, MIN_EXPONENT, e).clamp(min=MIN_EXPONENT)


def times_power_of_two(x: Tensor, k: Tensor) -> Tensor:
    """Return x * 2^k; k: [n, 1] int32 in -128..128.

    It takes two exact steps, because 2^k itself may be no float32. The step that may leave the
    normal range comes last.
    """
    near = k.clamp(-126, 126)
    main, rest = power_of_two(near), power_of_two(k - near)
    return torch.where(k < 0, x * rest * main, x * main * rest)


def quantize(y: Tensor, *, bits: int, exponent_bits: int, u: Tensor | float) -> Tensor:
    """Quantize y, whose finite values are below 1 in magnitude, to [n, D] uint8 codes.

    A step is 2^-M times the power of two below |y|. Below the normal numbers it is that of f = 1.
    The code counts steps: floor(t + u) with t = |y| / step.

    Args: y: [n, D] float32.  u: 1/2 for nearest, or [n, D] in [0, 1) for stochastic rounding.
    """
    mantissa_bits, top, sign = parameters(bits, exponent_bits)
    finite = y.isfinite()
    magnitude = torch.where(finite, y, 0).abs()
    below = torch.frexp(magnitude)[1] - 1  # 2^below <= |y|
    f = torch.where(magnitude == 0, 1, below + top).clamp(min=1)
    t = magnitude * power_of_two(mantissa_bits + top - f)
    code = ((f - 1) << mantissa_bits) + (t + u).to(torch.int32)  # a step past f is in f + 1
    code = torch.where(finite, code, (top << mantissa_bits) + 1)
    signed = torch.where((y < 0) & (code > 0), code + sign, code)
    return torch.where(y.isnan(), sign, signed).to(torch.uint8)


def dequantize(q: Tensor, *, bits: int, exponent_bits: int) -> Tensor:
    """Return the values of [n, D] uint8 codes as float32: within +-1, or inf, or NaN."""
    mantissa_bits, top, sign = parameters(bits, exponent_bits)
    code = q.to(torch.int32) & (sign - 1)
    f = code >> mantissa_bits
    k = code - (f << mantissa_bits) + torch.where(f > 0, 1 << mantissa_bits, 0)
    y = k * power_of_two(f.clamp(min=1) - top - mantissa_bits)
    largest = top << mantissa_bits
    y = torch.where(code == largest + 1, math.inf, y)
    negative = q >= sign
    is_nan = (code > largest + 1) | (negative & (code == 0))
    return torch.where(is_nan, math.nan, torch.where(negative, -y, y))


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
) -> tuple[int, None]:
    """Write the segments; return -1, because no value is refused."""
    for s in range(segments.num_segments):
        x = segments.block(values, s).float().contiguous()
        u: Tensor | float = 0.5
        if stochastic:
            first = int(segments.first_numbers[s])
            u = dither(seed, first, x.numel()).view(x.shape)
        e = exponents(x)
        y = times_power_of_two(x, -e[:, None])
        q = quantize(y, bits=bits, exponent_bits=exponent_bits, u=u)
        data = torch.cat([(e + BIAS).to(torch.uint8), to_bytes(q, bits).flatten()])
        end = int(aligned(torch.tensor(data.numel())))
        payload[int(at[s]) :][:end] = 0
        payload[int(at[s]) :][: data.numel()] = data
    return -1, None


def decode(
    encoded: Encoded, segments: Segments, out: Tensor, *, bits: int, exponent_bits: int
) -> int:
    """Write the rows; return the first segment with an exponent byte of 0, or -1."""
    for s in range(segments.num_segments):
        n, dim = int(segments.num_rows[s]), segments.dim
        width = (bits * dim + 7) // 8
        data = encoded.payload[int(encoded.at[s]) :][: n * (1 + width)]
        if bool((data[:n] == 0).any()):
            return s
        e = data[:n, None].to(torch.int32) - BIAS
        q = from_bytes(data[n:].view(n, width), bits, dim).to(torch.uint8)
        y = dequantize(q, bits=bits, exponent_bits=exponent_bits)
        x = times_power_of_two(y, e)
        beyond = x.isinf() & y.isfinite()  # 2^128, to which a value was rounded up
        write_rounded(torch.where(beyond, x.sign() * _FLT_MAX, x), segments.block(out, s))
    return -1
