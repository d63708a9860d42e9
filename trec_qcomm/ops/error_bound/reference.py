"""Error-bounded quantization in plain torch: the definition. Shapes: n rows of D, N = n D."""

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.bitpack import reference as bitpack
from trec_qcomm.ops.error_bound import HEADER_NBYTES
from trec_qcomm.ops.rans import reference as rans

RAW, BITPACK, VECTOR_LZ, RANS, CONSTANT = 0, 1, 2, 3, 4
MAX_INDEX = 2**22
MAX_VERBATIM = 2**25 - 1
_MAGIC = torch.tensor(1.5 * 2**23)  # adding it rounds |y| <= 2^22 to an integer, half to even
_FLOAT32 = torch.finfo(torch.float32)
_NUMBERS = {"bitpack": BITPACK, "vector_lz": VECTOR_LZ, "rans": RANS}
_VECTOR_LZ = "trec_qcomm.ext.dual_level.vector_lz"  # imported when it is asked for


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    bounds: Tensor,
    relative: bool,
    encoder: str,
    nbytes: Tensor,
) -> tuple[int, Tensor | None]:
    """Write the segments, and their nbytes, [S] int64.

    Returns: -1, because no value is refused; and [S], numbers of flushed values, or None if all are
        0.
    """
    flushed = torch.zeros_like(nbytes)
    for s, bound in enumerate(bounds.tolist()):
        rows = segments.block(values, s)
        data = encode_segment(rows, bound, relative=relative, encoder=encoder)
        nbytes[s] = len(data)
        payload[int(at[s]) : int(at[s]) + len(data)] = data
        if relative and len(data) and int(data[4]) & 15 in _NUMBERS.values():
            flushed[s] = count_flushed(rows, data[:4].view(torch.float32))
    return -1, flushed if flushed.any() else None


def decode(
    encoded: Encoded, segments: Segments, out: Tensor, which: Iterable[int] | None = None
) -> None:
    """Write the rows back. Raise CorruptFrameError at the first segment that is invalid.

    Args: which: indices of the segments to decode; None: all.
    """
    for s in range(segments.num_segments) if which is None else which:
        begin, rows = int(encoded.at[s]), segments.block(out, s)
        data = encoded.payload[begin : begin + int(encoded.nbytes[s])]
        try:
            rows.copy_(decode_segment(data, *rows.shape))
        except ValueError as error:
            raise CorruptFrameError(str(error), segment=s) from error


def encode_segment(rows: Tensor, bound: float, *, relative: bool, encoder: str) -> Tensor:
    """Encode [n, D] float32 to the segment's bytes, [W] uint8, W a multiple of 8."""
    x = rows.reshape(-1)
    if not len(x):
        return torch.empty(0, dtype=torch.uint8)
    width = finite_range(x)
    bound32 = round_down(bound * width if relative else bound)
    step, inverse = choose_step(bound32)
    raw = _assemble(0, RAW, _bytes(x), x, torch.zeros(len(x), dtype=torch.bool))
    if width == 0:
        finite = x[x.isfinite()]
        constant = (finite if len(finite) else x)[:1].view(torch.int32)
        nothing = torch.empty(0, dtype=torch.uint8)
        data = _assemble(int(constant), CONSTANT, nothing, x, x.view(torch.int32) != constant)
    elif step == 0:
        return raw
    else:
        q, verbatim = quantize(x, bound32, step, inverse)
        kind = _NUMBERS[encoder]
        indices = _encoder(kind).encode_segment(q, rows.shape[1])
        bits = int(step.view(torch.int32))
        if int(verbatim.sum()) > MAX_VERBATIM:
            return raw
        data = _assemble(bits, kind, indices, x, verbatim)
    return data if len(data) < len(raw) else raw


def _encoder(kind: int) -> Any:
    """Return the module that encodes and decodes the indices of a segment."""
    if kind == VECTOR_LZ:
        return importlib.import_module(_VECTOR_LZ)
    return rans if kind == RANS else bitpack


def finite_range(x: Tensor) -> float:
    """Return max - min of the finite values of [N] float32, in float64; 0 if none is finite."""
    finite = x[x.isfinite()].double()
    return float(finite.max() - finite.min()) if len(finite) else 0.0


def round_down(bound: float) -> Tensor:
    """Return the largest finite float32 not above a float64 bound >= 0, as a scalar."""
    rounded = np.float32(min(bound, _FLOAT32.max))
    if float(rounded) > bound:
        rounded = np.nextafter(rounded, np.float32(0))
    return torch.tensor(float(rounded), dtype=torch.float32)


def choose_step(bound: Tensor) -> tuple[Tensor, Tensor]:
    """Return (step, 1 / step), float32 scalars; (0, 0) unless both are normal finite numbers."""
    step = bound * 2
    inverse = 1 / step
    for value in (step, inverse):
        if not _FLOAT32.tiny <= float(value) <= _FLOAT32.max:
            return torch.zeros(()), torch.zeros(())
    return step, inverse


