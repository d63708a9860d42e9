"""Rows that lie anywhere, coded by operators that take contiguous rows and make contiguous ones.

So the rows of all segments are gathered (unless they lie one behind the other), one operator codes
them all, and the coded rows are copied to their segments' places; to decode, the same the other
way. Every backend has its own `copy` of coded rows:

    copy(source, source_at, target, target_at, sizes, *, width, pads)
        source, target: uint8.
        source_at, target_at: [S] int64 or longer, on CPU, where each segment begins.
        sizes: [S] int64, bytes of each segment.
        width: W.
        pads: whether zeros follow, up to a multiple of 8 bytes.

Shapes: S segments, R rows in all, D values a row, W coded bytes a row.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from trec_qcomm.codecs import Identity
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ext.fbgemm import operators
from trec_qcomm.ext.fbgemm.layouts import LAYOUTS

Copy = Callable[..., None]


def encode(
    copy: Copy,
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    precision: str,
    refuses: bool,
) -> tuple[int, None]:
    """Encode the rows; return the first segment with NaN or inf, or -1, where `refuses`.

    Args:
        copy: function of a backend that moves coded rows, see the module.
        precision: a key of LAYOUTS.
        refuses: whether to look for NaN and inf, for which a GPU is waited for.
    """
    ends, width = _places_of_rows(segments), LAYOUTS[precision].row_nbytes(segments.dim)
    if not int(ends[-1]):
        return -1, None
    rows = _packed(values, segments)
    if rows is None:
        rows = torch.empty(int(ends[-1]) // 4, device=values.device)
        Identity().encode(values, segments, rows.view(torch.uint8), ends[:-1])
    if refuses and (first := _first_nonfinite(rows, ends)) >= 0:
        return first, None
    coded = operators.quantize(rows, precision, segments.dim)
    places, sizes = _places_of_coded(ends, segments, width), segments.num_rows * width
    copy(coded, places, payload, at, sizes, width=width, pads=True)
    return -1, None


def decode(
    copy: Copy, encoded: Encoded, segments: Segments, out: Tensor, *, precision: str
) -> None:
    """Decode the rows into `out`. Args: copy, precision: see `encode`."""
    ends, width = _places_of_rows(segments), LAYOUTS[precision].row_nbytes(segments.dim)
    if not int(ends[-1]):
        return
    places, sizes = _places_of_coded(ends, segments, width), segments.num_rows * width
    coded = encoded.payload.new_empty(int(places[-1]))
    copy(encoded.payload, encoded.at, coded, places, sizes, width=width, pads=False)
    rows = operators.dequantize(coded, precision, segments.dim).view(torch.uint8)
    Identity().decode(Encoded(rows, ends[:-1], torch.diff(ends)), segments, out)


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


def _first_nonfinite(rows: Tensor, ends: Tensor) -> int:
    """Return the first segment with NaN or inf, or -1; waits for a GPU."""
    bad = ~rows.isfinite()
    if not bool(bad.any()):
        return -1
    value = int(bad.to(torch.uint8).argmax())
    return int(torch.searchsorted(ends, 4 * value, right=True)) - 1
