"""Formats topk and forward_mask: only some columns of each row are sent. Wire: FORMAT.md.

topk sends the k columns of largest magnitude of each row, or all columns of at least some
magnitude. It also sends their positions, as a bitmap or as packed column numbers. forward_mask
sends the columns that masks name. Columns that are not kept decode to 0.
Source: Gupta et al. 2021 (DCT, model parallel); the format, scaling and NaN are ours.
Shapes: S segments, R rows of D columns, K kept values.
"""

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.core.transfer import download
from trec_qcomm.ext.buffers import (
    item_places,
    pack_bits,
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
    MASKED_HEADER_NBYTES,
    Heads,
    Layout,
    raise_first,
    raise_first_item,
    scatter_kept,
    write_heads,
)
from trec_qcomm.ext.dct.masks import Masks, mask_nbytes, masked_columns, num_masked
from trec_qcomm.ext.dct.values import NBYTES, ValueFormat, keep_top_k, keys_of, kind_of, levels_of
from trec_qcomm.ops.dispatch import check_buffers

BITMAP, COLUMNS, COUNTED_COLUMNS = 0, 1, 2  # the field `positions`


def top_k_nbytes(segments: Segments, k: int, stored: ValueFormat) -> Tensor:
    """Return [S] int64, the exact size in bytes of each segment with k columns a row."""
    num_kept = segments.num_rows * k
    columns = (num_kept * (segments.dim - 1).bit_length() + 7) // 8
    positions = torch.minimum(columns, segments.num_rows * mask_nbytes(segments.dim))
    return aligned(HEADER_NBYTES + num_kept * NBYTES[kind_of(stored)] + positions)


def max_nbytes(segments: Segments, stored: ValueFormat) -> Tensor:
    """Return [S] int64, sizes in bytes that no segment exceeds, however many columns are kept."""
    row = segments.dim * NBYTES[kind_of(stored)] + mask_nbytes(segments.dim)
    return aligned(HEADER_NBYTES + segments.num_rows * row)


def masked_nbytes(segments: Segments, stored: ValueFormat) -> Tensor:
    """Return [S] int64, the exact size in bytes of the columns that each segment's masks keep.

    Without masks it is the size of all columns. Waits for a GPU.
    """
    num_kept = segments.num_rows * segments.dim
    if isinstance(segments.notes, Masks):
        num_kept = download(num_masked(segments.notes, segments))
    return aligned(MASKED_HEADER_NBYTES + num_kept * NBYTES[kind_of(stored)])


@torch.no_grad()
def encode_top_k(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, *, k: int, stored: ValueFormat
) -> Encoded:
    """Encode the k columns of largest magnitude of each row, and note them in the masks, if any.

    The other arguments are those of core.codec.Codec.encode.

    Args: k: 1..D, columns to keep in each row.  stored: format of kept values, fp32, fp16 or int8.
    Raises: ValueError: a wrong shape, dtype or device.
    """
    check_buffers(values, segments, payload, at, top_k_nbytes(segments, k, stored))
    rows = take_rows(values, segments)
    return _encode(rows, keep_top_k(rows, k), segments, payload, at, kind_of(stored), k)


@torch.no_grad()
def encode_above(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    thresholds: Tensor,
    stored: ValueFormat,
) -> Encoded:
    """Encode the columns with |x| >= threshold, and NaN; note them in the masks, if any.

    The other arguments are those of core.codec.Codec.encode.

    Args:
        thresholds: [S] float64, finite, >= 0.
        stored: format of kept values, fp32, fp16 or int8.
    Raises: ValueError: a wrong shape, dtype or device; a threshold out of range.
    """
    check_buffers(values, segments, payload, at, max_nbytes(segments, stored))
    levels = levels_of(thresholds, segments.num_segments).to(values.device)
    rows = take_rows(values, segments)
    level = levels[segment_ids(segments.num_rows, values.device)]
    return _encode(rows, keys_of(rows) > level[:, None], segments, payload, at, kind_of(stored), 0)


