"""Messages of ids: what one rank sends one peer of a batch's ids and lengths. FORMAT.md specifies
them.

Messages of several peers lie one behind the other in one buffer and are handled in one call.

Knows: headers, checksums. Does not know: how ids are packed, features, process groups.
Shapes: P messages; W bytes.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.wire import frame
from trec_qcomm.wire.ids import cpu
from trec_qcomm.wire.ids.cpu import HEADER_NBYTES

INT32_IDS, INT32_LENGTHS, STATED_BAGS = 1, 2, 4  # flags
_KNOWN_FLAGS = INT32_IDS | INT32_LENGTHS | STATED_BAGS

_REASONS = {
    cpu.BAD_SIZE: "size of a message of ids differs from the bytes received",
    cpu.BAD_MAGIC: "not a message of ids (magic)",
    cpu.BAD_VERSION: "message of ids of another wire version; this release reads version 2",
    cpu.BAD_CHECKSUM: "checksum of a message of ids differs",
    cpu.BAD_COUNT: "number of features in a message of ids differs from this rank's",
    cpu.BAD_FLAGS: "flags of a message of ids are unknown, or differ between ranks",
}


@dataclass(frozen=True)
class MessageKind:
    """Kind of the messages of one exchange.

    Args:
        ids, lengths: dtypes, int32 or int64
        states_bags: whether each segment says how many bags it has; else a message has one number
    """

    ids: torch.dtype
    lengths: torch.dtype
    states_bags: bool


@dataclass(frozen=True, eq=False)
class OpenMessages:
    """Checked messages in the buffer that they came in.

    Args:
        begins, ends: P places each, of the messages without their headers
        num_bags: P numbers, bags of each segment; not used where the segments state them
    """

    begins: list[int]
    ends: list[int]
    kind: MessageKind
    num_bags: list[int]


def seal(
    buffer: Tensor,
    nbytes: Sequence[int],
    counts: Sequence[int],
    kind: MessageKind,
    *,
    num_bags: int,
) -> None:
    """Write headers and checksums before packed ids that are already in place.

    Args:
        buffer: [W] uint8, with HEADER_NBYTES of room in each message.
        nbytes: P sizes, room included, multiples of `frame.alignment_of(buffer)`; 0 for a message
            without segments.
        counts: P numbers of segments.
        num_bags: bags of every segment; 0 where they state it.
    """
    flags = INT32_IDS * (kind.ids == torch.int32) + INT32_LENGTHS * (kind.lengths == torch.int32)
    flags += STATED_BAGS * kind.states_bags
    vectors = (np.asarray(v, np.int64) for v in (nbytes, counts))
    if frame.is_on_gpu(buffer):
        _gpu().seal(buffer, *vectors, num_bags, flags)
    else:
        cpu.seal(buffer.numpy(), *vectors, num_bags, flags)


def unseal(buffer: Tensor, num_messages: int, count: int) -> OpenMessages:
    """Check the messages of `count` segments each that fill a buffer. Waits for a GPU once.

    Args: buffer: [W] uint8, contiguous.  num_messages: P >= 1.
    Raises: CorruptFrameError: a message that breaks FORMAT.md or is not what this rank expects.
    """
    written = np.zeros((4, num_messages), np.int64)
    begins, ends, flags, num_bags = written
    if frame.is_on_gpu(buffer):
        reason, rank = _gpu().unseal(buffer, count, _KNOWN_FLAGS, written)
    else:
        reason, rank = cpu.unseal(buffer.numpy(), count, _KNOWN_FLAGS, *written)
    if reason != cpu.OK:
        raise CorruptFrameError(_REASONS[reason], rank=rank)
    kind = MessageKind(
        torch.int32 if flags[0] & INT32_IDS else torch.int64,
        torch.int32 if flags[0] & INT32_LENGTHS else torch.int64,
        bool(flags[0] & STATED_BAGS),
    )
    return OpenMessages(begins.tolist(), ends.tolist(), kind, num_bags.tolist())


def _gpu() -> Any:
    return importlib.import_module("trec_qcomm.wire.ids.gpu")


__all__ = ["HEADER_NBYTES", "MessageKind", "OpenMessages", "seal", "unseal"]
