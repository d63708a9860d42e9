"""Message, one frame that an algorithm sends or passes on, and counts of what is sent.

Knows: frames. Does not know: values, residuals, algorithms.
Shapes: W bytes of a frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rounds import ReceivedMessages
from trec_qcomm.comm.slots.messages import ReceivedFrames
from trec_qcomm.wire import frame


@dataclass
class Sent:
    """Counts of what rounds of one hop send.

    Attributes:
        nbytes, header_nbytes, padding_nbytes: all bytes, and how many of them are headers and
            sizes, and are padding.
        num_overflows: number of messages that did not fit their slots.
    """

    nbytes: int = 0
    header_nbytes: int = 0
    padding_nbytes: int = 0
    num_overflows: int = 0


class Message(NamedTuple):
    """One frame to send.

    Args:
        frame: [W] uint8, with the padding behind it.
        header_nbytes: the share of W that is header and padding, for statistics.
        placed, number: frames with the rows of this one, and its number among them.
        announced: codec and size of each segment, on a GPU, where they are not of fixed size.
    """

    frame: Tensor
    header_nbytes: int
    placed: PlacedFrames
    number: int = 0
    announced: frame.Announced | None = None

    @classmethod
    def passed_on(cls, received: ReceivedMessages, placed: PlacedFrames) -> "Message":
        """Return a frame that is sent on as it was received."""
        [message] = cls.all_passed_on(received, placed)
        return message

    @classmethod
    def all_passed_on(cls, received: ReceivedMessages, placed: PlacedFrames) -> list["Message"]:
        """Return the frames, in order, each to be sent on as it was received."""
        counts, announced = placed.plan.segments_per_frame, getattr(received, "announced", None)
        frames = received.messages()
        if announced is None and not placed.fixed_size:  # in a CPU's memory, without padding
            overheads = map(frame.overhead_nbytes, counts)
            pairs = zip(frames, overheads, strict=True)
            return [cls(f, size, placed, number) for number, (f, size) in enumerate(pairs)]
        nbytes = placed.max_nbytes if announced is None else announced.nbytes
        payloads = frame.payload_nbytes(nbytes, counts)
        known: Sequence[frame.Announced | None] = [None] * len(counts)
        if announced is not None:
            known = announced.by_frame(counts)
        return [
            cls(f, f.numel() - payload, placed, number, stated)
            for number, (f, payload, stated) in enumerate(zip(frames, payloads, known, strict=True))
        ]

    def to_itself(self) -> ReceivedMessages:
        """Return the message as its sender would receive it."""
        nbytes = [self.frame.numel()]
        if self.announced is None:
            return ReceivedMessages(self.frame, nbytes)
        return ReceivedFrames(self.frame, nbytes, self.announced)

    @property
    def overhead_nbytes(self) -> int:
        """Bytes of the frame's header and segment table."""
        return frame.overhead_nbytes(self.placed.plan.segments_per_frame[self.number])

    @property
    def nbytes(self) -> int:
        """Bytes of the frame without the padding."""
        return self.frame.numel() - self.header_nbytes + self.overhead_nbytes