def _encode(
    rows: Tensor, keep: Tensor, segments: Segments, payload: Tensor, at: Tensor, kind: int, k: int
) -> Encoded:
    """Write the columns that `keep` [R, D] names. k: columns of every row, or 0."""
    _note(keep, segments)
    num_rows, dim, device = segments.num_rows, segments.dim, rows.device
    width, row, column = (dim - 1).bit_length(), *keep.nonzero(as_tuple=True)
    num_kept = num_rows * k
    if not k:
        counts = keep.sum(1)
        num_kept = download(sums_of_rows(segments, counts))
    bitmap_nbytes = num_rows * mask_nbytes(dim)
    counts_nbytes = torch.zeros_like(num_kept) if k else (num_rows * dim.bit_length() + 7) // 8
    columns_nbytes = counts_nbytes + (num_kept * width + 7) // 8
    is_bitmap = columns_nbytes >= bitmap_nbytes
    layout = Layout(num_kept, NBYTES[kind], torch.minimum(columns_nbytes, bitmap_nbytes))
    forms = torch.where(is_bitmap, BITMAP, COLUMNS if k else COUNTED_COLUMNS)
    buffer = write_heads(rows[row, column], num_kept, layout, kind=kind, forms=forms)

    chosen = is_bitmap.to(device)[segment_ids(num_kept, device)]
    # Bit d of a row's bitmap, or the packed number of a column.
    first_row = layout.positions - segments.offsets[:-1] * mask_nbytes(dim)
    in_bitmap = first_row.to(device)[segment_ids(num_kept, device)] + row * mask_nbytes(dim)
    packed = _packed_places(layout.positions + counts_nbytes, num_kept, width, device)
    places = torch.where(chosen, 8 * in_bitmap + column, packed)
    write_numbers(buffer, places, torch.where(chosen, 1, column))
    if not k:
        has_counts = num_rows * ~is_bitmap
        places = _packed_places(layout.positions, has_counts, dim.bit_length(), device)
        write_numbers(buffer, places, counts[_rows_of(~is_bitmap, segments, device)])
    put_bytes(buffer, payload, at, layout.nbytes)
    return Encoded(payload, at, layout.nbytes)


def _packed_places(first: Tensor, counts: Tensor, width: int, device: torch.device) -> Tensor:
    """Return the first bit of each packed number. first: [S], the byte where they begin."""
    number = item_places(torch.zeros_like(first), counts, device)
    return 8 * first.to(device)[segment_ids(counts, device)] + number * width


def _rows_of(which: Tensor, segments: Segments, device: torch.device) -> Tensor:
    """Return the numbers of all rows of some segments. which: [S] bool."""
    return item_places(segments.offsets[:-1], segments.num_rows * which, device)


