"""Ids and lengths of a batch as messages to its peers, and back, bit by bit.

Knows: packed ids, headers of messages. Does not know: features, TorchRec, how bytes are sent.
Shapes: P messages; S segments in all, each the bags of one feature for one peer; W bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.ops.batch import packed_ids
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.wire import frame
from trec_qcomm.wire import ids as wire


@dataclass(frozen=True, eq=False)
class PackedMessages:
    """Messages to P peers, one behind the other.

    Args:
        buffer: [W] uint8, in the memory of the ids
        nbytes: P sizes; 0 for a peer without segments
        num_ids: S numbers, ids of each segment
    """

    buffer: Tensor
    nbytes: list[int]
    num_ids: list[int]


def pack(bags: Bags, counts: Sequence[int], *, even_bags: int | None) -> PackedMessages:
    """Pack the bags of all segments into a message for each peer. Waits for a GPU once.

    Args:
        counts: P numbers of segments; they sum up to S.
        even_bags: bags of every segment; None where segments differ.
    Raises: ValueError: the same as `ops.packed_ids.encode`.
    """
    states_bags = even_bags is None
    kind = wire.MessageKind(bags.ids.dtype, bags.lengths.dtype, states_bags)
    packed = packed_ids.encode(
        bags,
        counts,
        states_bags=states_bags,
        room=wire.HEADER_NBYTES,
        alignment=frame.alignment_of(bags.ids),
    )
    wire.seal(packed.payload, packed.nbytes, counts, kind, num_bags=even_bags or 0)
    return PackedMessages(packed.payload, packed.nbytes, packed.num_ids.tolist())


def unpack(
    buffer: Tensor, num_messages: int, features: Sequence[str], even_bags: Sequence[int] | None
) -> Bags:
    """Return the bags that all peers sent, message by message. Waits for a GPU three times.

    Args:
        buffer: [W] uint8, all that was received.
        num_messages: P peers, each of which sends a message if there are features.
        features: names of the segments of each message, for errors.
        even_bags: P numbers, bags of every segment of a message; None where segments differ.
    Raises: CorruptFrameError: naming the sender.
    """
    num_segments = len(features)
    if num_segments == 0:
        if buffer.numel():
            raise CorruptFrameError(f"{buffer.numel()} bytes of ids where none were due")
        none = torch.zeros(0, dtype=torch.int64, device=buffer.device)
        return Bags(none, none, torch.zeros(0, dtype=torch.int64))
    messages = wire.unseal(buffer, num_messages, num_segments)
    num_bags = None
    if messages.kind.states_bags != (even_bags is None):
        raise CorruptFrameError("batch with sizes by feature on one rank, and without on another")
    if even_bags is not None:
        for rank, (theirs, ours) in enumerate(zip(messages.num_bags, even_bags, strict=True)):
            if theirs != ours:
                raise CorruptFrameError(f"{theirs} bags where {ours} were announced", rank=rank)
        num_bags = int64_tensor(even_bags).repeat_interleave(num_segments)
    try:
        return packed_ids.decode(
            buffer,
            messages.begins,
            messages.ends,
            num_bags,
            num_segments=num_segments,
            dtypes=(messages.kind.ids, messages.kind.lengths),
        )[0]
    except CorruptFrameError as error:
        if error.segment is None:
            raise
        rank, number = divmod(error.segment, num_segments)
        reason = f"ids of feature {features[number]!r}: {error.reason}"
        raise CorruptFrameError(reason, rank=rank, segment=error.segment) from error
