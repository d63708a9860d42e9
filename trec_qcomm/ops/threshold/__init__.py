"""Values of at least some magnitude, wherever they are in a segment. Wire: FORMAT.md, "threshold".

Magnitudes are ordered |x| < inf < NaN, so what is not finite is kept whatever the threshold is. The
others decode to 0. Values are stored as ops.sparsify says; their places as gaps, each in as many
bits as the largest needs, or as a bitmap where that is smaller.
Source: Gupta et al. 2021 (DCT, data parallel); the format is ours.
"""

from typing import Any

import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.ops.binding import Backend, arrays, check_buffers
from trec_qcomm.ops.sparsify import Values, kind_of, levels_of
from trec_qcomm.ops.sparsify import reference as sparse
from trec_qcomm.ops.threshold import cpu, reference

_REASONS = {
    cpu.BAD_SIZE: sparse.REASONS["size"],
    cpu.BAD_FORM: sparse.REASONS["form"],
    cpu.BAD_SCALE: sparse.REASONS["scale"],
    cpu.BAD_COUNT: sparse.REASONS["count"],
    cpu.BAD_PLACES: sparse.REASONS["columns"],
}


def max_nbytes(segments: Segments, values: Values) -> Tensor:
    """[S] int64: never exceeded, however many values are kept."""
    numel = segments.num_rows * segments.dim
    size = sparse.NBYTES[kind_of(values)]
    return aligned(sparse.HEADER_NBYTES + numel * size + (numel + 7) // 8)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    thresholds: Tensor,
    stored: Values,
    backend: Backend = "cpu",
) -> Encoded:
    """Write the values with |x| >= threshold, and NaN.

    Args:   see core.codec.Codec.encode.  thresholds: [S] float64, finite, >= 0.  stored: how.
    Raises: ValueError: a shape, dtype, device, threshold or stored out of range.
    """
    kind, levels = kind_of(stored), levels_of(thresholds, segments)
    check_buffers(values, segments, payload, at, max_nbytes(segments, stored))
    if backend == "reference":
        sizes = reference.encode(values, segments, payload, at, kind=kind, levels=levels)
        return Encoded(payload, at, sizes)
    sizes = torch.empty_like(at)
    rows, places, offsets = arrays(values, payload, at)
    choice = arrays(levels, sizes)
    cpu.encode(rows, *_layout(segments), segments.dim, places, offsets, kind, *choice)
    return Encoded(payload, at, sizes)


def decode(encoded: Encoded, segments: Segments, out: Tensor, *, backend: Backend = "cpu") -> None:
    """Write the rows to `out`, zeros where nothing was kept.

    Raises: ValueError as `encode`.  CorruptFrameError: bytes that no encoder writes.
    """
    check_buffers(out, segments, encoded.payload, encoded.at, encoded.nbytes)
    if backend == "reference":
        reference.decode(encoded, segments, out)
        return
    where = arrays(encoded.payload, encoded.at, encoded.nbytes)
    bad, segment = cpu.decode(*where, *_layout(segments), segments.dim, *arrays(out))
    if bad != cpu.OK:
        raise CorruptFrameError(_REASONS[int(bad)], segment=int(segment))


def _layout(segments: Segments) -> tuple[Any, ...]:
    return arrays(segments.offsets, segments.start, segments.stride)


__all__ = ["decode", "encode", "max_nbytes"]
