"""Messages of an all-reduce's rounds, in slots: no sizes travel before a round.

A round whose messages have sizes that depend on the data becomes one of slots. If something did not
fit, a round of overflows follows, between the ranks concerned only; these know its sizes, from the
slots that they sent and received.

Knows: slots, rounds. Does not know: codecs, algorithms, process groups.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.comm.rounds import ReceivedMessages, Round
from trec_qcomm.comm.slots.extents import Extents
from trec_qcomm.comm.slots.history import SlotHistory, SlotOptions
from trec_qcomm.core.segments import ALIGNMENT
from trec_qcomm.wire import slot


class RoundHistories:
    """Histories of all rounds of one rank's all-reduces, by the parameters that these reduce.

    Args: options: settings of slots, the same on all ranks.
    """

    def __init__(self, options: SlotOptions) -> None:
        self._options = options
        self._by_round: dict[tuple[tuple[str, ...], int, str], SlotHistory] = {}

    def history(
        self, parameters: tuple[str, ...], number: int, use: str, num_frames: int
    ) -> SlotHistory:
        """Return the history of what one round sends or receives.

        Args: parameters: names of the bucket's.  number: number of the round.  use: `sent` or
            `received`.  num_frames: number of messages, the same in each all-reduce.
        """
        key = parameters, number, use
        if key not in self._by_round:
            self._by_round[key] = SlotHistory(self._options, num_frames)
        return self._by_round[key]


@dataclass(eq=False)
class SlotRound:
    """A round of messages in slots, and what it sends beside the messages.

    Args:
        sends: pairs of a rank and the number of the message to it, in the order of sending.
        messages: the messages, [W] uint8 each; each is one frame.
        outgoing: extents of the messages.
        sources: the ranks to wait for, in order.
        incoming: extents of the message from each of them.
        limits: the largest size of each of these.
        histories: sizes of what earlier rounds sent, and of what they received.
        call: number of the all-reduce.
    Attributes: sent_nbytes, padding_nbytes, num_overflows: counts of what `run` sends: bytes in
        all, bytes of slots that nothing filled, and messages that did not fit.
    """

    sends: Sequence[tuple[int, int]]
    messages: Sequence[Tensor]
    outgoing: Extents
    sources: Sequence[int]
    incoming: Extents
    limits: Sequence[int]
    histories: tuple[SlotHistory, SlotHistory]
    call: int
    sent_nbytes: int = 0
    padding_nbytes: int = 0
    num_overflows: int = 0

    def run(self) -> Generator[Round, ReceivedMessages, ReceivedMessages]:
        """Yield the round of slots, and one of overflows where there are any.

        Returns: the messages from the sources.
        Raises: CorruptFrameError: a slot that no sender fills so.
        """
        to_send, to_receive = self.histories
        sizes = [message.numel() for message in self.messages]
        capacities = to_send.capacities(self.outgoing, ALIGNMENT)
        nothing = torch.empty(0, dtype=torch.uint8)
        frames = self.messages[0] if len(sizes) == 1 else torch.cat([nothing, *self.messages])
        slots = slot.fill(frames, sizes, capacities, call=self.call)
        each = torch.split(slots, capacities.tolist())
        overflows = dict(slot.overflows(frames, sizes, capacities))
        self._count(sizes, capacities, set(overflows))
        expected = to_receive.capacities(self.incoming, ALIGNMENT)
        nbytes = expected.tolist()
        sends = [(peer, each[number]) for peer, number in self.sends]
        received = yield Round(sends, self.sources, nbytes, nbytes)
        stated = slot.sizes_of(
            slot.words_of(received.buffer, expected),
            expected,
            call=self.call,
            limits=np.asarray(self.limits, np.int64),
            ranks=self.sources,
        )
        buffer = slot.take_out(received.buffer, expected, stated)
        places = slot.overflows(buffer, stated, expected)
        sends = [(peer, overflows[number]) for peer, number in self.sends if number in overflows]
        if sends or places:
            sources, lengths = [self.sources[p] for p, _ in places], [len(m) for _, m in places]
            rest = yield Round(sends, sources, lengths, lengths)
            for (_, place), message in zip(places, rest.messages(), strict=True):
                place.copy_(message)
        to_send.note(self.outgoing, sizes)
        to_receive.note(self.incoming, stated)
        return ReceivedMessages(buffer, stated)

    def _count(self, sizes: Sequence[int], capacities: np.ndarray, overflows: set[int]) -> None:
        rooms = slot.room(capacities).tolist()
        for _, number in self.sends:
            self.sent_nbytes += slot.HEADER_NBYTES * bool(capacities[number])
            self.sent_nbytes += max(rooms[number], sizes[number])
            self.padding_nbytes += max(rooms[number] - sizes[number], 0)
            self.num_overflows += number in overflows
