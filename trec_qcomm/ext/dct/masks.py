"""Masks: which columns of each row `topk` kept, and how both ends of an exchange remember them.

`forward_mask` sends the gradients of these columns alone. The masks are `Segments.notes`, written
when rows are encoded and decoded; a MaskTransform keeps them from forward to backward.
Shapes: S segments, R rows of D columns.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rows.doors import CallTransform
from trec_qcomm.comm.rows.exchange_plan import ExchangePlan, PlacedExchange
from trec_qcomm.core.codec import MaskUse
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.core.transfer import Download
from trec_qcomm.ext.buffers import unpack_bits


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
        counts: [S] int64 on CPU, how many columns of all its rows each segment keeps; None: they
            are not counted yet.
    """

    bits: Tensor
    at: Tensor
    counts: Tensor | None = None

    @classmethod
    def of_all_columns(
        cls, num_rows: Tensor, dims: Tensor, device: torch.device | None = None
    ) -> "Masks":
        """Return masks of segments of these shapes that keep every column.

        Args: num_rows, dims: [S] int64 each.  device: where the rows lie; None is the CPU.
        """
        ends = exclusive_cumsum(num_rows * ((dims + 7) // 8))
        bits = torch.full((int(ends[-1]),), 0xFF, dtype=torch.uint8, device=device)
        return cls(bits, ends[:-1])

    def subset(self, which: Tensor) -> "Masks":
        """Return the masks of some segments, in the same memory. Args: which: [T] int64."""
        counts = None if self.counts is None else self.counts[which]
        return Masks(self.bits, self.at[which], counts)


def masks_of(segments: Segments, device: torch.device) -> Masks | None:
    """Return the masks of segments; None: there are none.

    Args: device: where the rows lie.
    Raises: ValueError: masks of another shape, dtype or device.
    """
    masks = segments.notes
    if not isinstance(masks, Masks):
        return None
    bits, at = masks.bits, masks.at
    if bits.dtype != torch.uint8 or bits.dim() != 1 or not bits.is_contiguous():
        raise ValueError("masks.bits: expected contiguous [M] uint8")
    if at.dtype != torch.int64 or at.shape != segments.start.shape or at.is_cuda:
        raise ValueError(f"masks.at: expected {list(segments.start.shape)} int64 on CPU")
    last = bits.numel() - segments.num_rows * mask_nbytes(segments.dim)
    if bool((at < 0).any()) or bool((at > last).any()):
        raise ValueError(f"masks: {bits.numel()} bytes do not hold the segments")
    if bits.device != device:
        raise ValueError(f"masks: on {bits.device}, not {device}")
    return masks


def masked_columns(masks: Masks, segments: Segments) -> Tensor:
    """Return [R, D] bool, in the memory of the masks: which columns of each row they keep."""
    bits, width = masks.bits, mask_nbytes(segments.dim)
    first = (masks.at - segments.offsets[:-1] * width).to(bits.device)
    num_rows = int(segments.offsets[-1])
    segment = torch.repeat_interleave(segments.num_rows.to(bits.device), output_size=num_rows)
    place = first[segment] + torch.arange(num_rows, device=bits.device) * width
    packed = bits[place[:, None] + torch.arange(width, device=bits.device)]
    return unpack_bits(packed).flatten(1)[:, : segments.dim]


def num_masked(masks: Masks, segments: Segments) -> Tensor:
    """Return [S] int64, in the memory of the masks: how many columns each segment keeps."""
    return segments.sums_of_rows(masked_columns(masks, segments).sum(1))


def new_masks(placed: PlacedFrames, device: torch.device) -> Masks:
    """Return masks of all segments of frames that keep all columns until a codec writes others."""
    return Masks.of_all_columns(placed.num_rows, placed.plan.dims, device)


def with_masks(placed: PlacedFrames, masks: Masks) -> PlacedFrames:
    """Return the same frames with masks of all segments, for the codecs that use them."""
    groups = []
    for group in placed.groups:
        if group.codec.mask_use is not None:
            segments = group.segments.with_notes(masks.subset(group.members))
            group = replace(group, segments=segments)
        groups.append(group)
    return replace(placed, groups=tuple(groups))


class MaskTransform:
    """Transform that keeps masks from forward to backward; a comm.rows.doors.RowTransform.

    Args: plan: the collective's plan.
    Raises: ValueError: backward's segments are not forward's, in order, at both ends.
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
        return MaskedCall(exchange, device)


class MaskedCall(CallTransform):
    """Masks of one call. They live as long as the graph, which may be run backward again.

    Args: exchange: the call's frames.  device: where the rows lie.
    """

    def __init__(self, exchange: PlacedExchange, device: torch.device) -> None:
        self._exchange, self._device = exchange, device
        self._masks: tuple[Masks, Masks] | None = None  # of what is sent forward, and received
        self._counted: _Counted | None = None

    def frames(
        self, direction: str, sent: PlacedFrames, received: PlacedFrames
    ) -> tuple[PlacedFrames, PlacedFrames]:
        """Return the frames with masks: new ones forward, those of forward backward."""
        if direction == "forward":
            owned, sampled = new_masks(sent, self._device), new_masks(received, self._device)
            self._masks = owned, sampled
            return with_masks(sent, owned), with_masks(received, sampled)
        assert self._counted is not None, "backward without forward"
        owned, sampled = self._counted.wait()
        return with_masks(sent, sampled), with_masks(received, owned)

    def end(self, direction: str) -> None:
        """Begin to count the kept columns, once forward has noted them."""
        if direction == "forward":
            assert self._masks is not None
            owned, sampled = self._masks
            exchange = self._exchange
            sides = (exchange.backward_received, owned), (exchange.backward_sent, sampled)
            self._counted = _Counted(sides)


class _Counted:
    """Masks whose kept columns are being counted, and the counts on their way to the host.

    Begin this as soon as the masks are there. `wait` then finds the counts, and nobody waits for
    later work of a GPU.

    Args: sides: frames whose codecs read masks, and masks of all their segments.
    """

    def __init__(self, sides: tuple[tuple[PlacedFrames, Masks], ...]) -> None:
        self._masks = [masks for _, masks in sides]
        self._members, counts = [], []
        for side, (frames, masks) in enumerate(sides):
            for group in frames.groups:
                if group.codec.mask_use is MaskUse.READS:
                    self._members.append((side, group.members))
                    counts.append(num_masked(masks.subset(group.members), group.segments))
        self._counts = Download(torch.cat(counts))

    def wait(self) -> list[Masks]:
        """Return the masks of each side, with their counts; 0 where no codec reads them."""
        sizes = [len(members) for _, members in self._members]
        counts = [torch.zeros_like(masks.at) for masks in self._masks]
        parts = torch.split(self._counts.wait(), sizes)
        for (side, members), part in zip(self._members, parts, strict=True):
            counts[side][members] = part
        pairs = zip(self._masks, counts, strict=True)
        return [replace(masks, counts=of_side) for masks, of_side in pairs]