@torch.no_grad()
def decode(encoded: Encoded, segments: Segments, out: Tensor) -> None:
    """Decode the rows into `out`, with zeros in columns that were not kept; note the masks, if any.

    Raises:
        ValueError: a wrong shape, dtype or device.
        CorruptFrameError: bytes that no encoder writes.
    """
    check_buffers(out, segments, encoded.payload, encoded.at, encoded.nbytes)
    num_rows, dim, device = segments.num_rows, segments.dim, out.device
    heads = Heads(encoded, num_rows * dim, header_nbytes=HEADER_NBYTES)
    raise_first((BAD_FORM, heads.forms > COUNTED_COLUMNS))
    is_bitmap, is_counted = heads.forms == BITMAP, heads.forms == COUNTED_COLUMNS
    width = (dim - 1).bit_length()
    counts_nbytes = torch.where(is_counted, (num_rows * dim.bit_length() + 7) // 8, 0)
    columns_nbytes = counts_nbytes + (heads.num_kept * width + 7) // 8
    bitmap_nbytes = num_rows * mask_nbytes(dim)
    layout = heads.layout(torch.where(is_bitmap, bitmap_nbytes, columns_nbytes))

    keep = torch.zeros(int(segments.offsets[-1]), dim, dtype=torch.bool, device=device)
    places = item_places(layout.positions, bitmap_nbytes * is_bitmap, device)
    bits = unpack_bits(heads.buffer[places].view(-1, mask_nbytes(dim))).flatten(1)
    keep[_rows_of(is_bitmap, segments, device)] = bits[:, :dim]
    row = _rows_of_columns(heads, segments, layout, device)
    num_columns = heads.num_kept * ~is_bitmap
    places = _packed_places(layout.positions + counts_nbytes, num_columns, width, device)
    column = read_numbers(heads.buffer, places, width)
    flat = row * dim + column
    bad = column >= dim
    bad[1:] |= flat.diff() <= 0
    raise_first_item(bad, segment_ids(num_columns, device), segments.num_segments)
    keep.view(-1)[flat] = True
    if bool(is_bitmap.any()):
        num_kept = download(sums_of_rows(segments, keep.sum(1)))
        raise_first((BAD_PLACES, num_kept != heads.num_kept))
    _note(keep, segments)
    put_rows(scatter_kept(keep, heads.values(layout)), segments, out)


def _rows_of_columns(
    heads: Heads, segments: Segments, layout: Layout, device: torch.device
) -> Tensor:
    """Return the number of the row of each packed column. Raise CorruptFrameError for counts of
    rows that do not add up."""
    num_rows, is_counted = segments.num_rows, heads.forms == COUNTED_COLUMNS
    equal = heads.num_kept // num_rows.clamp(min=1) * (heads.forms == COLUMNS)
    counts = equal.to(device)[segment_ids(num_rows, device)]
    width = segments.dim.bit_length()
    places = _packed_places(layout.positions, num_rows * is_counted, width, device)
    counts[_rows_of(is_counted, segments, device)] = read_numbers(heads.buffer, places, width)
    wrong = download(sums_of_rows(segments, counts)) != heads.num_kept
    raise_first((BAD_PLACES, wrong & (heads.forms != BITMAP)))
    size = int((heads.num_kept * (heads.forms != BITMAP)).sum())
    return torch.repeat_interleave(counts, output_size=size)


@torch.no_grad()
def encode_masked(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, *, stored: ValueFormat
) -> Encoded:
    """Encode the columns that the segments' masks name.

    Raises: ValueError: no masks; a wrong shape, dtype or device.
    """
    keep, num_kept = _masked(segments)
    layout = Layout(num_kept, NBYTES[kind_of(stored)], 0, MASKED_HEADER_NBYTES)
    check_buffers(values, segments, payload, at, layout.nbytes)
    kept = take_rows(values, segments)[keep]
    buffer = write_heads(kept, num_kept, layout, kind=kind_of(stored), forms=None)
    put_bytes(buffer, payload, at, layout.nbytes)
    return Encoded(payload, at, layout.nbytes)


@torch.no_grad()
def decode_masked(encoded: Encoded, segments: Segments, out: Tensor) -> None:
    """Decode the rows into `out`, with zeros in columns that the masks do not name.

    Raises:
        ValueError: no masks; a wrong shape, dtype or device.
        CorruptFrameError: bytes that no encoder writes.
    """
    keep, num_kept = _masked(segments)
    check_buffers(out, segments, encoded.payload, encoded.at, encoded.nbytes)
    heads = Heads(encoded, num_kept, header_nbytes=MASKED_HEADER_NBYTES)
    layout = heads.layout(0, MASKED_HEADER_NBYTES)
    put_rows(scatter_kept(keep, heads.values(layout)), segments, out)


def _masked(segments: Segments) -> tuple[Tensor, Tensor]:
    """Return [R, D] bool, the columns that masks name, and [S] int64 on CPU, how many."""
    if not isinstance(segments.notes, Masks):
        raise ValueError("masks: there are none; take forward_mask for backward of topk only")
    keep = masked_columns(segments.notes, segments)
    return keep, download(sums_of_rows(segments, keep.sum(1)))


def _note(keep: Tensor, segments: Segments) -> None:
    """Write [R, D] bool to the masks, if there are masks."""
    if isinstance(masks := segments.notes, Masks):
        nbytes = segments.num_rows * mask_nbytes(segments.dim)
        places = item_places(masks.at, nbytes, keep.device)
        masks.bits[places] = pack_bits(keep).view(-1)
