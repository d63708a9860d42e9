"""Some columns of each row in Triton. Same bytes as reference.py.

The steps tell each other which columns are kept by masks (in the caller's memory or in scratch) and
by the number of values that each row keeps. The running sum of these numbers says where each row's
values go.

Encoding reads all rows once and writes their masks, then reads only those 32-byte sectors of a row
that hold a kept value. Its steps: choose, add up, headers, values, positions. Decoding has three:
headers, counts, rows. Only `download`, which the binding calls for the sizes, waits for the device.
"""

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Masks, Segments, mask_nbytes
from trec_qcomm.ops.device import DeviceSegments, no_segment, upload
from trec_qcomm.ops.sparsify import reference
from trec_qcomm.ops.sparsify.gpu import choose, read, write
from trec_qcomm.ops.sparsify.gpu.row_blocks import RowBlocks
from trec_qcomm.ops.sparsify.gpu.values import views_of

MAX_DIM = 2**15  # values of a row, which one program holds; its columns are int16
_REGISTERS = 168  # that a thread may use to read rows; told no number, the compiler spills
_FEW = 16  # the largest k whose values are found one by one; above, bisection takes fewer passes


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    kind: int,
    k: int,
    levels: Tensor,
) -> Tensor:
    """Write the segments; return [S] int64 nbytes on the device. Arguments: reference.py."""
    device, dim, x = values.device, segments.dim, values.detach().view(torch.int32)
    masks = segments.masks or _scratch_masks(segments, device)
    if k == dim:  # nothing to search for
        levels = torch.full_like(levels, -1)
    blocks, (mask_at, levels) = RowBlocks.from_segments(segments, at, device, masks.at, levels)
    amax, counts = _no_largest(blocks.batch, device), _no_counts(blocks.batch, device)
    if 0 < k < dim:
        few = k <= _FEW
        blocks.launch(choose.top_k, x, masks.bits, mask_at, amax, k, KIND=kind, FEW=few)
    else:
        blocks.launch(choose.above, x, masks.bits, mask_at, amax, levels, counts, KIND=kind)
    kept = _added_up(blocks.batch, counts, k)
    columns = torch.empty(blocks.batch.num_rows * (k or dim), dtype=torch.int16, device=device)
    form = {
        "KIND": kind, "FORM": reference.COLUMNS if k else reference.COUNTED_COLUMNS,
        "WIDTH": (dim - 1).bit_length(), "COUNT_WIDTH": dim.bit_length(),
    }  # fmt: skip
    chosen = masks.bits, mask_at, kept
    nbytes = _write(blocks, x, chosen, amax, columns, payload, form)
    blocks.launch(write.positions, *chosen, counts, columns, payload, **form)
    return nbytes


def kept_by(segments: Segments) -> Tensor:
    """Return [R + 1] on the device: how many values the masks keep in all rows before each row."""
    masks = _masks(segments)
    blocks, (mask_at,) = RowBlocks.from_segments(
        segments, segments.start, masks.bits.device, masks.at
    )
    counts = _no_counts(blocks.batch, masks.bits.device)
    blocks.launch(choose.count_masked, masks.bits, mask_at, counts)
    return _added_up(blocks.batch, counts)


def counts_of(segments: Segments, kept: Tensor) -> Tensor:
    """Return [S] int64 on the device: how many values each segment keeps. kept: [R + 1], from
    `kept_by`."""
    (offsets,) = upload(kept.device, segments.offsets)
    return torch.diff(kept[offsets].to(torch.int64))


def encode_masked(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, *, kind: int, kept: Tensor
) -> None:
    """Write the columns that the masks keep. kept: [R + 1], from `kept_by`."""
    masks, x = _masks(segments), values.detach().view(torch.int32)
    blocks, (mask_at,) = RowBlocks.from_segments(segments, at, values.device, masks.at)
    amax = _no_largest(blocks.batch, values.device)
    if kind != reference.FP32:
        blocks.launch(choose.largest_masked, x, masks.bits, mask_at, amax)
    form = {"KIND": kind, "FORM": reference.BITMAP, "WIDTH": 0, "COUNT_WIDTH": 0}
    _write(blocks, x, (masks.bits, mask_at, kept), amax, x, payload, form)


