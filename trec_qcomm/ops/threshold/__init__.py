"""Values of at least some magnitude, wherever they are in a segment. Wire: FORMAT.md, "threshold".

Magnitudes are ordered |x| < inf < NaN, so NaN and inf are kept whatever the threshold is. Values
that are not kept decode to 0. Kept values are stored as in ops.sparsify. Their places are stored as
gaps, each in as many bits as the largest gap needs, or as a bitmap where that is smaller.
Source: Gupta et al. 2021 (DCT, data parallel); the format is ours.
"""

from typing import Any

import torch
from torch import Tensor

from trec_qcomm.core.checks import raise_first
from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.core.transfer import download
from trec_qcomm.ops.dispatch import Backend, arrays, check_buffers, gpu_kernels
from trec_qcomm.ops.sparsify import ValueFormat, error_of, kind_of, levels_of
from trec_qcomm.ops.sparsify import reference as sparse
from trec_qcomm.ops.threshold import cpu, reference


def max_nbytes(segments: Segments, stored: ValueFormat) -> Tensor:
    """Return [S] int64, sizes in bytes that are never exceeded, however many values are kept."""
    numel = segments.num_rows * segments.dim
    size = sparse.NBYTES[kind_of(stored)]
    return aligned(sparse.HEADER_NBYTES + numel * size + (numel + 7) // 8)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    thresholds: Tensor,
    stored: ValueFormat,
    backend: Backend | None = None,
) -> Encoded:
    """Encode the values with |x| >= threshold, and NaN. Arguments: core.codec.Codec.encode, and
    those below.

    Args:
        thresholds: [S] float64, finite, >= 0.
        stored: fp32, fp16 or int8, how kept values are stored (ops.sparsify).
    Raises: ValueError: a wrong shape, dtype or device; a threshold or `stored` out of range.
    """
    kind, levels = kind_of(stored), levels_of(thresholds, segments)
    backend = check_buffers(values, segments, payload, at, max_nbytes(segments, stored), backend)
    if backend != "cpu":
        kernels = _kernels(backend, segments)
        sizes = kernels.encode(values, segments, payload, at, kind=kind, levels=levels)
        return Encoded(payload, at, download(sizes))
    sizes = torch.empty_like(at)
    rows, places, offsets = arrays(values, payload, at)
    vectors = arrays(levels, sizes)
    cpu.encode(rows, *_layout(segments), segments.dim, places, offsets, kind, *vectors)
    return Encoded(payload, at, sizes)


def decode(
    encoded: Encoded, segments: Segments, out: Tensor, *, backend: Backend | None = None
) -> None:
    """Decode the rows into `out`, with zeros where nothing was kept.

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
        where = arrays(encoded.payload, encoded.at, encoded.nbytes)
        bad, segment = cpu.decode(*where, *_layout(segments), segments.dim, *arrays(out))
        raise_first(8 * segment + bad, error_of)


def _kernels(backend: Backend, segments: Segments) -> Any:
    if backend == "reference":
        return reference
    kernels = gpu_kernels(__name__)
    most = int(segments.num_rows.max()) * segments.dim if segments.num_segments else 0
    if most > kernels.MAX_NUMEL:
        raise ValueError(f"Segments: {most} values in one are above {kernels.MAX_NUMEL}, on a GPU")
    return kernels


def _layout(segments: Segments) -> tuple[Any, ...]:
    return segments.arrays


__all__ = ["decode", "encode", "max_nbytes"]
