"""Choose the values of largest magnitude, and store them as fp32, fp16 or int8.

Magnitudes are compared as the bits of |x|, so they are ordered |x| < inf < NaN: NaN and inf are
kept first. Kept values are stored as
    fp32  their bits.
    fp16  x / scale. The scale is a power of two that puts the segment's largest finite magnitude
          into [2^13, 2^14). Magnitudes down to 2^-27 of the largest keep 11 bits of precision;
          below, the absolute error is 2^-38 of the largest. So gradients of 1e-5 keep their
          precision, and no finite value becomes inf.
    int8  round(x / scale). The scale is the segment's largest finite magnitude / 126, so the error
          is at most half a scale. There is one scale for each segment, not for each row: a row
          keeps some 6 values, and a scale of 2 bytes would add a third to it.
All arithmetic is float32, one rounding an operation.
Shapes: K kept values of S segments.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

ValueFormat = Literal["fp32", "fp16", "int8"]
FP32, FP16, INT8 = 0, 1, 2  # the field `values`
NBYTES = (4, 2, 1)
DTYPES = (torch.float32, torch.float16, torch.int8)
INT8_TOP = 126  # the codes 127, -127 and -128 are +inf, -inf and NaN
_FLT_MAX, _FLT_MIN = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny
_INF_KEY = 0x7F800000


def kind_of(values: ValueFormat) -> int:
    """Return the wire's code (field `values`) for a format of stored values."""
    return get_args(ValueFormat).index(values)


def keys_of(x: Tensor) -> Tensor:
    """Return int32 keys of [..] float32, ordered as the magnitudes are: |x| < inf < NaN."""
    keys: Tensor = x.view(torch.int32) & 0x7FFFFFFF
    return keys


def keep_top_k(rows: Tensor, k: int) -> Tensor:
    """Return [R, D] bool, the k largest magnitudes of each row of [R, D] float32.

    If magnitudes are equal, the lowest columns come first.
    """
    if k == rows.shape[1]:
        return torch.ones(rows.shape, dtype=torch.bool, device=rows.device)
    keys = keys_of(rows)
    top = keys.topk(k + 1, dim=1).values
    keep: Tensor = keys > top[:, k:]
    if bool((top[:, k - 1] > top[:, k]).all()):
        return keep
    least = top[:, k - 1 : k]
    above, ties = keys > least, keys == least
    keep = above | (ties & (ties.cumsum(1) <= k - above.sum(1, keepdim=True)))
    return keep


def levels_of(thresholds: Tensor, num_segments: int) -> Tensor:
    """Return [S] int32 levels. Exactly the x with |x| >= threshold, and NaN, have keys above.

    Raises: ValueError: thresholds that are not [S] float64, finite, >= 0.
    """
    if thresholds.dtype != torch.float64 or thresholds.shape != (num_segments,):
        raise ValueError(f"thresholds: expected [{num_segments}] float64")
    bad = ~(thresholds.isfinite() & (thresholds >= 0))
    if bool(bad.any()):
        raise ValueError(f"thresholds: {float(thresholds[bad][0])} is not a finite number >= 0")
    least = thresholds.abs().float()  # the smallest float32 that is not below the threshold
    rounded_down = least.double() < thresholds
    least = torch.where(rounded_down, torch.nextafter(least, torch.tensor(torch.inf)), least)
    return keys_of(least) - 1


def scales_of(kept: Tensor, segment: Tensor, num_segments: int, kind: int) -> Tensor:
    """Return [S] float32, factors of the stored numbers on decoding; 0 for fp32.

    Args: kept: [K] float32.  segment: [K] int64, the segment of each.
    """
    scales = torch.zeros(num_segments, device=kept.device)
    if kind == FP32:
        return scales
    keys = keys_of(kept)
    finite = torch.where(keys < _INF_KEY, keys, 0).view(torch.float32)
    largest = scales.scatter_reduce_(0, segment, finite, "amax")
    if kind == FP16:
        exponents = ((largest.view(torch.int32) >> 23) - 13).clamp(min=1)
        return (exponents << 23).view(torch.float32)
    # A number in place of this tensor would become a factor on a GPU, with another rounding.
    return (largest / torch.full_like(largest, INT8_TOP)).clamp(min=_FLT_MIN)


def store_values(kept: Tensor, kind: int, scales: Tensor) -> Tensor:
    """Return [K] float32 as [K] of the format's dtype. scales: [K] float32, the scale of each."""
    if kind == FP32:
        return kept
    if kind == FP16:
        half = (kept * scales.reciprocal()).to(torch.float16).view(torch.int16)
        nan = torch.where(kept.view(torch.int32) < 0, 0x7E00 - 0x8000, 0x7E00).to(torch.int16)
        return torch.where(kept.isnan(), nan, half).view(torch.float16)
    q = torch.where(kept.isfinite(), kept / scales, 0).round()
    q = torch.where(kept.isinf(), kept.sign() * (INT8_TOP + 1), q)
    return torch.where(kept.isnan(), -128, q).to(torch.int8)


def load_values(stored: Tensor, kind: int, scales: Tensor) -> Tensor:
    """Return [K] float32, the inverse of `store_values`.

    A finite number that the scale would make infinite becomes the largest float32. NaN becomes one
    quiet NaN, except in fp32, which keeps all bits.
    """
    if kind == FP32:
        return stored
    x = stored.float()
    if kind == INT8:
        for code, special in ((127, math.inf), (-127, -math.inf), (-128, math.nan)):
            x = torch.where(stored == code, special, x)
    x = torch.where(x.isfinite(), (x * scales).clamp(-_FLT_MAX, _FLT_MAX), x)
    return torch.where(x.isnan(), math.nan, x)
