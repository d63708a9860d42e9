"""Move rows, bytes and packed numbers of a whole batch of segments, by torch operations.

The same code runs on a CPU and on a GPU. Nothing loops over segments or rows. Vectors with one
number a segment stay on the CPU and are uploaded when they are used. Nothing here waits for a GPU.

The bytes of all segments are copied to a separate buffer (`take_bytes`), or made there and copied
to their places (`put_bytes`). Segment s begins there at byte `starts_of(nbytes)[s]`, a multiple of
8, so that headers, values and packed numbers are words of the buffer.
Shapes: S segments, R rows of D columns, W bytes of all segments.
"""

import torch
from torch import Tensor

from trec_qcomm.core.segments import ALIGNMENT, Segments, exclusive_cumsum
from trec_qcomm.core.transfer import upload

_PADDING = 16  # bytes behind the last segment, so that words are read and written whole


def segment_ids(counts: Tensor, device: torch.device) -> Tensor:
    """Return [sum of counts] int64 on the device, the segment of each item.

    Args: counts: [S] int64 on CPU, how many items each segment has.
    """
    (on_device,) = upload(device, counts)
    return torch.repeat_interleave(on_device, output_size=int(counts.sum()))


def item_places(first: Tensor, counts: Tensor, device: torch.device) -> Tensor:
    """Return [sum of counts] int64 on the device: first[s], first[s] + 1, ... of each segment.

    Args: first, counts: [S] int64 on CPU.
    """
    shift, on_device = upload(device, first - exclusive_cumsum(counts)[:-1], counts)
    ids = torch.repeat_interleave(on_device, output_size=int(counts.sum()))
    return shift[ids] + torch.arange(len(ids), device=device)


def starts_of(nbytes: Tensor) -> Tensor:
    """Return [S] int64, where the bytes of each segment begin in a separate buffer."""
    return exclusive_cumsum(nbytes)[:-1]


def take_rows(values: Tensor, segments: Segments) -> Tensor:
    """Return [R, D] float32, the rows of all segments; a view of `values` if they lie so."""
    flat, where = values.detach().view(-1), _row_places(segments, values)
    if isinstance(where, slice):
        return flat[where].view(-1, segments.dim)
    if where.dim() == 1:
        return _whole_rows(flat, segments.dim).index_select(0, where)
    return flat[where]


def put_rows(rows: Tensor, segments: Segments, out: Tensor) -> None:
    """Write [R, D] float32 to the places of the rows in `out`, and nothing else."""
    flat, where = out.detach().view(-1), _row_places(segments, out)
    if isinstance(where, slice):
        flat[where] = rows.reshape(-1)
    elif where.dim() == 1:
        _whole_rows(flat, segments.dim).index_copy_(0, where, rows)
    else:
        flat[where] = rows


def _row_places(segments: Segments, values: Tensor) -> slice | Tensor:
    """Return where the rows lie: one slice, or [R] numbers of rows of D values each, or [R, D]."""
    dim, num_rows, start = segments.dim, segments.num_rows, segments.start
    ends = start + num_rows * dim
    has_rows = num_rows > 0
    side_by_side = bool(((segments.stride == dim) | (num_rows < 2)).all())
    if side_by_side and torch.equal(start[has_rows][1:], ends[has_rows][:-1]):
        begin = int(start[has_rows][0]) if bool(has_rows.any()) else 0
        return slice(begin, begin + int(segments.offsets[-1]) * dim)
    ids = segment_ids(num_rows, values.device)
    shift = start - segments.offsets[:-1] * segments.stride
    first, stride = upload(values.device, shift, segments.stride)
    numbers = torch.arange(len(ids), device=values.device)
    places = first[ids] + numbers * stride[ids]
    whole = (start % dim == 0) & ((segments.stride % dim == 0) | (num_rows < 2)) | ~has_rows
    if bool(whole.all()):
        return places // dim
    return places[:, None] + torch.arange(dim, device=values.device)


