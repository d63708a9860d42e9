"""Rounds: the messages that one rank of a collective sends and receives, step by step.

A collective is written once, as a generator for one rank. It yields a `Round` and is sent the
`ReceivedMessages`. `transport.py` runs it on a process group. `lab.ranks.rounds.play` runs all
ranks in one process without groups, to test a collective alone.

Knows: ranks, bytes. Does not know: process groups, frames, codecs.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError


@dataclass(frozen=True, eq=False)
class ReceivedMessages:
    """One message from each source, in order.

    Args: buffer: [W] uint8, the messages one after the other.  nbytes: size of each message.
    """

    buffer: Tensor
    nbytes: list[int]

    def messages(self) -> list[Tensor]:
        """Return each message as a [nbytes] uint8 view of `buffer`."""
        return list(torch.split(self.buffer, self.nbytes))


@dataclass(frozen=True, eq=False)
class Round:
    """Messages that one rank sends and receives in one step of a collective.

    Args:
        sends: pairs of a rank and a [W] uint8 contiguous message to it, in the order of sending; an
            empty message is not sent.
        sources: sending rank of each message to receive; messages of one rank stand in the order in
            which it sends them.
        nbytes: size of each message to receive, 0 where none comes. None: sizes travel before the
            bytes.
        max_nbytes: largest allowed size of each message to receive.
    """

    sends: Sequence[tuple[int, Tensor]]
    sources: Sequence[int]
    nbytes: Sequence[int] | None
    max_nbytes: Sequence[int]

    def checked_sizes(self, sizes: list[int], ranks: Sequence[int]) -> list[int]:
        """Return the sizes of all messages.

        Args:
            sizes: the size of each source's message.
            ranks: global ranks of the group's ranks, for the error.
        Raises: CorruptFrameError: a size is above its limit, negative or no multiple of 8.
        """
        for source, size, limit in zip(self.sources, sizes, self.max_nbytes, strict=True):
            if not 0 <= size <= limit or size % 8:
                reason = f"{size} bytes announced, at most {limit}"
                raise CorruptFrameError(reason, rank=ranks[source])
        return sizes


SIZE_NBYTES = 8  # bytes of the message that announces the size of the next one
Rounds = Generator[Round, ReceivedMessages, None]
