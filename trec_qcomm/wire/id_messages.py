"""Write the ids and lengths of a batch as messages to peers, and read them back, bit by bit.

FORMAT.md specifies the messages. Messages of several peers lie one after the other in one buffer
and are handled in one call.

Knows: packed ids, headers, checksums. Does not know: features, TorchRec, how bytes are sent.
Shapes: P messages; S segments in all, each the bags of one feature for one peer; W bytes.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.ops.batch import packed_ids
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.ops.id_messages import cpu
from trec_qcomm.ops.id_messages.cpu import HEADER_NBYTES
from trec_qcomm.wire import frame

INT32_IDS, INT32_LENGTHS, STATED_BAGS = 1, 2, 4  # flags
Dtypes = tuple[torch.dtype, torch.dtype]  # of ids and of lengths, each int32 or int64

_REASONS = {
    cpu.BAD_SIZE: "size of a message of ids differs from the bytes received",
    cpu.BAD_MAGIC: "not a message of ids (magic)",
    cpu.BAD_VERSION: "message of ids of another wire version; this release reads version 3",
    cpu.BAD_CHECKSUM: "checksum of a message of ids differs",
    cpu.BAD_COUNT: "number of features in a message of ids differs from this rank's",
    cpu.BAD_FLAGS: "flags of a message of ids are unknown, or differ from this rank's: other "
    "dtypes, or a batch with sizes by feature on one rank, and without on another",
}


@dataclass(frozen=True, eq=False)
class PackedMessages:
    """Messages to P peers, one after the other.

    Args:
        buffer: [W] uint8, in the memory of the ids.
        nbytes: P sizes; 0 for a peer without segments.
        num_ids: S ints, the number of ids of each segment.
    """

    buffer: Tensor
    nbytes: list[int]
    num_ids: list[int]


def pack(bags: Bags, counts: Sequence[int], *, even_bags: int | None) -> PackedMessages:
    """Pack the bags of all segments into a message for each peer. Waits for a GPU once.

    Args:
        counts: P ints, the number of segments of each message; they sum up to S.
        even_bags: number of bags of every segment; None where segments differ.
    Raises: ValueError: the same as `ops.batch.packed_ids.encode`.
    """
    states_bags = even_bags is None
    flags = _flags((bags.ids.dtype, bags.lengths.dtype), states_bags)
    packed = packed_ids.encode(
        bags,
        counts,
        states_bags=states_bags,
        room=HEADER_NBYTES,
        alignment=frame.alignment_of(bags.ids),
    )
    seal(packed.payload, packed.nbytes, counts, flags=flags, num_bags=even_bags or 0)
    return PackedMessages(packed.payload, packed.nbytes, packed.num_ids.tolist())


def _flags(dtypes: Dtypes, states_bags: bool) -> int:
    is_int32 = [dtype == torch.int32 for dtype in dtypes]
    return INT32_IDS * is_int32[0] + INT32_LENGTHS * is_int32[1] + STATED_BAGS * states_bags


def unpack(
    buffer: Tensor,
    senders: Sequence[int],
    features: Sequence[str],
    even_bags: Sequence[int] | None,
    dtypes: Dtypes = (torch.int64, torch.int64),
) -> Bags:
    """Return the bags that all peers sent, message by message. Waits for a GPU three times.

    Args:
        buffer: [W] uint8, all that was received.
        senders: P global ranks, for errors; each sends a message if there are features.
        features: names of the features of each message, one for each segment, for errors.
        even_bags: P ints, the number of bags of every segment of a message; None where segments
            differ.
        dtypes: dtypes of ids and lengths, which are the same on all ranks.
    Raises: CorruptFrameError: naming the sender.
    """
    num_segments = len(features)
    if num_segments == 0:
        if buffer.numel():
            raise CorruptFrameError(f"{buffer.numel()} bytes of ids where none were due")
        ids, lengths = (torch.zeros(0, dtype=dtype, device=buffer.device) for dtype in dtypes)
        return Bags(ids, lengths, torch.zeros(0, dtype=torch.int64))
    flags, num_bags = _flags(dtypes, even_bags is None), None
    begins, ends, announced = unseal(buffer, senders, num_segments, flags)
    if even_bags is not None:
        for rank, theirs, ours in zip(senders, announced, even_bags, strict=True):
            if theirs != ours:
                raise CorruptFrameError(f"{theirs} bags where {ours} were announced", rank=rank)
        num_bags = int64_tensor(even_bags).repeat_interleave(num_segments)
    try:
        return packed_ids.decode(
            buffer, begins, ends, num_bags, num_segments=num_segments, dtypes=dtypes
        )[0]
    except CorruptFrameError as error:
        if error.segment is None:
            raise
        rank, number = divmod(error.segment, num_segments)
        reason = f"ids of feature {features[number]!r}: {error.reason}"
        raise CorruptFrameError(reason, rank=senders[rank], segment=error.segment) from error


def seal(
    buffer: Tensor, nbytes: Sequence[int], counts: Sequence[int], *, flags: int, num_bags: int
) -> None:
    """Write headers and checksums before packed ids that are already in place.

    Args:
        buffer: [W] uint8, with HEADER_NBYTES of room in each message.
        nbytes: P sizes, that room included, multiples of `frame.alignment_of(buffer)`; 0 for a
            message without segments.
        counts: P ints, the number of segments of each message.
        flags: sum of those of INT32_IDS, INT32_LENGTHS and STATED_BAGS that hold.
        num_bags: number of bags of every segment; 0 where segments state it.
    """
    vectors = (np.asarray(v, np.int64) for v in (nbytes, counts))
    if frame.is_on_gpu(buffer):
        _gpu().seal(buffer, *vectors, num_bags, flags)
    else:
        cpu.seal(buffer.numpy(), *vectors, num_bags, flags)


def unseal(
    buffer: Tensor, senders: Sequence[int], count: int, flags: int
) -> tuple[list[int], list[int], list[int]]:
    """Check the messages of `count` segments each that fill a buffer. Waits for a GPU once.

    Args:
        buffer: [W] uint8, contiguous.
        senders: P >= 1 global ranks, for errors.
        flags: flags that each message must have.
    Returns: three lists of P ints: where the messages begin, after their headers; where they end;
        and how many bags each of their segments has (not used where the segments state it).
    Raises: CorruptFrameError: a message that breaks FORMAT.md or is not what this rank expects.
    """
    written = np.zeros((3, len(senders)), np.int64)
    if frame.is_on_gpu(buffer):
        reason, rank = _gpu().unseal(buffer, count, flags, written)
    else:
        reason, rank = cpu.unseal(buffer.numpy(), count, flags, *written)
    if reason != cpu.OK:
        raise CorruptFrameError(_REASONS[reason], rank=senders[rank])
    begins, ends, num_bags = written.tolist()
    return begins, ends, num_bags


def _gpu() -> Any:
    return importlib.import_module("trec_qcomm.ops.id_messages.gpu")
