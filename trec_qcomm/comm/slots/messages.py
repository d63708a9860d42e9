"""Messages of an all-reduce's rounds, in slots: no sizes travel before a round.

A round whose messages have sizes that depend on the data becomes one of slots. If something did not
fit, a round of overflows follows, between the ranks concerned only; these know its sizes, from the
slots that they sent and received.

Knows: slots, rounds. Does not know: codecs, algorithms, process groups.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rounds import ReceivedMessages, Round
from trec_qcomm.comm.sizes import largest_nbytes
from trec_qcomm.comm.slots.extents import Extents
from trec_qcomm.comm.slots.history import SlotHistory, SlotOptions
from trec_qcomm.core.transfer import download
from trec_qcomm.wire import frame, slot
from trec_qcomm.wire.slot.heads import Heads


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


@dataclass(frozen=True, eq=False)
class ReceivedFrames(ReceivedMessages):
    """Messages that came in slots.

    Args: announced: on a GPU codec and size of each of their segments, see wire.frame.unseal.
    """

    announced: frame.Announced | None = None


@dataclass(eq=False)
class SlotRound:
    """A round of messages in slots, and what it sends beside the messages.

    Args:
        sends: pairs of a rank and the number of the message to it, in the order of sending.
        messages: the messages, [W] uint8 each; each is one frame and its padding.
        nbytes: sizes of these frames without the padding.
        outgoing: extents of the messages.
        sources: the ranks to wait for, in order.
        incoming: extents of the message from each of them.
        expected: the rows of these messages; None: nothing comes.
        device: where the messages lie.
        histories: sizes of what earlier rounds sent, and of what they received.
        call: number of the all-reduce.
    Attributes: sent_nbytes, padding_nbytes, num_overflows: counts of what `run` sends: bytes in
        all, bytes of slots that nothing filled, and messages that did not fit.
    """

    sends: Sequence[tuple[int, int]]
    messages: Sequence[Tensor]
    nbytes: Sequence[int]
    outgoing: Extents
    sources: Sequence[int]
    incoming: Extents
    expected: PlacedFrames | None
    device: torch.device
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
        sizes = self.nbytes
        nothing = torch.empty(0, dtype=torch.uint8, device=self.device)
        frames = self.messages[0] if len(sizes) == 1 else torch.cat([nothing, *self.messages])
        alignment = slot.alignment_of(frames)
        capacities = to_send.capacities(self.outgoing, alignment)
        slots = slot.fill(frames, sizes, capacities, call=self.call)
        each = torch.split(slots, capacities.tolist())
        overflows = dict(slot.overflows(frames, sizes, capacities))
        self._count(sizes, capacities, set(overflows))
        expected = to_receive.capacities(self.incoming, alignment)
        lengths = expected.tolist()
        sends = [(peer, each[number]) for peer, number in self.sends]
        received = yield Round(sends, self.sources, lengths, lengths)
        stated, announced = self._stated(received.buffer, expected)
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
        return ReceivedFrames(buffer, slot.padded(stated, buffer), announced)

    def _stated(self, slots: Tensor, capacities: Any) -> tuple[list[int], frame.Announced | None]:
        """Return the sizes that slots state and, on a GPU, codec and size of each segment."""
        if self.expected is None:
            return [], None
        if not frame.is_on_gpu(slots):
            return self._sizes(slot.words_of(slots, capacities), capacities), None
        heads = Heads.from_counts(self.expected.plan.segments_per_frame)
        gathered = download(heads.gather(slots, capacities))
        sizes = self._sizes(heads.words(gathered), capacities)
        limits = 2 * self.expected.raw_nbytes + 4096
        return sizes, heads.tables(gathered, sizes, limits=limits, ranks=self.sources)

    def _sizes(self, words: Any, capacities: Any) -> list[int]:
        assert self.expected is not None
        limits = largest_nbytes(self.expected).numpy()
        return slot.sizes_of(words, capacities, call=self.call, limits=limits, ranks=self.sources)

    def _count(self, sizes: Sequence[int], capacities: Any, overflows: set[int]) -> None:
        rooms = slot.room(capacities).tolist()
        for _, number in self.sends:
            self.sent_nbytes += slot.HEADER_NBYTES * bool(capacities[number])
            self.sent_nbytes += max(rooms[number], sizes[number])
            self.padding_nbytes += max(rooms[number] - sizes[number], 0)
            self.num_overflows += number in overflows
