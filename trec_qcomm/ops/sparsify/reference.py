"""Some columns of each row, in plain torch: the definition, written to be read.

Which columns: the k of largest magnitude, or all of at least some magnitude. Magnitudes are
compared as the bits of |x|, so inf is above all finite values and NaN above inf.
How values are sent: as fp32, or divided by a scale (one for the segment) and rounded to fp16 or
int8. How positions are sent: as a bitmap, or as packed column numbers.
Segment bytes: FORMAT.md, "topk". All arithmetic is float32, one rounding an operation.
Shapes: n rows, D columns, K kept values.
"""

import math

import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments, aligned, mask_nbytes

FP32, FP16, INT8 = 0, 1, 2  # the field `values`
NBYTES = {FP32: 4, FP16: 2, INT8: 1}
BITMAP, COLUMNS, COUNTED_COLUMNS = 0, 1, 2  # the field `positions`
MASKED_HEADER_NBYTES, HEADER_NBYTES = 8, 12
REASONS = {
    "size": "its size is not what its header implies",
    "form": "unknown kind of values or positions",
    "scale": "a scale that is not a normal number > 0",
    "count": "more values kept than there are",
    "columns": "positions that do not name the values kept",
}

INT8_TOP = 126  # the codes 127, -127 and -128 are +inf, -inf and NaN
_FLT_MAX, _FLT_MIN = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny


def keys_of(x: Tensor) -> Tensor:
    """[..] float32 -> int32 keys, ordered as the magnitudes are: |x| < inf < NaN."""
    return x.view(torch.int32) & 0x7FFFFFFF


def keep_top_k(x: Tensor, k: int) -> Tensor:
    """[n, D] float32 -> [n, D] bool: the k largest magnitudes of each row, the lowest columns
    first where magnitudes are equal."""
    order = torch.argsort(keys_of(x), dim=1, descending=True, stable=True)
    return torch.zeros(x.shape, dtype=torch.bool).scatter_(1, order[:, :k], True)


def keep_above(x: Tensor, level: int) -> Tensor:
    """[n, D] float32 -> [n, D] bool: the magnitudes whose keys are above `level`."""
    return keys_of(x) > level


