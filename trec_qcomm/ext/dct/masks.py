"""Masks: the columns of each row that `topk` kept, which both ends of an exchange remember.

`forward_mask` sends only the gradients of these columns. The masks are `Segments.notes`, written
when rows are encoded and decoded. A MaskTransform keeps them from forward to backward.
Shapes: S segments, R rows of D columns.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rows.doors import CallTransform
from trec_qcomm.comm.rows.exchange_plan import ExchangePlan, PlacedExchange
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ext.buffers import sums_of_rows, unpack_bits


def mask_nbytes(dim: int) -> int:
    """Return the bytes of the mask of one row of `dim` values."""
    return (dim + 7) // 8


@dataclass(frozen=True, eq=False)
class Masks:
    """Bits that say which columns of each row of S segments are kept.

    Column d of row i of segment s is bit d % 8, from the lowest, of byte
    `bits[at[s] + i * mask_nbytes(dim) + d // 8]`. Bits beyond the last column mean nothing.

    Args:
        bits: [M] uint8, contiguous, in the memory of the rows.
        at: [S] int64 on CPU, >= 0.
    """

    bits: Tensor
    at: Tensor

    @classmethod
    def of_all_columns(
        cls, num_rows: Tensor, dims: Tensor, device: torch.device | None = None
    ) -> "Masks":
        """Return masks of segments of these shapes that keep every column.

        Args: num_rows, dims: [S] int64 each.  device: device of the rows; None: the CPU.
        """
        ends = exclusive_cumsum(num_rows * ((dims + 7) // 8))
        bits = torch.full((int(ends[-1]),), 0xFF, dtype=torch.uint8, device=device)
        return cls(bits, ends[:-1])

    def subset(self, which: Tensor) -> "Masks":
        """Return masks of some segments, in the same memory. Args: which: [T] int64, indices."""
        return Masks(self.bits, self.at[which])


def masked_columns(masks: Masks, segments: Segments) -> Tensor:
    """Return [R, D] bool, in the memory of the masks, whether they keep each column of each row."""
    bits, width = masks.bits, mask_nbytes(segments.dim)
    first = (masks.at - segments.offsets[:-1] * width).to(bits.device)
    num_rows = int(segments.offsets[-1])
    segment = torch.repeat_interleave(segments.num_rows.to(bits.device), output_size=num_rows)
    place = first[segment] + torch.arange(num_rows, device=bits.device) * width
    packed = bits[place[:, None] + torch.arange(width, device=bits.device)]
    return unpack_bits(packed).flatten(1)[:, : segments.dim]


def num_masked(masks: Masks, segments: Segments) -> Tensor:
    """Return [S] int64, in the memory of the masks, how many columns each segment keeps."""
    return sums_of_rows(segments, masked_columns(masks, segments).sum(1))


def new_masks(placed: PlacedFrames, device: torch.device) -> Masks:
    """Return masks of all segments of frames that keep all columns until a codec writes others."""
    return Masks.of_all_columns(placed.num_rows, placed.plan.dims, device)


def with_masks(placed: PlacedFrames, masks: Masks) -> PlacedFrames:
    """Return the same frames with masks of all segments, for the codecs that use them."""
    groups = []
    for group in placed.groups:
        if group.codec.chooses_columns or group.codec.follows_forward:
            segments = group.segments.with_notes(masks.subset(group.members))
            group = replace(group, segments=segments)
        groups.append(group)
    return replace(placed, groups=tuple(groups))


class MaskTransform:
    """RowTransform (comm.rows.doors) that keeps masks from forward to backward.

    Args: plan: the collective's plan.
    Raises: ValueError: backward's segments are not forward's, in the same order, at both ends.
    """

    def __init__(self, plan: ExchangePlan) -> None:
        pairs = (
            (plan.forward_sent, plan.backward_received),
            (plan.forward_received, plan.backward_sent),
        )
        mirrored = all(
            here.tables == back.tables and here.segments_per_frame == back.segments_per_frame
            for here, back in pairs
        )
        if not mirrored:
            raise ValueError(
                "backward forward_mask needs a table- or column-wise sharding; here one gradient "
                "goes to all ranks, which kept other columns each"
            )

    def begin(self, name: str, exchange: PlacedExchange, device: torch.device) -> "MaskedCall":
        """Return what keeps the masks of the call that begins."""
        return MaskedCall(device)


class MaskedCall(CallTransform):
    """Masks of one call. They live as long as the graph, which may be run backward again.

    Args: device: device of the rows.
    """

    _masks: tuple[Masks, Masks]  # of what is sent forward, and received

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def frames(
        self, direction: str, sent: PlacedFrames, received: PlacedFrames
    ) -> tuple[PlacedFrames, PlacedFrames]:
        """Return the frames with masks: new masks in forward, forward's masks in backward."""
        if direction == "forward":
            self._masks = new_masks(sent, self._device), new_masks(received, self._device)
            return with_masks(sent, self._masks[0]), with_masks(received, self._masks[1])
        owned, sampled = self._masks
        return with_masks(sent, sampled), with_masks(received, owned)