def decode(encoded: Encoded, segments: Segments, out: Tensor) -> Tensor:
    """Write the rows; return [1] int32: 8 times the first segment that is bad, plus what is wrong
    with it (cpu.BAD_...), or -1."""
    device, dim, payload = out.device, segments.dim, encoded.payload
    masks = segments.masks or Masks(payload, segments.start)  # not touched if there are none
    blocks, (nbytes, mask_at) = RowBlocks.from_segments(
        segments, encoded.at, device, encoded.nbytes, masks.at
    )
    size = (2, segments.num_segments)
    num_kept, positions_at = torch.empty(size, dtype=torch.int64, device=device)
    kinds, forms = torch.empty(size, dtype=torch.int32, device=device)
    wrong, (_, halves, words) = no_segment(device), views_of(payload)
    widths = {"WIDTH": (dim - 1).bit_length(), "COUNT_WIDTH": dim.bit_length()}
    blocks.launch_headers(
        read.check_headers, words, nbytes, num_kept, kinds, forms, positions_at, wrong, **widths
    )
    counts = _no_counts(blocks.batch, device)
    blocks.launch(
        read.count_rows, payload, num_kept, forms, positions_at, counts, wrong,
        COUNT_WIDTH=widths["COUNT_WIDTH"],
    )  # fmt: skip
    blocks.launch(
        read.rows, payload, halves, words, out.detach().view(torch.int32), masks.bits, mask_at,
        _added_up(blocks.batch, counts), num_kept, kinds, forms, positions_at, wrong, **widths,
        MASKED=False, NOTED=segments.masks is not None, maxnreg=_REGISTERS,
    )  # fmt: skip
    return wrong


def decode_masked(encoded: Encoded, segments: Segments, out: Tensor) -> Tensor:
    """Write the rows of segments that `encode_masked` wrote; return [1] int32 as `decode` does."""
    device, payload, masks, kept = out.device, encoded.payload, _masks(segments), kept_by(segments)
    blocks, (nbytes, mask_at) = RowBlocks.from_segments(
        segments, encoded.at, device, encoded.nbytes, masks.at
    )
    num_kept = torch.empty(segments.num_segments, dtype=torch.int64, device=device)
    kinds = torch.empty(segments.num_segments, dtype=torch.int32, device=device)
    wrong, (_, halves, words) = no_segment(device), views_of(payload)
    blocks.launch_headers(read.check_masked_headers, words, nbytes, kept, num_kept, kinds, wrong)
    blocks.launch(
        read.rows, payload, halves, words, out.detach().view(torch.int32), masks.bits, mask_at,
        kept, num_kept, kinds, kinds, num_kept, wrong, WIDTH=0, COUNT_WIDTH=0, MASKED=True,
        NOTED=False, maxnreg=_REGISTERS,
    )  # fmt: skip
    return wrong


def _write(
    blocks: RowBlocks,
    x: Tensor,
    chosen: tuple[Tensor, Tensor, Tensor],
    amax: Tensor,
    columns: Tensor,
    payload: Tensor,
    form: dict[str, int],
) -> Tensor:
    """Write headers, and values with their columns; return [S] int64 nbytes on the device."""
    nbytes = torch.empty_like(blocks.batch.start)
    _, halves, words = views_of(payload)
    blocks.launch_headers(write.headers, chosen[2], amax, nbytes, payload, words, **form)
    blocks.launch(write.rows, x, *chosen, amax, columns, payload, halves, words, **form)
    return nbytes


def _no_counts(batch: DeviceSegments, device: torch.device) -> Tensor:
    """Return [R + 1] int32 zeros, for the number of values that each row keeps; row 0 is number
    1."""
    return torch.zeros(batch.num_rows + 1, dtype=torch.int32, device=device)


def _no_largest(batch: DeviceSegments, device: torch.device) -> Tensor:
    return torch.zeros(batch.num_segments, dtype=torch.int32, device=device)


def _added_up(batch: DeviceSegments, counts: Tensor, k: int = 0) -> Tensor:
    """Return [R + 1]: how many values all rows before each row keep. k: how many every row keeps,
    or 0 if that varies."""
    dtype = torch.int32 if batch.num_rows * batch.dim < 2**31 else torch.int64
    if k:
        return torch.arange(0, (batch.num_rows + 1) * k, k, dtype=dtype, device=counts.device)
    return torch.cumsum(counts, 0, dtype=dtype)


def _masks(segments: Segments) -> Masks:
    assert segments.masks is not None, "the binding has checked it"
    return segments.masks


def _scratch_masks(segments: Segments, device: torch.device) -> Masks:
    width = mask_nbytes(segments.dim)
    bits = torch.empty(int(segments.offsets[-1]) * width, dtype=torch.uint8, device=device)
    return Masks(bits, segments.offsets[:-1] * width)


__all__ = [
    "MAX_DIM",
    "counts_of",
    "decode",
    "decode_masked",
    "encode",
    "encode_masked",
    "kept_by",
]
