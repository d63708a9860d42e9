"""Values above a threshold, in plain torch: the definition. Segment bytes: FORMAT.md, "threshold".

Shapes: N values of a segment, K of them kept.
"""

import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.ops.sparsify import reference as sparse

BITMAP = 255  # stands where the width of gaps would
MAX_WIDTH = 31


def places_of(keep: Tensor) -> tuple[int, Tensor]:
    """Return the width of the gaps, or BITMAP, and the bytes of the places. keep: [N] bool."""
    places = keep.nonzero().view(-1)
    gaps = torch.diff(places, prepend=torch.tensor([-1])) - 1
    width = int(gaps.max()).bit_length() if len(gaps) else 0
    packed = sparse.pack_numbers(gaps, width)
    bitmap = sparse.pack_bits(keep)
    return (width, packed) if packed.numel() <= bitmap.numel() else (BITMAP, bitmap)


def keep_of_places(width: int, data: Tensor, numel: int, num_kept: int) -> Tensor:
    """Return [N] bool, which values were kept: the inverse of `places_of`.

    Raises: CorruptFrameError: places that do not exist.
    """
    if width == BITMAP:
        keep = sparse.unpack_bits(data, numel) == 1
        _check(int(keep.sum()) == num_kept, "columns")
        return keep
    places = (sparse.unpack_numbers(data, width, num_kept) + 1).cumsum(0) - 1
    _check(num_kept == 0 or int(places[-1]) < numel, "columns")
    return torch.zeros(numel, dtype=torch.bool).index_fill_(0, places, True)


def encode(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, *, kind: int, levels: Tensor
) -> Tensor:
    """Write the segments; return [S] int64 nbytes. levels: [S] int64, values with keys above are
    kept."""
    sizes = []
    for s in range(segments.num_segments):
        x = segments.block(values, s).flatten()
        keep = sparse.keep_above(x, int(levels[s]))
        scale = sparse.value_scale(x[keep], kind)
        width, places = places_of(keep)
        parts = [
            torch.tensor([kind, width, 0, 0], dtype=torch.uint8),
            torch.tensor([scale]),
            torch.tensor([int(keep.sum())], dtype=torch.int32),
            sparse.store_values(x[keep], kind, scale),
            places,
        ]
        sizes.append(sparse.write(payload, int(at[s]), parts))
    return torch.tensor(sizes, dtype=torch.int64)


def decode(encoded: Encoded, segments: Segments, out: Tensor) -> None:
    """Write the rows, with zeros where nothing was kept. Raise CorruptFrameError for bytes that no
    encoder writes."""
    for s in range(segments.num_segments):
        data = encoded.payload[int(encoded.at[s]) :][: int(encoded.nbytes[s])].clone()
        rows = segments.block(out, s)
        try:
            rows.copy_(_decode_segment(data, rows.numel()).view(rows.shape))
        except CorruptFrameError as error:
            raise CorruptFrameError(error.reason, segment=s) from error


def _decode_segment(data: Tensor, numel: int) -> Tensor:
    _check(data.numel() >= sparse.HEADER_NBYTES, "size")
    kind, width = int(data[0]), int(data[1])
    num_kept = int(data[8:12].view(torch.int32)) & 0xFFFFFFFF
    _check(kind in sparse.NBYTES and (width <= MAX_WIDTH or width == BITMAP), "form")
    scale = sparse.scale_of(data, kind)
    _check(num_kept <= numel, "count")
    end = sparse.HEADER_NBYTES + sparse.NBYTES[kind] * num_kept
    size = -(-numel // 8) if width == BITMAP else sparse.packed_nbytes(num_kept, width)
    _check(data.numel() == int(aligned(torch.tensor(end + size))), "size")
    keep = keep_of_places(width, data[end : end + size], numel, num_kept)
    x = torch.zeros(numel)
    kept = sparse.load_values(data[sparse.HEADER_NBYTES : end], kind, scale)
    x.view(torch.int32)[keep] = kept.view(torch.int32)  # as bits, so a signalling NaN stays one
    return x


def _check(ok: bool, what: str) -> None:
    if not ok:
        raise CorruptFrameError(sparse.REASONS[what])
