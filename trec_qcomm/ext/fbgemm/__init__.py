"""Rows coded by FBGEMM's own operators, in FBGEMM's layout. Wire: FORMAT.md, "fbgemm".

FBGEMM's operators take contiguous rows and make contiguous ones. So the rows of all segments are
gathered (unless they lie one behind the other), one operator codes them all, and the coded rows are
copied to their segments' places; to decode, the same the other way. The backends differ in how rows
and bytes are moved. What is in a row is what the operator wrote on this device.
Shapes: S segments, R rows in all, D values a row, W coded bytes a row.
"""

import torch
from torch import Tensor

from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ext.fbgemm import cpu, operators, reference
from trec_qcomm.ext.fbgemm.layouts import LAYOUTS, check_dim
from trec_qcomm.ext.fbgemm.operators import is_installed
from trec_qcomm.ops import cast
from trec_qcomm.ops.dispatch import Backend, arrays, check_buffers, gpu_kernels


def nbytes(segments: Segments, precision: str) -> Tensor:
    """Return [S] int64, the exact size of each segment in bytes.

    Args: segments: the rows.  precision: a key of LAYOUTS.
    Raises: ValueError: rows of a length that the operator does not take.
    """
    return segments.nbytes_of_rows(_row_nbytes(segments, precision))


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    precision: str,
    refuse_nonfinite: bool = False,
    backend: Backend | None = None,
) -> Encoded:
    """Encode the rows. Arguments: core.codec.Codec.encode, and those below.

    Args:
        precision: a key of LAYOUTS.
        refuse_nonfinite: whether NaN or inf is an error, for which a GPU is waited for.
    Raises:
        ValueError: a shape, dtype or device that the kernels do not take.
        UnencodableError: NaN or inf, if so asked.
    """
    sizes = nbytes(segments, precision)
    backend = check_buffers(values, segments, payload, at, sizes, backend)
    ends = _places_of_rows(segments)
    if int(ends[-1]):
        rows = _packed(values, segments)
        if rows is None:
            rows = torch.empty(int(ends[-1]) // 4, device=values.device)
            to = rows.view(torch.uint8)
            cast.encode(values, segments, to, ends[:-1], dtype="fp32", backend=backend)
        if refuse_nonfinite:
            _refuse_nonfinite(rows, ends)
        coded = operators.quantize(rows, precision, segments.dim)
        width = _row_nbytes(segments, precision)
        _copy(coded, _places_of_coded(ends, segments, width), payload, at, segments, width, backend)
    return Encoded(payload, at, sizes)


def decode(
    encoded: Encoded,
    segments: Segments,
    out: Tensor,
    *,
    precision: str,
    backend: Backend | None = None,
) -> None:
    """Decode the rows into `out`. The caller has checked that nbytes fit.

    Raises: ValueError: a shape, dtype or device that the kernels do not take.
    """
    payload, width = encoded.payload, _row_nbytes(segments, precision)
    sizes = nbytes(segments, precision)
    backend = check_buffers(out, segments, payload, encoded.at, sizes, backend)
    ends = _places_of_rows(segments)
    if not int(ends[-1]):
        return
    places = _places_of_coded(ends, segments, width)
    coded = payload.new_empty(int(places[-1]))
    _copy(payload, encoded.at, coded, places, segments, width, backend, pads=False)
    rows = operators.dequantize(coded, precision, segments.dim).view(torch.uint8)
    packed = Encoded(rows, ends[:-1], torch.diff(ends))
    cast.decode(packed, segments, out, dtype="fp32", backend=backend)


def _row_nbytes(segments: Segments, precision: str) -> int:
    check_dim(precision, segments.dim)
    return LAYOUTS[precision].row_nbytes(segments.dim)


def _packed(values: Tensor, segments: Segments) -> Tensor | None:
    """Return all rows as a view where they lie one behind the other, so that none is gathered."""
    offsets, start, stride = segments.arrays
    places = offsets[:-1] * segments.dim + start[0]
    if segments.dim % 2 or (stride != segments.dim).any() or (start != places).any():
        return None
    return values.detach().view(-1)[start[0] : start[0] + offsets[-1] * segments.dim]


def _places_of_rows(segments: Segments) -> Tensor:
    """Return [S + 1] int64, where each segment's gathered rows begin, in bytes, and all end.

    There are bytes between segments only where D is odd, which no operator takes that needs whole
    rows.
    """
    return exclusive_cumsum(segments.nbytes_of_rows(4 * segments.dim))


def _places_of_coded(places_of_rows: Tensor, segments: Segments, width: int) -> Tensor:
    """Return [S + 1] int64, where what an operator made of each segment begins, and all ends."""
    return places_of_rows * width // (4 * segments.dim)


def _refuse_nonfinite(rows: Tensor, ends: Tensor) -> None:
    """Raise UnencodableError at the first segment with NaN or inf; waits for a GPU."""
    bad = ~rows.isfinite()
    if bool(bad.any()):
        value = int(bad.to(torch.uint8).argmax())
        segment = int(torch.searchsorted(ends, 4 * value, right=True)) - 1
        raise UnencodableError("NaN or inf (nonfinite: raise)", segment=segment)


def _copy(
    source: Tensor,
    source_at: Tensor,
    target: Tensor,
    target_at: Tensor,
    segments: Segments,
    width: int,
    backend: Backend,
    *,
    pads: bool = True,
) -> None:
    """Copy the coded rows of all segments from places in `source` to places in `target`.

    Args:
        source, target: uint8.
        source_at, target_at: [S] int64 or longer, on CPU, where each segment begins.
        width: W.
        pads: whether zeros follow, up to a multiple of 8 bytes.
    """
    sizes = segments.num_rows * width
    if backend == "cpu":
        vectors = arrays(source, source_at, target, target_at, sizes)
        cpu.copy(*vectors, pads)
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        kernels.copy(source, source_at, target, target_at, sizes, width=width, pads=pads)


__all__ = ["LAYOUTS", "check_dim", "decode", "encode", "is_installed", "nbytes"]
