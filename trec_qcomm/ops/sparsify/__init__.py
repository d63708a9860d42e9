"""Sparse rows: only some columns of each row are coded. Wire: FORMAT.md, "topk", "forward_mask".

The kept columns are the k of largest magnitude, those above a threshold, or those that a mask
names. Magnitudes are ordered |x| < inf < NaN, so NaN and inf are kept first; equal magnitudes are
ordered by column. Columns that are not kept decode to 0. Kept values are stored as
    fp32  their bits.
    fp16  x / scale. The scale is a power of two that puts the segment's largest finite magnitude
          into [2^13, 2^14). Magnitudes down to 2^-27 of the largest keep 11 bits of precision;
          below, the absolute error is 2^-38 of the largest. So gradients of 1e-5 keep their
          precision, and no finite value becomes inf.
    int8  round(x / scale). The scale is the segment's largest finite magnitude / 126, so the error
          is at most half a scale. There is one scale for each segment, not for each row: a row
          keeps some 6 values, and a scale of 2 bytes would add a third to it.
Source: Gupta et al. 2021 (DCT, model parallel); the format, scaling and NaN are ours.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from trec_qcomm.core.checks import raise_first
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Masks, Segments, aligned, mask_nbytes
from trec_qcomm.core.transfer import download
from trec_qcomm.ops.dispatch import Backend, arrays, check_buffers, choose_backend, gpu_kernels
from trec_qcomm.ops.sparsify import cpu, reference
from trec_qcomm.ops.sparsify.masks import masked_counts

ValueFormat = Literal["fp32", "fp16", "int8"]
_KEY_OF_ONE = 0x3F800000
_KINDS = {"fp32": reference.FP32, "fp16": reference.FP16, "int8": reference.INT8}
_REASONS = {
    cpu.BAD_SIZE: reference.REASONS["size"],
    cpu.BAD_FORM: reference.REASONS["form"],
    cpu.BAD_SCALE: reference.REASONS["scale"],
    cpu.BAD_COUNT: reference.REASONS["count"],
    cpu.BAD_COLUMNS: reference.REASONS["columns"],
}


def top_k_nbytes(segments: Segments, k: int, stored: ValueFormat) -> Tensor:
    """Return [S] int64, the exact size in bytes of each segment with k columns a row."""
    num_kept = segments.num_rows * k
    columns = (num_kept * (segments.dim - 1).bit_length() + 7) // 8
    positions = torch.minimum(columns, segments.num_rows * mask_nbytes(segments.dim))
    size = reference.NBYTES[kind_of(stored)]
    return aligned(reference.HEADER_NBYTES + num_kept * size + positions)


def max_nbytes(segments: Segments, stored: ValueFormat) -> Tensor:
    """Return [S] int64, sizes in bytes that are never exceeded, however many columns are kept."""
    row = segments.dim * reference.NBYTES[kind_of(stored)] + mask_nbytes(segments.dim)
    return aligned(reference.HEADER_NBYTES + segments.num_rows * row)


def masked_nbytes(
    segments: Segments, stored: ValueFormat, *, backend: Backend | None = None
) -> Tensor:
    """Return [S] int64, the exact size in bytes of the columns that each segment's masks keep.

    Without masks it is the size of all columns. Waits for a GPU, where `Masks.counts` is None.
    """
    if segments.masks is None:
        return _masked_nbytes(segments.num_rows * segments.dim, kind_of(stored))
    num_kept = segments.masks.counts
    if num_kept is None:
        num_kept = download(kept_counts(segments, backend=backend))
    return _masked_nbytes(num_kept, kind_of(stored))


def kept_counts(segments: Segments, *, backend: Backend | None = None) -> Tensor:
    """Return [S] int64, in the memory of the masks: how many columns each segment's masks keep.

    Raises: ValueError: no masks.
    """
    masks = _masks(segments)
    backend = choose_backend(backend, masks.bits)
    if backend != "gpu":
        return _masked_counts(segments, masks)
    kernels = _kernels(backend, segments)
    counts: Tensor = kernels.counts_of(segments, kernels.kept_by(segments))
    return counts


def encode_top_k(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    k: int,
    stored: ValueFormat,
    backend: Backend | None = None,
) -> Encoded:
    """Encode the k columns of largest magnitude of each row, and note them in the masks, if any.

    Arguments: core.codec.Codec.encode, and those below.

    Args: k: 1..D, columns to keep in each row.  stored: fp32, fp16 or int8, how values are stored.
    Raises: ValueError: a wrong shape, dtype or device; k or `stored` out of range.
    """
    if not 1 <= k <= segments.dim:
        raise ValueError(f"k: {k} is not in 1..{segments.dim}")
    levels = torch.full_like(at, _KEY_OF_ONE)  # where the search begins
    max_sizes = top_k_nbytes(segments, k, stored)
    return _encode(values, segments, payload, at, max_sizes, kind_of(stored), k, levels, backend)


def encode_above(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    thresholds: Tensor,
    stored: ValueFormat,
    backend: Backend | None = None,
) -> Encoded:
    """Encode the columns with |x| >= threshold, and NaN; note them in the masks, if any.

    Arguments: core.codec.Codec.encode, and those below.

    Args:
        thresholds: [S] float64, finite, >= 0.
        stored: fp32, fp16 or int8, how values are stored.
    Raises: ValueError: a wrong shape, dtype or device; a threshold or `stored` out of range.
    """
    max_sizes = max_nbytes(segments, stored)
    levels = levels_of(thresholds, segments)
    return _encode(values, segments, payload, at, max_sizes, kind_of(stored), 0, levels, backend)


def levels_of(thresholds: Tensor, segments: Segments) -> Tensor:
    """Return the `level_below` of each segment's threshold.

    Raises: ValueError: thresholds that are not [S] float64, finite, >= 0.
    """
    if thresholds.dtype != torch.float64 or thresholds.shape != (segments.num_segments,):
        raise ValueError(f"thresholds: expected [{segments.num_segments}] float64")
    bad = ~(thresholds.isfinite() & (thresholds >= 0))
    if bool(bad.any()):
        raise ValueError(f"thresholds: {float(thresholds[bad][0])} is not a finite number >= 0")
    return level_below(thresholds)


def level_below(thresholds: Tensor) -> Tensor:
    """Return [S] int64 levels such that exactly the x with |x| >= threshold, and NaN, have keys
    above the level. thresholds: [S] float64, >= 0."""
    least = thresholds.abs().float()  # the smallest float32 that is not below the threshold
    rounded_down = least.double() < thresholds
    least = torch.where(rounded_down, torch.nextafter(least, torch.tensor(torch.inf)), least)
    return reference.keys_of(least).to(torch.int64) - 1


def decode(
    encoded: Encoded, segments: Segments, out: Tensor, *, backend: Backend | None = None
) -> None:
    """Decode the rows into `out`, with zeros in columns that were not kept; note the masks, if any.

    Raises:
        ValueError: a wrong shape, dtype or device.
        CorruptFrameError: bytes that no encoder writes; on a GPU raised when core.checks says.
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
    stored: ValueFormat,
    backend: Backend | None = None,
) -> Encoded:
    """Encode the columns that `segments.masks` name.

    Raises: ValueError: no masks; a wrong shape, dtype or device; `stored` out of range.
    """
    kind, masks = kind_of(stored), _masks(segments)
    segments.check_fits(values)
    backend, counts = choose_backend(backend, values), masks.counts
    if backend == "gpu":
        kernels = _kernels(backend, segments)
        kept = kernels.kept_by(segments)
        if counts is None:
            counts = download(kernels.counts_of(segments, kept))
    elif counts is None:
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
    """Decode the rows into `out`, with zeros in columns that the masks do not name.

    Raises:
        ValueError: no masks; a wrong shape, dtype or device.
        CorruptFrameError: bytes that no encoder writes; on a GPU raised when core.checks says.
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
    max_sizes: Tensor,
    kind: int,
    k: int,
    levels: Tensor,
    backend: Backend | None,
) -> Encoded:
    backend = check_buffers(values, segments, payload, at, max_sizes, backend)
    if backend != "cpu":
        kernels = _kernels(backend, segments)
        sizes = kernels.encode(values, segments, payload, at, kind=kind, k=k, levels=levels)
        # With k the sizes are known; those of a GPU may not have arrived yet.
        return Encoded(payload, at, max_sizes if k > 0 else download(sizes))
    masks = segments.masks or _scratch_masks(segments)
    sizes = torch.empty_like(at)
    rows, places, offsets = arrays(values, payload, at)
    vectors = arrays(levels, masks.bits, masks.at, sizes)
    cpu.encode(rows, *arrays(*_layout(segments)), segments.dim, places, offsets, kind, k, *vectors)
    return Encoded(payload, at, sizes)


def kind_of(values: str) -> int:
    """Return the wire's code (field `values`) for a format of stored values.

    Raises: ValueError: not one of fp32, fp16, int8.
    """
    if values not in _KINDS:
        raise ValueError(f"values: {values!r} is not one of {get_args(ValueFormat)}")
    return _KINDS[values]


def error_of(bad: int) -> CorruptFrameError:
    """Return the error that `bad` stands for: 8 times a segment's number plus its BAD_... code."""
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
    "ValueFormat",
    "decode",
    "decode_masked",
    "encode_above",
    "encode_masked",
    "encode_top_k",
    "error_of",
    "kept_counts",
    "kind_of",
    "level_below",
    "levels_of",
    "masked_nbytes",
    "max_nbytes",
    "top_k_nbytes",
]
