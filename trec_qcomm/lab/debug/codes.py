"""Codes of encoded segments: their entropy, and the share of values that were sent verbatim.

A code is what stands for one value: of rowwise, float6 and FBGEMM's 8, 4 and 2 bits
the integer on the wire, which a row's own parameters turn into a value; of others the decoded value
itself, as within a segment equal codes are equal values.

Knows: codecs, bytes of segments (wire/FORMAT.md). Does not know: tables, frames.
Shapes: n rows of D values, N = n D.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.codecs import ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.core.codec import Codec
from trec_qcomm.ext.fbgemm.codec import Fbgemm
from trec_qcomm.ops.error_bound.reference import RAW
from trec_qcomm.ops.float6.reference import unpack as unpack_float6
from trec_qcomm.ops.rowwise.reference import HEADER_NBYTES, unpack

_BITS = {"int8": 8, "fp8": 8, "fp8_e5m2": 8, "int4": 4, "int2": 2}  # of FBGEMM's codes


def entropy(codec: Codec, data: Tensor, decoded: Tensor) -> float | None:
    """Return the entropy of a segment's codes in bits; None where values have no codes.

    Args: data: [W] uint8, the segment's bytes.  decoded: [n, D] float32, what they decode to.
    """
    codes = codes_of(codec, data, decoded)
    return None if codes is None else _entropy(codes)


def codes_of(codec: Codec, data: Tensor, decoded: Tensor) -> Tensor | None:
    """Return [N] integers, the code of each value; None for float32 and unread layouts.

    Equal integers are equal codes and that is all they mean. Arguments: see `entropy`.
    """
    if isinstance(codec, Identity) or (isinstance(codec, Fbgemm) and codec.precision == "mx4"):
        return None
    num_rows, dim = decoded.shape
    read = _reader(codec)
    if read is None:
        return decoded.contiguous().view(torch.int32).flatten()
    return read(data, num_rows, dim).flatten()


Reader = Callable[[Tensor, int, int], Tensor]  # takes bytes, n and D


def _reader(codec: Codec) -> Reader | None:
    if isinstance(codec, Rowwise):
        bits = codec.bits
        return lambda data, n, dim: _packed(data[HEADER_NBYTES + 4 * n :], n, dim, bits)
    if isinstance(codec, Float6):
        return _float6
    if isinstance(codec, Fbgemm) and codec.precision in _BITS:
        width = _BITS[codec.precision]
        overhead = 8 if width == 8 else 4
        return lambda data, n, dim: _packed(data, n, dim, width, overhead)
    return None


def _packed(data: Tensor, num_rows: int, dim: int, bits: int, overhead: int = 0) -> Tensor:
    """Return [n, D] uint8 codes of rows of whole bytes, lowest bits first.

    Args: data: [W] uint8, the rows' bytes first.  overhead: bytes behind the codes of each row.
    """
    width = -(-dim * bits // 8)
    rows = data[: num_rows * (width + overhead)].view(num_rows, width + overhead)[:, :width]
    return unpack(rows, bits=bits, dim=dim)


def _float6(data: Tensor, num_rows: int, dim: int) -> Tensor:
    width = -(-6 * dim // 8)
    packed = data[num_rows : num_rows * (1 + width)].view(num_rows, width)
    return unpack_float6(packed.cpu(), dim)


def _entropy(codes: Tensor) -> float:
    if codes.dtype == torch.uint8:
        counts = torch.bincount(codes.int(), minlength=256).cpu().numpy()
    elif codes.is_cpu:  # numpy sorts several times faster than torch counts distinct numbers
        ordered = np.sort(codes.numpy())
        ends = np.flatnonzero(np.diff(ordered)) + 1
        counts = np.diff(ends, prepend=0, append=len(ordered))
    else:
        counts = torch.unique(codes, return_counts=True)[1].cpu().numpy()
    shares = counts[counts > 0] / len(codes)
    return max(float(-(shares * np.log2(shares)).sum()), 0.0)


def num_verbatim(codec: Codec, data: Tensor, num_values: int) -> int | None:
    """Return how many values of a segment were sent unchanged, as they do not fit the codec.

    None for codecs that send none so, all but error_bounded.

    Args: data: [W] uint8, the segment's bytes.  num_values: N.
    """
    if not isinstance(codec, ErrorBounded):
        return None
    if not num_values:
        return 0
    word = int(data[4:8].cpu().view(torch.int32)) & 0xFFFFFFFF
    return num_values if word & 15 == RAW else word >> 7
