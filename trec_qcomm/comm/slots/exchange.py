"""Exchange of frames whose sizes vary, in slots: one all-to-all, and no sizes before it.

Sender and receiver know each slot's capacity (history.py), so the all-to-all begins at once. What
does not fit travels in messages between the two ranks concerned, which exist only then: the slot
says how large they are. The sender posts them when it launches the exchange, the receiver when it
waits for it. Their tag is made from the exchange's name and number, so they cannot pair up with
those of another exchange, whatever the order of waits.

Knows: slots, process groups, CPU. Does not know: codecs, autograd.
Shapes: P frames.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.frames.coding import SealedFrames
from trec_qcomm.comm.frames.decoding import decode_frames
from trec_qcomm.comm.frames.plan import FramePlan, PlacedFrames
from trec_qcomm.comm.frames.sums import decode_sum
from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.sizes import largest_nbytes
from trec_qcomm.comm.slots.extents import Extents
from trec_qcomm.comm.slots.history import SlotHistory, SlotOptions
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.segments import ALIGNMENT
from trec_qcomm.wire import slot


class Histories:
    """Histories of all kinds of exchanges of one collective, each for both ends.

    Args: options: settings of slots, the same on all ranks.
    """

    def __init__(self, options: SlotOptions) -> None:
        self._options = options
        self._by_kind: dict[tuple[int, FramePlan], tuple[SlotHistory, SlotHistory]] = {}

    def fresh(self) -> "Histories":
        """Return histories of nothing, with the same settings."""
        return Histories(self._options)

    def of_kind(
        self, kind: int, sent: FramePlan, received: FramePlan
    ) -> tuple[SlotHistory, SlotHistory]:
        """Return the histories of what is sent and of what is received.

        Args: kind: what the exchange is part of, such as backward or evaluation.
        """
        key = kind, sent
        if key not in self._by_kind:
            num_sent, num_received = (len(p.segments_per_frame) for p in (sent, received))
            self._by_kind[key] = (
                SlotHistory(self._options, num_sent),
                SlotHistory(self._options, num_received),
            )
        return self._by_kind[key]


@dataclass(eq=False)
class PendingSlots:
    """An exchange in slots that was started. Call `wait` once.

    Args:
        peers: the ranks.
        sent: frames that were sent.
        outgoing, incoming: the rows of frames that are sent, and of those that come.
        histories: sizes of earlier frames that were sent, and of those that were received.
        traffic: counters.
        name: words for the exchange, for errors.
    Derived: of what is under way.
    """

    peers: Peers
    sent: SealedFrames
    outgoing: PlacedFrames
    incoming: PlacedFrames
    histories: tuple[SlotHistory, SlotHistory]
    traffic: Traffic
    name: str
    _capacities: Any = field(init=False)  # [P] numpy int64, of the slots that come
    _received: Tensor = field(init=False)
    _work: dist.Work | None = field(init=False)
    _sending: list[tuple[int, Tensor, dist.Work]] = field(init=False)
    _own_overflow: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        begin = perf_counter()
        self._started, sent, pg = begin, self.sent, self.peers.pg
        to_send, to_receive = self.histories
        self._extents = Extents.from_placed(self.outgoing), Extents.from_placed(self.incoming)
        each = to_send.capacities(self._extents[0], ALIGNMENT)
        capacities = np.tile(each, self.outgoing.plan.fan_out)
        self._capacities = to_receive.capacities(self._extents[1], ALIGNMENT)
        slots = slot.fill(sent.buffer, sent.nbytes, capacities, call=sent.call)
        self._received = torch.empty(int(self._capacities.sum()), dtype=torch.uint8)
        self._work = dist.all_to_all_single(
            self._received,
            slots,
            output_split_sizes=self._capacities.tolist(),
            input_split_sizes=capacities.tolist(),
            group=pg,
            async_op=True,
        )
        overflows = slot.overflows(sent.buffer, sent.nbytes, capacities)
        self._sending = [
            (p, message, pg.send([message], p, self._tag))
            for p, message in overflows
            if p != pg.rank()
        ]
        self._own_overflow = next((message for p, message in overflows if p == pg.rank()), None)
        count_slots(self.traffic, pg.rank(), sent.nbytes, capacities)
        self.traffic.wire_s += perf_counter() - begin

    @property
    def _tag(self) -> int:
        return zlib.crc32(f"{self.name} {self.sent.call}".encode()) >> 1  # torch wants 31 bits

    def wait(self, out: Tensor, *, summed: bool = False) -> None:
        """Block until all frames are here and write their rows to `out`.

        Args: summed: whether to add up the rows of all frames, see frames.sums.decode_sum.
        Raises: CorruptFrameError.  LostPeerError.
        """
        begin = perf_counter()
        self._wait_for(self._work, self.name)
        self._work = None
        ranks = self.peers.ranks
        nbytes = slot.sizes_of(
            slot.words_of(self._received, self._capacities),
            self._capacities,
            call=self.sent.call,
            limits=largest_nbytes(self.incoming).numpy(),
            ranks=ranks,
        )
        frames = slot.take_out(self._received, self._capacities, nbytes)
        self._receive_overflows(slot.overflows(frames, nbytes, self._capacities))
        to_send, to_receive = self.histories
        to_send.note(self._extents[0], self.sent.nbytes[: len(self.outgoing.frame_nbytes)])
        to_receive.note(self._extents[1], nbytes)
        self.traffic.wire_s += perf_counter() - begin
        received = SealedFrames(frames, nbytes, self.sent.call)
        decode = decode_sum if summed else decode_frames
        decode(received, self.incoming, out, ranks=ranks, traffic=self.traffic)

    def _receive_overflows(self, overflows: Sequence[tuple[int, Tensor]]) -> None:
        """Receive what slots had no room for, and wait until this rank's overflows are sent.

        Args: overflows: pairs of a rank and the memory for its bytes.
        """
        pg = self.peers.pg
        coming = [(p, pg.recv([m], p, self._tag)) for p, m in overflows if p != pg.rank()]
        for _, memory in (pair for pair in overflows if pair[0] == pg.rank()):
            assert self._own_overflow is not None, "the history of what this rank sends itself"
            memory.copy_(self._own_overflow)
        for p, work in coming:
            self._wait_for(work, f"overflow of the {self.name}", p)
        for p, _, work in self._sending:
            self._wait_for(work, f"overflow of the {self.name}", p)
        self._sending.clear()

    def _wait_for(self, work: dist.Work | None, name: str, peer: int | None = None) -> None:
        try:
            if work is not None:
                work.wait()
        except RuntimeError as error:
            raise self.peers.lost(error, name, since=self._started, peer=peer) from error


def count_slots(traffic: Traffic, rank: int, nbytes: Sequence[int], capacities: Any) -> None:
    """Count what slots take in addition to the frames that go to other ranks.

    Args: nbytes: size of the frame for each rank.  capacities: [P] numpy int64, of its slot.
    """
    sizes, rooms = np.asarray(nbytes, np.int64), slot.room(capacities)
    remote = (capacities > 0) & (np.arange(len(sizes)) != rank)
    traffic.header_nbytes += slot.HEADER_NBYTES * int(remote.sum())
    traffic.padding_nbytes += int(np.maximum(rooms - sizes, 0)[remote].sum())
    traffic.num_overflows += int((sizes > rooms)[remote].sum())
