"""Some columns of each row: the k of largest magnitude, those above a threshold, or those that a
mask names. Wire: FORMAT.md, "topk" and "forward_mask".

Magnitudes are ordered |x| < inf < NaN, so what is not finite is kept first; equal ones by column.
Columns that are not kept decode to 0. Those that are kept are stored as
    fp32  their bits.
    fp16  x / scale, scale a power of two that puts the segment's largest finite magnitude into
          [2^13, 2^14): 11 bits of precision for magnitudes down to 2^-27 of the largest, absolute
          error 2^-38 of it below; gradients of 1e-5 keep theirs, and nothing finite becomes inf.
    int8  round(x / scale), scale the segment's largest finite magnitude / 126: half a scale off
          at most. One scale a segment and not a row: a row keeps some 6 values, and 2 bytes more
          for each would be a third of it.
Source: Gupta et al. 2021 (DCT, model parallel); the format, scaling and NaN are ours.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Masks, Segments, aligned, mask_nbytes
from trec_qcomm.ops.binding import Backend, arrays, check_buffers
from trec_qcomm.ops.sparsify import cpu, reference
from trec_qcomm.ops.sparsify.masks import masked_counts

Values = Literal["fp32", "fp16", "int8"]
_KEY_OF_ONE = 0x3F800000
_KINDS = {"fp32": reference.FP32, "fp16": reference.FP16, "int8": reference.INT8}
_REASONS = {
    cpu.BAD_SIZE: reference.REASONS["size"],
    cpu.BAD_FORM: reference.REASONS["form"],
    cpu.BAD_SCALE: reference.REASONS["scale"],
    cpu.BAD_COUNT: reference.REASONS["count"],
    cpu.BAD_COLUMNS: reference.REASONS["columns"],
}


def top_k_nbytes(segments: Segments, k: int, values: Values) -> Tensor:
    """[S] int64: the exact size of each segment with k columns a row."""
    num_kept = segments.num_rows * k
    columns = (num_kept * (segments.dim - 1).bit_length() + 7) // 8
    positions = torch.minimum(columns, segments.num_rows * mask_nbytes(segments.dim))
    size = reference.NBYTES[kind_of(values)]
    return aligned(reference.HEADER_NBYTES + num_kept * size + positions)


def max_nbytes(segments: Segments, values: Values) -> Tensor:
    """[S] int64: never exceeded, however many columns are kept."""
    row = segments.dim * reference.NBYTES[kind_of(values)] + mask_nbytes(segments.dim)
    return aligned(reference.HEADER_NBYTES + segments.num_rows * row)


def masked_nbytes(segments: Segments, values: Values) -> Tensor:
    """[S] int64: the exact size of each segment's kept columns; without masks, of all columns."""
    num_kept = segments.num_rows * segments.dim
    if segments.masks is not None:
        num_kept = _masked_counts(segments, segments.masks)
    return aligned(reference.MASKED_HEADER_NBYTES + num_kept * reference.NBYTES[kind_of(values)])


def encode_top_k(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    k: int,
    stored: Values,
    backend: Backend = "cpu",
) -> Encoded:
    """Write the k columns of largest magnitude of each row, and note them in the masks, if any.

    Args:   see core.codec.Codec.encode.  k: 1..D.  stored: see the module.
    Raises: ValueError: a shape, dtype, device, k or stored out of range.
    """
    if not 1 <= k <= segments.dim:
        raise ValueError(f"k: {k} is not in 1..{segments.dim}")
    levels = torch.full_like(at, _KEY_OF_ONE)  # where the search begins
    most = top_k_nbytes(segments, k, stored)
    return _encode(values, segments, payload, at, most, kind_of(stored), k, levels, backend)


def encode_above(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    thresholds: Tensor,
    stored: Values,
    backend: Backend = "cpu",
) -> Encoded:
    """Write the columns with |x| >= threshold, and NaN; note them in the masks, if any.

    Args: thresholds: [S] float64, finite, >= 0.  The rest as `encode_top_k`.
    """
    most = max_nbytes(segments, stored)
    levels = levels_of(thresholds, segments)
    return _encode(values, segments, payload, at, most, kind_of(stored), 0, levels, backend)


def levels_of(thresholds: Tensor, segments: Segments) -> Tensor:
    """`level_below` of each segment. Raises ValueError: not [S] float64, finite, >= 0."""
    if thresholds.dtype != torch.float64 or thresholds.shape != (segments.num_segments,):
        raise ValueError(f"thresholds: expected [{segments.num_segments}] float64")
    bad = ~(thresholds.isfinite() & (thresholds >= 0))
    if bool(bad.any()):
        raise ValueError(f"thresholds: {float(thresholds[bad][0])} is not a finite number >= 0")
    return level_below(thresholds)