def pack_bits(bits: Tensor) -> Tensor:
    """[.., N] of 0 and 1 -> [.., ceil(N / 8)] uint8, lowest bits first, padded with 0."""
    bits = torch.nn.functional.pad(bits.to(torch.int32), (0, -bits.shape[-1] % 8))
    grouped = bits.view(*bits.shape[:-1], bits.shape[-1] // 8, 8)
    packed: Tensor = (grouped << torch.arange(8, dtype=torch.int32)).sum(-1).to(torch.uint8)
    return packed


def unpack_bits(packed: Tensor, num_bits: int) -> Tensor:
    """[.., ceil(N / 8)] uint8 -> [.., N] int64 of 0 and 1: the inverse of `pack_bits`."""
    bits = (packed[..., None].to(torch.int64) >> torch.arange(8)) & 1
    return bits.flatten(-2)[..., :num_bits]


def pack_numbers(numbers: Tensor, width: int) -> Tensor:
    """[N] int64 -> [ceil(N * width / 8)] uint8: `width` bits each, without gaps."""
    return pack_bits(((numbers[:, None] >> torch.arange(width)) & 1).flatten())


def unpack_numbers(packed: Tensor, width: int, count: int) -> Tensor:
    """Return [count] int64: the inverse of `pack_numbers`."""
    bits = unpack_bits(packed, count * width).view(count, width)
    return (bits << torch.arange(width)).sum(1)


def packed_nbytes(count: int, width: int) -> int:
    """Return the size in bytes of `count` packed numbers."""
    return (count * width + 7) // 8


def value_scale(kept: Tensor, values: int) -> float:
    """Return the scale, by which stored numbers are multiplied on decoding; 0, unused, for fp32.

    fp16: a power of two that puts the largest finite magnitude into [2^13, 2^14).
    int8: the largest finite magnitude / 126. Neither is below 2^-126, so both are normal.
    """
    finite = torch.where(kept.isfinite(), kept, 0).abs()
    largest = finite.max() if kept.numel() else torch.tensor(0.0)
    if values == FP32:
        return 0.0
    if values == FP16:
        return 2.0 ** (max(math.frexp(float(largest))[1] - 14, -126) if largest > 0 else -126)
    return max(float(largest / INT8_TOP), _FLT_MIN)


def store_values(kept: Tensor, values: int, scale: float) -> Tensor:
    """[K] float32 -> [K * size] uint8, the bytes that store them."""
    if values == FP32:
        return kept.view(torch.uint8)
    if values == FP16:
        half = (kept * (1 / scale)).to(torch.float16).view(torch.int16)
        nan = torch.where(kept.view(torch.int32) < 0, 0x7E00 - 0x8000, 0x7E00).to(torch.int16)
        return torch.where(kept.isnan(), nan, half).view(torch.uint8)
    q = torch.where(kept.isfinite(), kept / scale, 0).round()
    q = torch.where(kept == math.inf, INT8_TOP + 1, q)
    q = torch.where(kept == -math.inf, -INT8_TOP - 1, q)
    return torch.where(kept.isnan(), -128, q).to(torch.int8).view(torch.uint8)


def load_values(data: Tensor, values: int, scale: float) -> Tensor:
    """Return [K] float32: the inverse of `store_values`.

    A finite number that the scale would make infinite becomes the largest float32. NaN becomes one
    quiet NaN, except in fp32, which keeps all bits.
    """
    if values == FP32:
        return data.view(torch.float32)
    if values == FP16:
        stored = data.view(torch.float16).float()
    else:
        stored = data.view(torch.int8).float()
        for code, special in ((127, math.inf), (-127, -math.inf), (-128, math.nan)):
            stored = torch.where(data.view(torch.int8) == code, special, stored)
    x = torch.where(stored.isfinite(), (stored * scale).clamp(-_FLT_MAX, _FLT_MAX), stored)
    return torch.where(x.isnan(), math.nan, x)


def positions_of(keep: Tensor, *, counted: bool) -> tuple[int, Tensor]:
    """Return the form of the positions of [n, D] bool, and their bytes.

    The form is the bitmap unless packed columns are smaller. counted: whether packed columns need
    each row's count, as they do unless all rows keep k columns.
    """
    num_rows, dim = keep.shape
    columns = pack_numbers(keep.nonzero()[:, 1], (dim - 1).bit_length())
    form = COLUMNS
    if counted:
        columns = torch.cat([pack_numbers(keep.sum(1), dim.bit_length()), columns])
        form = COUNTED_COLUMNS
    if columns.numel() < num_rows * mask_nbytes(dim):
        return form, columns
    return BITMAP, pack_bits(keep).flatten()


def keep_of_positions(form: int, data: Tensor, num_rows: int, dim: int, num_kept: int) -> Tensor:
    """Return [n, D] bool, which columns were kept: the inverse of `positions_of`.

    Args: data: any bytes.
    Raises: CorruptFrameError: bytes of another size, or that do not name `num_kept` columns.
    """
    if form == BITMAP:
        _check(data.numel() == num_rows * mask_nbytes(dim), "size")
        keep = unpack_bits(data.view(num_rows, mask_nbytes(dim)), dim) == 1
        _check(int(keep.sum()) == num_kept, "columns")
        return keep
    counts_nbytes = packed_nbytes(num_rows, dim.bit_length()) if form == COUNTED_COLUMNS else 0
    width = (dim - 1).bit_length()
    _check(data.numel() == counts_nbytes + packed_nbytes(num_kept, width), "size")
    if form == COUNTED_COLUMNS:
        counts = unpack_numbers(data[:counts_nbytes], dim.bit_length(), num_rows)
    else:
        counts = torch.full((num_rows,), num_kept // max(num_rows, 1))
    _check(int(counts.sum()) == num_kept, "columns")
    columns = unpack_numbers(data[counts_nbytes:], width, num_kept)
    row = torch.repeat_interleave(torch.arange(num_rows), counts)
    places = row * dim + columns
    _check(bool((columns < dim).all()) and bool((places.diff() > 0).all()), "columns")
    return torch.zeros(num_rows * dim, dtype=torch.bool).index_fill_(0, places, True).view(-1, dim)


def encode(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, *, kind: int, k: int,
    levels: Tensor,
) -> Tensor:  # fmt: skip
    """Write the segments; return [S] int64 nbytes.

    Args:
        kind: how values are stored, the field `values`.
        k: columns to keep in each row, or 0 to keep those with keys above `levels`.
        levels: [S] int64.
    """
    sizes = []
    for s in range(segments.num_segments):
        x = segments.block(values, s).contiguous()
        keep = keep_top_k(x, k) if k else keep_above(x, int(levels[s]))
        write_mask(segments, s, keep)
        form, positions = positions_of(keep, counted=k == 0)
        kept = x[keep]
        scale = value_scale(kept, kind)
        parts = [
            torch.tensor([kind, form, 0, 0], dtype=torch.uint8),
            torch.tensor([scale]),
            torch.tensor([kept.numel()], dtype=torch.int32),
            store_values(kept, kind, scale),
            positions,
        ]
        sizes.append(write(payload, int(at[s]), parts))
    return torch.tensor(sizes, dtype=torch.int64)


def decode(encoded: Encoded, segments: Segments, out: Tensor) -> None:
    """Write the rows, with zeros where no column was kept. Raise CorruptFrameError for bytes that
    no encoder writes."""
    for s in range(segments.num_segments):
        data = encoded.payload[int(encoded.at[s]) :][: int(encoded.nbytes[s])].clone()
        try:
            keep, x = _decode_segment(data, int(segments.num_rows[s]), segments.dim)
        except CorruptFrameError as error:
            raise CorruptFrameError(error.reason, segment=s) from error
        write_mask(segments, s, keep)
        segments.block(out, s).copy_(x)


def _decode_segment(data: Tensor, num_rows: int, dim: int) -> tuple[Tensor, Tensor]:
    _check(data.numel() >= HEADER_NBYTES, "size")
    kind, form = int(data[0]), int(data[1])
    num_kept = int(data[8:12].view(torch.int32)) & 0xFFFFFFFF
    _check(kind in NBYTES and form in (BITMAP, COLUMNS, COUNTED_COLUMNS), "form")
    _check(num_kept <= num_rows * dim, "count")
    end = HEADER_NBYTES + NBYTES[kind] * num_kept
    width = (dim - 1).bit_length()
    size = {
        BITMAP: num_rows * mask_nbytes(dim),
        COLUMNS: packed_nbytes(num_kept, width),
        COUNTED_COLUMNS: packed_nbytes(num_rows, dim.bit_length()) + packed_nbytes(num_kept, width),
    }[form]
    _check(data.numel() == int(aligned(torch.tensor(end + size))), "size")
    keep = keep_of_positions(form, data[end : end + size], num_rows, dim, num_kept)
    return keep, _scattered(keep, data[HEADER_NBYTES:end], kind, scale_of(data, kind))


def encode_masked(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, *, kind: int
) -> Tensor:
    """Write the columns that the masks keep; return [S] int64 nbytes. kind: the field `values`."""
    sizes = []
    for s in range(segments.num_segments):
        kept = segments.block(values, s).contiguous()[read_mask(segments, s)]
        scale = value_scale(kept, kind)
        header = torch.tensor([kind, 0, 0, 0], dtype=torch.uint8)
        parts = [header, torch.tensor([scale]), store_values(kept, kind, scale)]
        sizes.append(write(payload, int(at[s]), parts))
    return torch.tensor(sizes, dtype=torch.int64)


def decode_masked(encoded: Encoded, segments: Segments, out: Tensor) -> None:
    """Write the rows, with zeros where the masks keep no column. Raise CorruptFrameError for bytes
    that no encoder writes."""
    for s in range(segments.num_segments):
        data = encoded.payload[int(encoded.at[s]) :][: int(encoded.nbytes[s])].clone()
        keep = read_mask(segments, s)
        try:
            _check(data.numel() >= MASKED_HEADER_NBYTES, "size")
            kind = int(data[0])
            _check(kind in NBYTES, "form")
            end = MASKED_HEADER_NBYTES + NBYTES[kind] * int(keep.sum())
            _check(data.numel() == int(aligned(torch.tensor(end))), "size")
            stored = data[MASKED_HEADER_NBYTES:end]
            segments.block(out, s).copy_(_scattered(keep, stored, kind, scale_of(data, kind)))
        except CorruptFrameError as error:
            raise CorruptFrameError(error.reason, segment=s) from error


def write_mask(segments: Segments, segment: int, keep: Tensor) -> None:
    """Note [n, D] bool in the segment's mask, if there are masks."""
    if segments.masks is not None:
        at = int(segments.masks.at[segment])
        packed = pack_bits(keep).flatten()
        segments.masks.bits[at : at + packed.numel()] = packed


def read_mask(segments: Segments, segment: int) -> Tensor:
    """Return [n, D] bool, the segment's mask."""
    assert segments.masks is not None
    num_rows, width = int(segments.num_rows[segment]), mask_nbytes(segments.dim)
    at = int(segments.masks.at[segment])
    packed = segments.masks.bits[at : at + num_rows * width].view(num_rows, width)
    return unpack_bits(packed, segments.dim) == 1


def _scattered(keep: Tensor, stored: Tensor, kind: int, scale: float) -> Tensor:
    x = torch.zeros(keep.shape)
    x[keep] = load_values(stored, kind, scale)
    return x


def scale_of(data: Tensor, kind: int) -> float:
    """Return the header's scale. Raise CorruptFrameError for one that no encoder writes."""
    scale = float(data[4:8].view(torch.float32))
    _check(kind == FP32 or (math.isfinite(scale) and scale >= _FLT_MIN), "scale")
    return scale


def write(payload: Tensor, at: int, parts: list[Tensor]) -> int:
    """Write the parts' bytes and the padding; return the size."""
    data = torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])
    end = int(aligned(torch.tensor(data.numel())))
    payload[at : at + end] = 0
    payload[at : at + data.numel()] = data
    return end


def _check(ok: bool, what: str) -> None:
    if not ok:
        raise CorruptFrameError(REASONS[what])
