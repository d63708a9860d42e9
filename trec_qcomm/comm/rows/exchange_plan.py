"""ExchangePlan: the frames of an exchange of rows and of the reverse exchange of their gradients.

An `ExchangePlan` stays from batch to batch; with the rows of a batch it is a `PlacedExchange`.

Knows: frame plans, masks. Does not know: process groups, autograd, how rows lie.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from trec_qcomm.comm.frames.plan import FramePlan, PlacedFrames
from trec_qcomm.core.codec import MaskUse
from trec_qcomm.core.segments import Masks
from trec_qcomm.core.transfer import Download


@dataclass(frozen=True, eq=False)
class ExchangePlan:
    """Plans of the four sets of frames of an exchange.

    Args:
        forward_sent, forward_received: the rows.
        backward_sent, backward_received: the gradients of the rows.
        mirrored: whether backward's segments are forward's, in order: segment s of what is sent
            back holds the gradients of segment s of what was received. Then both ends know in
            backward which columns of a segment were kept in forward (core.codec.MaskUse).
    """

    forward_sent: FramePlan
    forward_received: FramePlan
    backward_sent: FramePlan
    backward_received: FramePlan
    mirrored: bool = False

    def check_masks(self, name: str) -> None:
        """Raise ValueError naming the table whose backward codec needs masks it cannot have.

        Args: name: the collective's name, for the error.
        """
        for codec, _, members in self.backward_sent.groups:
            if codec.mask_use is MaskUse.READS and not self.mirrored:
                table = self.backward_sent.tables[int(members[0])]
                raise ValueError(
                    f"{name}: table {table!r}: backward {codec.name} needs a table- or column-wise "
                    "sharding; here one gradient goes to all ranks, which kept other columns each"
                )


@dataclass(frozen=True, eq=False)
class PlacedExchange:
    """The four sets of frames of an exchange, with the rows and places of one batch.

    Args:
        forward_sent, forward_received: the rows.
        backward_sent, backward_received: the gradients of the rows.
        sent_shape: shape of the rows given to `start`.
        result_shape: shape of the rows that `wait` returns.
        num_summands: number of results that lie one behind the other in what is received, to be
            added up in rank order.
    """

    forward_sent: PlacedFrames
    forward_received: PlacedFrames
    backward_sent: PlacedFrames
    backward_received: PlacedFrames
    sent_shape: tuple[int, ...]
    result_shape: tuple[int, ...]
    num_summands: int = 1


class CountedMasks:
    """Masks whose kept columns are being counted, and the counts on their way to the host.

    Begin this as soon as the masks are there. `wait` then finds the counts, and nobody waits for
    later work of a GPU.

    Args: sides: frames whose codecs read masks, and masks of all their segments.
    """

    def __init__(self, sides: Sequence[tuple[PlacedFrames, Masks]]) -> None:
        self._masks = [masks for _, masks in sides]
        self._members, counts = [], []
        for side, (frames, masks) in enumerate(sides):
            for group in frames.groups:
                if group.codec.mask_use is MaskUse.READS:
                    segments = replace(group.segments, masks=masks.subset(group.members))
                    self._members.append((side, group.members))
                    counts.append(segments.num_masked())
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