def quantize(x: Tensor, bound: Tensor, step: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize [N] float32.

    Each operation rounds to float32 once: there is no fused multiply-add.

    Returns: q: [N] int32, 0 where verbatim.
             verbatim: [N] bool, values that the contract forbids to send as an index.
    """
    rounded = (x * inverse + _MAGIC) - _MAGIC
    decoded = rounded * step
    error = (x.double() - decoded.double()).abs()
    fits = x.isfinite() & (rounded.abs() <= MAX_INDEX) & (error <= bound.double())
    return torch.where(fits, rounded, 0).to(torch.int32), ~fits


def count_flushed(x: Tensor, step: Tensor) -> int:
    """Return how many values of a segment are lost beside a far larger one.

    A value is flushed if it is not 0 and below 1/256 of the step, so below 1/128 of the bound.
    Flushed values count only if there are at least 3, and if they are three quarters of all nonzero
    values. Kernels look at a sample first, and may miss a segment.

    Args: x: the values, float32.  step: scalar, of choose_step.
    """
    is_small = x.abs() < step / 256
    num_small, num_other = int((is_small & (x != 0)).sum()), int((~is_small).sum())
    return num_small if num_small >= max(3, 3 * num_other) else 0


def _assemble(first: int, kind: int, indices: Tensor, x: Tensor, verbatim: Tensor) -> Tensor:
    """Join header, indices, padding, and positions and bits of the verbatim values.

    Args: first: the header's first word, as an int.  x: [N] float32.  verbatim: [N] bool.
    """
    positions = verbatim.nonzero().view(-1)
    padding = -len(indices) % 8
    word = kind | padding << 4 | len(positions) << 7
    header = torch.tensor([first, word - 2**32 if word >= 2**31 else word], dtype=torch.int32)
    zeros = torch.zeros(padding, dtype=torch.uint8)
    verbatim_parts = [_bytes(positions.to(torch.int32)), _bytes(x[positions])]
    return torch.cat([_bytes(header), indices, zeros, *verbatim_parts])


def decode_segment(data: Tensor, num_rows: int, dim: int) -> Tensor:
    """Decode a segment to [n, D] float32. Raise ValueError for bytes that no encoder writes."""
    num_values = num_rows * dim
    if not num_values:
        return _require(len(data) == 0, torch.empty(num_rows, dim), "bytes for no rows")
    if len(data) < HEADER_NBYTES:
        raise ValueError("no header")
    first, word = data[:HEADER_NBYTES].clone().view(torch.int32)
    word = int(word) & 0xFFFFFFFF
    kind, padding, num_verbatim = word & 15, word >> 4 & 7, word >> 7
    end = len(data) - 8 * num_verbatim
    if end - padding < HEADER_NBYTES:
        raise ValueError("more verbatim values than bytes")
    indices = data[HEADER_NBYTES : end - padding]
    x = _decode_values(kind, first.view(torch.float32), indices, num_values, dim, num_verbatim)
    positions, bits = data[end:].clone().view(torch.int32).view(2, num_verbatim)
    places = positions.to(torch.int64) & 0xFFFFFFFF
    increasing = bool((places.diff() > 0).all()) and bool((places < num_values).all())
    _require(increasing, x, "positions of verbatim values")
    x.view(torch.int32)[places] = bits
    return x.view(num_rows, dim)


def _decode_values(
    kind: int, first: Tensor, indices: Tensor, num_values: int, dim: int, num_verbatim: int
) -> Tensor:
    """Return [N] float32, before the verbatim values are put in place.

    Args: first: the header's first word, a float32 scalar: the step or the constant.
    """
    if kind == RAW:
        valid = len(indices) == 4 * num_values and not num_verbatim
        return _require(valid, indices.clone(), "size of raw rows").view(torch.float32)
    if kind == CONSTANT:
        # Copied as an int, because a NaN copied as a float may lose its payload.
        constant = first.view(torch.int32).repeat(num_values).view(torch.float32)
        return _require(len(indices) == 0, constant, "indices of a constant")
    if kind not in _NUMBERS.values():
        raise ValueError(f"unknown encoder {kind}")
    if not _FLOAT32.tiny <= float(first) <= _FLOAT32.max:
        raise ValueError("the step is not a normal number > 0")
    q: Tensor = _encoder(kind).decode_segment(indices, dim, num_values)
    return q.to(torch.float32) * first


def _require(valid: bool, result: Tensor, what: str) -> Tensor:
    """Return `result`. Raise ValueError unless `valid`."""
    if not valid:
        raise ValueError(f"invalid {what}")
    return result


def _bytes(words: Tensor) -> Tensor:
    return words.contiguous().view(torch.uint8)