def _whole_rows(flat: Tensor, dim: int) -> Tensor:
    return flat[: len(flat) // dim * dim].view(-1, dim)


def new_bytes(nbytes: Tensor, device: torch.device) -> Tensor:
    """Return a buffer of zeros for the bytes of all segments. nbytes: [S] int64 on CPU."""
    size = int(nbytes.sum()) + _PADDING
    return torch.zeros(size, dtype=torch.uint8, device=device)


def take_bytes(payload: Tensor, at: Tensor, nbytes: Tensor) -> Tensor:
    """Return a buffer with the bytes of all segments. at, nbytes: [S], multiples of 8."""
    buffer = new_bytes(nbytes, payload.device)
    size = len(buffer) - _PADDING
    places = item_places(at // ALIGNMENT, nbytes // ALIGNMENT, payload.device)
    torch.index_select(_words(payload), 0, places, out=buffer[:size].view(torch.int64))
    return buffer


def put_bytes(buffer: Tensor, payload: Tensor, at: Tensor, nbytes: Tensor) -> None:
    """Write the bytes of all segments to their places in `payload`: the inverse of `take_bytes`."""
    places = item_places(at // ALIGNMENT, nbytes // ALIGNMENT, payload.device)
    words = _words(payload)
    words[places] = buffer[: len(buffer) - _PADDING].view(torch.int64)
    if words.data_ptr() != payload.data_ptr():
        payload[: len(words) * ALIGNMENT] = words.view(torch.uint8)


def _words(payload: Tensor) -> Tensor:
    """Return the whole words of a payload as int64; a copy where it does not begin at a word."""
    whole = payload[: len(payload) // ALIGNMENT * ALIGNMENT]
    is_odd = whole.data_ptr() % ALIGNMENT or whole.storage_offset() % ALIGNMENT
    return (whole.clone() if is_odd else whole).view(torch.int64)


def write_numbers(buffer: Tensor, offsets: Tensor, numbers: Tensor) -> None:
    """Write packed numbers to bits that are 0.

    Args: offsets: [N] int64, the place of each number's lowest bit.  numbers: [N] int64, >= 0, of
        at most 31 bits.
    """
    shifted, word = numbers << (offsets & 31), offsets >> 5
    words = buffer.view(torch.int32)
    # Numbers of one word have different bits, so that a sum is their union.
    words.scatter_add_(0, word, shifted.to(torch.int32))
    words.scatter_add_(0, word + 1, (shifted >> 32).to(torch.int32))


def read_numbers(buffer: Tensor, offsets: Tensor, widths: Tensor | int) -> Tensor:
    """Return [N] int64, numbers that `write_numbers` packed. widths: bits of each, or of all."""
    words, word = buffer.view(torch.int32), offsets >> 5
    low = words[word].to(torch.int64) & 0xFFFFFFFF
    pair = low | (words[word + 1].to(torch.int64) << 32)
    ones = torch.ones_like(offsets)
    return (pair >> (offsets & 31)) & ((ones << widths) - 1)


def unpack_bits(packed: Tensor) -> Tensor:
    """Return [.., 8] bool, the bits of [..] uint8, lowest bits first."""
    powers = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed[..., None] >> powers) & 1 == 1


def pack_bits(bits: Tensor) -> Tensor:
    """Pack [n, D] bool to [n, ceil(D / 8)] uint8, lowest bits first, padded with 0."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % 8))
    grouped = padded.view(len(bits), (bits.shape[-1] + 7) // 8, 8)
    shifted = grouped << torch.arange(8, dtype=torch.uint8, device=bits.device)
    packed: Tensor = shifted.sum(-1, dtype=torch.uint8)
    return packed


def sums_of_rows(segments: Segments, numbers: Tensor) -> Tensor:
    """Return [S], the sum over the rows of each segment. Args: numbers: [R], any device."""
    ends = torch.nn.functional.pad(numbers.cumsum(0), (1, 0))
    return ends[segments.offsets.to(numbers.device)].diff()
