"""Error-bounded quantization in plain torch: the definition. Shapes: n rows of D, V verbatim."""

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.ops.bitpack import reference as bitpack
from trec_qcomm.ops.rans import reference as rans
from trec_qcomm.ops.vector_lz import reference as vector_lz

HEADER_NBYTES = 8
RAW, BITPACK, VECTOR_LZ, RANS, CONSTANT = 0, 1, 2, 3, 4
MAX_INDEX = 2**22
MAX_VERBATIM = 2**25 - 1
_MAGIC = torch.tensor(1.5 * 2**23)  # adding it rounds |y| <= 2^22 to an integer, half to even
_FLOAT32 = torch.finfo(torch.float32)
_ENCODERS = {
    "bitpack": (BITPACK, bitpack.encode_segment),
    "vector_lz": (VECTOR_LZ, vector_lz.encode_segment),
    "rans": (RANS, rans.encode_segment),
}
_DECODERS = {
    BITPACK: bitpack.decode_segment,
    VECTOR_LZ: vector_lz.decode_segment,
    RANS: rans.decode_segment,
}


def encode_segment(rows: Tensor, bound: float, *, relative: bool, encoder: str) -> Tensor:
    """[n, D] float32 -> the segment's bytes, [W] uint8, W a multiple of 8."""
    x = rows.reshape(-1)
    if not len(x):
        return torch.empty(0, dtype=torch.uint8)
    width = finite_range(x)
    bound32 = round_down(bound * width if relative else bound)
    step, inverse = step_of(bound32)
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
        names = ("vector_lz", "rans") if encoder == "auto" else (encoder,)
        found = [(_ENCODERS[name][0], _ENCODERS[name][1](q, rows.shape[1])) for name in names]
        kind, indices = min(found, key=lambda pair: len(pair[1]))  # the first of equals
        bits = int(step.view(torch.int32))
        if int(verbatim.sum()) > MAX_VERBATIM:
            return raw
        data = _assemble(bits, kind, indices, x, verbatim)
    return data if len(data) < len(raw) else raw


def finite_range(x: Tensor) -> float:
    """max - min over the finite values of [N] float32, in float64; 0 where none is finite."""
    finite = x[x.isfinite()].double()
    return float(finite.max() - finite.min()) if len(finite) else 0.0


def round_down(bound: float) -> Tensor:
    """The largest finite float32 that is not above a float64 bound >= 0; a scalar."""
    rounded = np.float32(min(bound, _FLOAT32.max))
    if float(rounded) > bound:
        rounded = np.nextafter(rounded, np.float32(0))
    return torch.tensor(float(rounded), dtype=torch.float32)


def step_of(bound: Tensor) -> tuple[Tensor, Tensor]:
    """(step, 1 / step) as float32 scalars; (0, 0) where either is not a normal finite number."""
    step = bound * 2
    inverse = 1 / step
    for value in (step, inverse):
        if not _FLOAT32.tiny <= float(value) <= _FLOAT32.max:
            return torch.zeros(()), torch.zeros(())
    return step, inverse


def quantize(x: Tensor, bound: Tensor, step: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """[N] float32 -> q: [N] int32, 0 where verbatim; verbatim: [N] bool, the rule of the contract.

    Each operation below rounds to float32 once: there is no fused multiply-add.
    """
    rounded = (x * inverse + _MAGIC) - _MAGIC
    decoded = rounded * step
    error = (x.double() - decoded.double()).abs()
    fits = x.isfinite() & (rounded.abs() <= MAX_INDEX) & (error <= bound.double())
    return torch.where(fits, rounded, 0).to(torch.int32), ~fits


def _assemble(first: int, kind: int, indices: Tensor, x: Tensor, verbatim: Tensor) -> Tensor:
    """Header (its first word as an int), indices, padding, verbatim positions and bits."""
    positions = verbatim.nonzero().view(-1)
    padding = -len(indices) % 8
    word = kind | padding << 4 | len(positions) << 7
    header = torch.tensor([first, word - 2**32 if word >= 2**31 else word], dtype=torch.int32)
    zeros = torch.zeros(padding, dtype=torch.uint8)
    rest = [_bytes(positions.to(torch.int32)), _bytes(x[positions])]
    return torch.cat([_bytes(header), indices, zeros, *rest])


def decode_segment(data: Tensor, num_rows: int, dim: int) -> Tensor:
    """The inverse of `encode_segment`: [n, D] float32. Raises ValueError: invalid bytes."""
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
    """[N] float32 before the verbatim values are placed. first: the header's float32 scalar."""
    if kind == RAW:
        valid = len(indices) == 4 * num_values and not num_verbatim
        return _require(valid, indices.clone(), "size of raw rows").view(torch.float32)
    if kind == CONSTANT:
        # By bits: a float may lose a NaN's.
        constant = first.view(torch.int32).repeat(num_values).view(torch.float32)
        return _require(len(indices) == 0, constant, "indices of a constant")
    if kind not in _DECODERS:
        raise ValueError(f"unknown encoder {kind}")
    if not _FLOAT32.tiny <= float(first) <= _FLOAT32.max:
        raise ValueError("the step is not a normal number > 0")
    return _DECODERS[kind](indices, dim, num_values).to(torch.float32) * first


def _require(valid: bool, result: Tensor, what: str) -> Tensor:
    if not valid:
        raise ValueError(f"invalid {what}")
    return result


def _bytes(words: Tensor) -> Tensor:
    return words.contiguous().view(torch.uint8)
