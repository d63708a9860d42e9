"""Format threshold: the values of at least some magnitude, wherever they are in a segment.

Their places are stored as gaps, each in as many bits as the segment's largest gap needs, or as a
bitmap if that is smaller. Values that are not kept decode to 0. Wire: FORMAT.md, "threshold".
Source: Gupta et al. 2021 (DCT, data parallel); the format is ours.
Shapes: S segments, N = n D values of one, K kept values of all.
"""

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments, aligned, exclusive_cumsum
from trec_qcomm.core.transfer import download
from trec_qcomm.ext.buffers import (
    item_places,
    put_bytes,
    put_rows,
    read_numbers,
    segment_ids,
    sums_of_rows,
    take_rows,
    unpack_bits,
    write_numbers,
)
from trec_qcomm.ext.dct.heads import (
    BAD_FORM,
    BAD_PLACES,
    HEADER_NBYTES,
    Heads,
    Layout,
    raise_first,
    raise_first_item,
    scatter_kept,
    write_heads,
)
from trec_qcomm.ext.dct.values import NBYTES, ValueFormat, keys_of, kind_of, levels_of
from trec_qcomm.ops.dispatch import check_buffers

BITMAP, MAX_WIDTH = 255, 31  # BITMAP stands where the width of gaps would


def max_nbytes(segments: Segments, stored: ValueFormat) -> Tensor:
    """Return [S] int64, sizes in bytes that no segment exceeds, however many values are kept."""
    numel = segments.num_rows * segments.dim
    return aligned(HEADER_NBYTES + numel * NBYTES[kind_of(stored)] + (numel + 7) // 8)


@torch.no_grad()
def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    thresholds: Tensor,
    stored: ValueFormat,
) -> Encoded:
    """Encode the values with |x| >= threshold, and NaN.

    Arguments are those of core.codec.Codec.encode, and two more.

    Args:
        thresholds: [S] float64, finite, >= 0.
        stored: format of kept values, fp32, fp16 or int8 (ext.dct.values).
    Raises: ValueError: a wrong shape, dtype or device; a threshold out of range.
    """
    check_buffers(values, segments, payload, at, max_nbytes(segments, stored))
    kind, device, count = kind_of(stored), values.device, segments.num_segments
    levels = levels_of(thresholds, count).to(device)
    rows = take_rows(values, segments)
    if count == 1:
        keep = keys_of(rows) > levels
    else:
        keep = keys_of(rows) > levels[segment_ids(segments.num_rows, device)][:, None]
    flat = keep.view(-1).nonzero().view(-1)
    numel, first = segments.num_rows * segments.dim, segments.offsets[:-1] * segments.dim
    ends = torch.searchsorted(flat, (first + numel).to(device))
    num_kept = download(ends.diff(prepend=torch.zeros_like(ends[:1])))
    segment = segment_ids(num_kept, device)
    place = flat - first.to(device)[segment]
    gap = place.diff(prepend=torch.full_like(place[:1], -1)) - 1
    first_kept = exclusive_cumsum(num_kept)[:-1][num_kept > 0].to(device)
    gap[first_kept] = place[first_kept]
    largest = torch.zeros(count, dtype=torch.int64, device=device)
    largest = download(largest.scatter_reduce_(0, segment, gap, "amax"))
    width = torch.frexp(largest.double()).exponent.long()  # its number of bits
    gaps_nbytes, bitmap_nbytes = (num_kept * width + 7) // 8, (numel + 7) // 8
    is_bitmap = (gaps_nbytes > bitmap_nbytes) | (width > MAX_WIDTH)

    layout = Layout(num_kept, NBYTES[kind], torch.where(is_bitmap, bitmap_nbytes, gaps_nbytes))
    forms = torch.where(is_bitmap, BITMAP, width)
    buffer = write_heads(rows.reshape(-1)[flat], num_kept, layout, kind=kind, forms=forms)
    chosen = is_bitmap.to(device)[segment]
    number = item_places(torch.zeros_like(num_kept), num_kept, device)
    in_part = torch.where(chosen, place, number * width.to(device)[segment])
    begin = 8 * layout.positions.to(device)[segment]
    write_numbers(buffer, begin + in_part, torch.where(chosen, 1, gap))
    put_bytes(buffer, payload, at, layout.nbytes)
    return Encoded(payload, at, layout.nbytes)


@torch.no_grad()
def decode(encoded: Encoded, segments: Segments, out: Tensor) -> None:
    """Decode the rows into `out`, with zeros where nothing was kept.

    Raises:
        ValueError: a wrong shape, dtype or device.
        CorruptFrameError: bytes that no encoder writes.
    """
    check_buffers(out, segments, encoded.payload, encoded.at, encoded.nbytes)
    device, first = out.device, segments.offsets[:-1] * segments.dim
    numel = segments.num_rows * segments.dim
    heads = Heads(encoded, numel, header_nbytes=HEADER_NBYTES)
    width, is_bitmap = heads.forms, heads.forms == BITMAP
    raise_first((BAD_FORM, (width > MAX_WIDTH) & ~is_bitmap))
    bitmap_nbytes, gaps_nbytes = (numel + 7) // 8, (heads.num_kept * width + 7) // 8
    layout = heads.layout(torch.where(is_bitmap, bitmap_nbytes, gaps_nbytes))

    keep = torch.zeros(int(segments.offsets[-1]) * segments.dim, dtype=torch.bool, device=device)
    places = item_places(layout.positions, bitmap_nbytes * is_bitmap, device)
    bits = unpack_bits(heads.buffer[places]).view(-1)
    first_bit = 8 * exclusive_cumsum(bitmap_nbytes * is_bitmap)[:-1]
    keep[item_places(first, numel * is_bitmap, device)] = bits[
        item_places(first_bit, numel * is_bitmap, device)
    ]
    num_gaps = heads.num_kept * ~is_bitmap
    segment = segment_ids(num_gaps, device)
    number = item_places(torch.zeros_like(num_gaps), num_gaps, device)
    widths = width.to(device)[segment]
    begin = 8 * layout.positions.to(device)[segment]
    ends = (read_numbers(heads.buffer, begin + number * widths, widths) + 1).cumsum(0)
    before = torch.nn.functional.pad(ends, (1, 0))[exclusive_cumsum(num_gaps)[:-1].to(device)]
    place = ends - before[segment] - 1
    raise_first_item(place >= numel.to(device)[segment], segment, segments.num_segments)
    keep[first.to(device)[segment] + place] = True
    counts = download(sums_of_rows(segments, keep.view(-1, segments.dim).sum(1)))
    raise_first((BAD_PLACES, counts != heads.num_kept))
    rows = scatter_kept(keep, heads.values(layout)).view(-1, segments.dim)
    put_rows(rows, segments, out)
