"""Homogenization index: the share of distinct rows that stay apart under an error bound.

    index = distinct rows after quantization / distinct rows before, of one table's batch, in (0, 1]

It is 1 where all rows stay apart, as in small tables. It is low where quantization makes many rows
equal, as in large tables, most of whose rows have hardly moved from their initial values. On
Criteo, after one epoch at dim 16, in batches of 2048 and at bound 0.03, it is .3 to .7 for tables
of thousands of rows and .98 to 1 for tables of under a hundred. It falls with a larger bound or
batch and rises with the dim.

Knows: rows. Does not know: tables, classes, codecs (but which values error_bounded quantizes).
Source: SC'24 (Feng, Zhang et al.); the quantizer is that of its artefact, round(x / 2 bound range).
Shapes: n rows of D values. Unit: a bound is a fraction of max - min of the batch.
"""

import torch
from torch import Tensor

# The largest code of the codec. A value with a larger one, or any value if the step is no normal
# float32, is sent unchanged and stays apart from others (wire/FORMAT.md, error_bounded).
_MAX_CODE = 2**22
_VERBATIM = 2**40  # larger than all codes; the 32 bits of a value sent unchanged are added


def homogenization_index(rows: Tensor, *, bound: float) -> float:
    """Return the share of distinct rows of one batch that a relative bound keeps apart: (0, 1].

    Cost: a dozen passes over n D values of 64 bits and a sort of n numbers: some 6 ms for 2048 rows
    of 64 values on one thread, 1 ms for 2048 rows of 16 or 600 rows of 64.

    Args:
        rows: [n, D] float32, n >= 1; equal rows count once, NaN and inf count like other values.
        bound: fraction of max - min over the finite values, above 0 and below 1.
    Numerics: codes are round(x / step) in float64, step = 2 bound (max - min); the codec's codes
        may differ for values next to the middle between two codes.
    Raises: ValueError: another shape, dtype or bound.
    """
    if not 0 < bound < 1:
        raise ValueError(f"bound: {bound!r} is not between 0 and 1")
    if rows.dim() != 2 or rows.dtype != torch.float32 or not rows.numel():
        raise ValueError(
            f"rows: expected [n >= 1, D >= 1] float32, got {list(rows.shape)} {rows.dtype}"
        )
    before = count_distinct(_bits(rows))
    return min(count_distinct(_codes(rows, bound)), before) / before


def count_distinct(codes: Tensor) -> int:
    """Return the number of different rows of [n, D] int64, by 64-bit hashes.

    Two different rows share a hash with a probability of about 2^-63, so for 10^6 rows the count is
    too low with a probability below one in a million. Hashing is for speed: it sorts n numbers,
    where torch.unique(dim=0) sorts n rows.
    """
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**63), 2**63 - 1, (codes.shape[1],), generator=generator)
    mixed = codes * -0x61C8864680B583EB  # 2^64 / golden ratio, odd; int64 wraps around
    mixed ^= mixed >> 32
    hashes = (mixed * (factors | 1).to(codes.device)).sum(dim=1)
    return len(torch.unique(hashes))


def _codes(rows: Tensor, bound: float) -> Tensor:
    """Return [n, D] int64, equal where the codec would send equal values."""
    finite = torch.isfinite(rows)
    values = rows[finite].double()
    step = 2 * bound * float(values.max() - values.min()) if len(values) else 0.0
    normal = torch.finfo(torch.float32)
    if not normal.tiny <= step <= min(normal.max, 1 / normal.tiny):
        return _bits(rows)
    codes = torch.round(rows.double() / step)
    coded = finite & (codes.abs() <= _MAX_CODE)
    return torch.where(coded, torch.where(coded, codes, 0.0).long(), _VERBATIM + _bits(rows))


def _bits(rows: Tensor) -> Tensor:
    """Return [n, D] int64, the 32 bits of each value, where -0.0 counts as 0.0."""
    return (rows + 0.0).view(torch.int32).long()