def level_below(thresholds: Tensor) -> Tensor:
    """[S] float64 >= 0 -> [S] int64 such that exactly the x with |x| >= threshold, and NaN, have
    keys above it."""
    least = thresholds.abs().float()  # the smallest float32 that is not below the threshold
    rounded_down = least.double() < thresholds
    least = torch.where(rounded_down, torch.nextafter(least, torch.tensor(torch.inf)), least)
    return reference.keys_of(least).to(torch.int64) - 1


def decode(encoded: Encoded, segments: Segments, out: Tensor, *, backend: Backend = "cpu") -> None:
    """Write the rows to `out`, zeros in columns that were not kept; note the masks, if any.

    Raises: ValueError as `encode_top_k`.  CorruptFrameError: bytes that no encoder writes.
    """
    check_buffers(out, segments, encoded.payload, encoded.at, encoded.nbytes)
    if backend == "reference":
        reference.decode(encoded, segments, out)
        return
    masks = segments.masks or _scratch_masks(segments)
    where = arrays(encoded.payload, encoded.at, encoded.nbytes, *_layout(segments))
    places = arrays(out, masks.bits, masks.at)
    _raise_bad(*cpu.decode(*where, segments.dim, *places))


def encode_masked(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    stored: Values,
    backend: Backend = "cpu",
) -> Encoded:
    """Write the columns that `segments.masks` name. Raises ValueError where it is None."""
    kind, masks = kind_of(stored), _masks(segments)
    sizes = masked_nbytes(segments, stored)
    check_buffers(values, segments, payload, at, sizes)
    if backend == "reference":
        sizes = reference.encode_masked(values, segments, payload, at, kind=kind)
    else:
        rows, places, offsets = arrays(values, payload, at)
        counts = _masked_counts(segments, masks).numpy()
        bits = arrays(masks.bits, masks.at)
        layout = arrays(*_layout(segments))
        cpu.encode_masked(rows, *layout, segments.dim, places, offsets, kind, *bits, counts)
    return Encoded(payload, at, sizes)


def decode_masked(
    encoded: Encoded, segments: Segments, out: Tensor, *, backend: Backend = "cpu"
) -> None:
    """Write the rows to `out`, zeros in columns that the masks do not name.

    Raises: ValueError: no masks, and as `encode_top_k`.  CorruptFrameError.
    """
    masks = _masks(segments)
    check_buffers(out, segments, encoded.payload, encoded.at, encoded.nbytes)
    if backend == "reference":
        reference.decode_masked(encoded, segments, out)
        return
    where = arrays(encoded.payload, encoded.at, encoded.nbytes, *_layout(segments))
    places = arrays(out, masks.bits, masks.at, _masked_counts(segments, masks))
    _raise_bad(*cpu.decode_masked(*where, segments.dim, *places))


def _encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    most: Tensor,
    kind: int,
    k: int,
    levels: Tensor,
    backend: Backend,
) -> Encoded:
    check_buffers(values, segments, payload, at, most)
    if backend == "reference":
        sizes = reference.encode(values, segments, payload, at, kind=kind, k=k, levels=levels)
        return Encoded(payload, at, sizes)
    masks = segments.masks or _scratch_masks(segments)
    sizes = torch.empty_like(at)
    rows, places, offsets = arrays(values, payload, at)
    choice = arrays(levels, masks.bits, masks.at, sizes)
    cpu.encode(rows, *arrays(*_layout(segments)), segments.dim, places, offsets, kind, k, *choice)
    return Encoded(payload, at, sizes)


def kind_of(values: str) -> int:
    """The field `values` of the wire. Raises ValueError: no such way to store them."""
    if values not in _KINDS:
        raise ValueError(f"values: {values!r} is not one of {get_args(Values)}")
    return _KINDS[values]


def _layout(segments: Segments) -> tuple[Tensor, Tensor, Tensor]:
    return segments.offsets, segments.start, segments.stride


def _scratch_masks(segments: Segments) -> Masks:
    width = mask_nbytes(segments.dim)
    bits = torch.empty(int(segments.offsets[-1]) * width, dtype=torch.uint8)
    return Masks(bits, segments.offsets[:-1] * width)


def _masks(segments: Segments) -> Masks:
    if segments.masks is None:
        raise ValueError("Segments.masks: there are none; forward_mask codes what a mask names")
    return segments.masks


def _masked_counts(segments: Segments, masks: Masks) -> Tensor:
    counts = torch.empty_like(segments.start)
    offsets, bits, at, out = arrays(segments.offsets, masks.bits, masks.at, counts)
    masked_counts(offsets, segments.dim, bits, at, out)
    return counts


def _raise_bad(bad: Any, segment: Any) -> None:
    if bad != cpu.OK:
        raise CorruptFrameError(_REASONS[int(bad)], segment=int(segment))


__all__ = [
    "Values",
    "decode",
    "decode_masked",
    "encode_above",
    "encode_masked",
    "encode_top_k",
    "kind_of",
    "level_below",
    "levels_of",
    "masked_nbytes",
    "max_nbytes",
    "top_k_nbytes",
]
