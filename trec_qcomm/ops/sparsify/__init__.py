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

from trec_qcomm.core.checks import raise_first
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Masks, Segments, aligned, mask_nbytes
from trec_qcomm.core.transfer import download
from trec_qcomm.ops.binding import Backend, arrays, check_buffers, choose_backend, gpu_kernels
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


def masked_nbytes(segments: Segments, values: Values, *, backend: Backend | None = None) -> Tensor:
    """[S] int64: the exact size of each segment's kept columns; without masks, of all columns.
    Masks on a GPU are counted there, which is waited for."""
    if segments.masks is None:
        return _masked_nbytes(segments.num_rows * segments.dim, kind_of(values))
    backend = choose_backend(backend, segments.masks.bits)
    if backend == "gpu":
        kernels = _kernels(backend, segments)
        num_kept = download(kernels.counts_of(segments, kernels.kept_by(segments)))
    else:
        num_kept = _masked_counts(segments, segments.masks)
    return _masked_nbytes(num_kept, kind_of(values))


def encode_top_k(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    k: int,
    stored: Values,
    backend: Backend | None = None,
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
    backend: Backend | None = None,
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


def decode(
    encoded: Encoded, segments: Segments, out: Tensor, *, backend: Backend | None = None
) -> None:
    """Write the rows to `out`, zeros in columns that were not kept; note the masks, if any.

    Raises: ValueError as `encode_top_k`.  CorruptFrameError: bytes that no encoder writes; on a GPU
        when core.checks says.
    """
    backend = check_buffers(out, segments, encoded.payload, encoded.at, encoded.nbytes, backend)
    if backend == "reference":
        reference.decode(encoded, segments, out)
    elif backend == "gpu":
        raise_first(_kernels(backend, segments).decode(encoded, segments, out), error_of)
    else:
        masks = segments.masks or _scratch_masks(segments)
        where = arrays(encoded.payload, encoded.at, encoded.nbytes, *_layout(segments))
        places = arrays(out, masks.bits, masks.at)
        bad, segment = cpu.decode(*where, segments.dim, *places)
        raise_first(8 * segment + bad, error_of)


def encode_masked(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    stored: Values,
    backend: Backend | None = None,
) -> Encoded:
    """Write the columns that `segments.masks` name. Raises ValueError where it is None."""
    kind, masks = kind_of(stored), _masks(segments)
    segments.check_fits(values)
    backend = choose_backend(backend, values)
    if backend == "gpu":
        kernels = _kernels(backend, segments)
        kept = kernels.kept_by(segments)
        counts = download(kernels.counts_of(segments, kept))
    else:
        counts = _masked_counts(segments, masks)
    sizes = _masked_nbytes(counts, kind)
    check_buffers(values, segments, payload, at, sizes, backend)
    if backend == "reference":
        sizes = reference.encode_masked(values, segments, payload, at, kind=kind)
    elif backend == "gpu":
        kernels.encode_masked(values, segments, payload, at, kind=kind, kept=kept)
    else:
        rows, places, offsets = arrays(values, payload, at)
        bits = arrays(masks.bits, masks.at, counts)
        layout = arrays(*_layout(segments))
        cpu.encode_masked(rows, *layout, segments.dim, places, offsets, kind, *bits)
    return Encoded(payload, at, sizes)


def decode_masked(
    encoded: Encoded, segments: Segments, out: Tensor, *, backend: Backend | None = None
) -> None:
    """Write the rows to `out`, zeros in columns that the masks do not name.

    Raises: ValueError: no masks, and as `encode_top_k`.  CorruptFrameError as `decode`.
    """
    masks = _masks(segments)
    backend = check_buffers(out, segments, encoded.payload, encoded.at, encoded.nbytes, backend)
    if backend == "reference":
        reference.decode_masked(encoded, segments, out)
    elif backend == "gpu":
        raise_first(_kernels(backend, segments).decode_masked(encoded, segments, out), error_of)
    else:
        where = arrays(encoded.payload, encoded.at, encoded.nbytes, *_layout(segments))
        places = arrays(out, masks.bits, masks.at, _masked_counts(segments, masks))
        bad, segment = cpu.decode_masked(*where, segments.dim, *places)
        raise_first(8 * segment + bad, error_of)


def _encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    most: Tensor,
    kind: int,
    k: int,
    levels: Tensor,
    backend: Backend | None,
) -> Encoded:
    backend = check_buffers(values, segments, payload, at, most, backend)
    if backend != "cpu":
        kernels = _kernels(backend, segments)
        sizes = kernels.encode(values, segments, payload, at, kind=kind, k=k, levels=levels)
        # With k they are known; a GPU's may be on their way.
        return Encoded(payload, at, most if k > 0 else download(sizes))
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


def error_of(bad: int) -> CorruptFrameError:
    """Of 8 times the number of a segment, plus what is wrong with it."""
    return CorruptFrameError(_REASONS[bad % 8], segment=bad // 8)


def _kernels(backend: Backend, segments: Segments) -> Any:
    if backend == "reference":
        return reference
    kernels = gpu_kernels(__name__)
    if segments.dim > kernels.MAX_DIM:
        raise ValueError(f"Segments.dim: {segments.dim} is above {kernels.MAX_DIM}, on a GPU")
    return kernels


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


def _masked_nbytes(num_kept: Tensor, kind: int) -> Tensor:
    return aligned(reference.MASKED_HEADER_NBYTES + num_kept * reference.NBYTES[kind])


def _masked_counts(segments: Segments, masks: Masks) -> Tensor:
    counts = torch.empty_like(segments.start)
    offsets, bits, at, out = arrays(segments.offsets, masks.bits, masks.at, counts)
    masked_counts(offsets, segments.dim, bits, at, out)
    return counts


__all__ = [
    "Values",
    "decode",
    "decode_masked",
    "encode_above",
    "encode_masked",
    "encode_top_k",
    "error_of",
    "kind_of",
    "level_below",
    "levels_of",
    "masked_nbytes",
    "max_nbytes",
    "top_k_nbytes",
]
