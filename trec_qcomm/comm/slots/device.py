"""Exchange of frames in slots in a GPU's memory: the host launches it before any size is known.

A kernel gathers encoded segments into slots, so the all-to-all waits for the encoder on the device
only. The host waits once, when the rows are asked for: for the heads of the slots that have come
(wire.slot.heads), and for the sizes of what this rank has sent. It needs both before the rows may
be used, as it must launch the messages of what did not fit; and decoders want to be told sizes. No
wait at all would need messages whose sizes the device alone knows, which NCCL does not have.

Knows: slots, encoders, process groups. Does not know: autograd, which codec.
Shapes: P frames, S segments in all.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.frames.coding import SealedFrames
from trec_qcomm.comm.frames.decoding import decode_frames
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.frames.sums import decode_sum
from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.sizes import largest_nbytes
from trec_qcomm.comm.slots.exchange import count_slots
from trec_qcomm.comm.slots.extents import Extents
from trec_qcomm.comm.slots.history import SlotHistory
from trec_qcomm.comm.slots.on_device import EncodedOnDevice
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.transfer import download
from trec_qcomm.wire import slot
from trec_qcomm.wire.slot.heads import Heads


class PendingDeviceSlots:
    """An exchange in slots from a GPU's memory that was started. Call `wait` once.

    Args:
        peers: the ranks.
        sent: encoded segments.
        incoming: the rows of frames that come.
        histories: sizes of earlier frames that were sent, and of those that were received.
        traffic: counters.
        name: words for the exchange, for errors.
    """

    def __init__(
        self,
        peers: Peers,
        sent: EncodedOnDevice,
        incoming: PlacedFrames,
        histories: tuple[SlotHistory, SlotHistory],
        traffic: Traffic,
        name: str,
    ) -> None:
        self._peers, self._sent, self._incoming = peers, sent, incoming
        self._histories, self._traffic, self._name = histories, traffic, name
        self._started = perf_counter()
        plan, alignment = sent.placed.plan, slot.alignment_of(sent.payload)
        self._extents = Extents.from_placed(sent.placed), Extents.from_placed(incoming)
        to_send, to_receive = histories
        self._own_capacities = to_send.capacities(self._extents[0], alignment)
        self._capacities = to_receive.capacities(self._extents[1], alignment)
        slots = sent.slots(self._own_capacities)
        if plan.fan_out > 1:
            slots = slots.repeat(plan.fan_out)
        size = int(self._capacities.sum())
        self._received = torch.empty(size, dtype=torch.uint8, device=slots.device)
        self._work: dist.Work | None = dist.all_to_all_single(
            self._received,
            slots,
            output_split_sizes=self._capacities.tolist(),
            input_split_sizes=self._own_capacities.tolist() * plan.fan_out,
            group=peers.pg,
            async_op=True,
        )
        traffic.wire_s += perf_counter() - self._started

    def wait(self, out: Tensor, *, summed: bool = False) -> None:
        """Wait until all frames are here, and launch what writes their rows to `out`.

        Args: summed: whether to add up the rows of all frames, see frames.sums.decode_sum.
        Raises: CorruptFrameError: also later, see core.checks.  LostPeerError.
        """
        begin, peers, incoming, sent = perf_counter(), self._peers, self._incoming, self._sent
        self._wait_for(self._work, self._name)
        self._work = None
        heads = Heads.from_counts(incoming.plan.segments_per_frame)
        gathered = heads.gather(self._received, self._capacities)
        on_host = download(torch.cat([sent.nbytes, gathered]))
        own_nbytes, gathered = on_host[: len(sent.nbytes)], on_host[len(sent.nbytes) :]
        nbytes = slot.sizes_of(
            heads.words(gathered),
            self._capacities,
            call=sent.call,
            limits=largest_nbytes(incoming).numpy(),
            ranks=peers.ranks,
        )
        announced = heads.tables(
            gathered, nbytes, limits=2 * incoming.raw_nbytes + 4096, ranks=peers.ranks
        )
        frames = slot.take_out(self._received, self._capacities, nbytes)
        own_sizes = sent.frame_nbytes(own_nbytes)
        overflows = sent.overflows(own_nbytes, self._own_capacities)
        self._exchange_overflows(
            overflows * sent.placed.plan.fan_out,
            slot.overflows(frames, nbytes, self._capacities),
        )
        self._histories[0].note(self._extents[0], own_sizes)
        self._histories[1].note(self._extents[1], nbytes)
        self._count(own_nbytes, own_sizes)
        self._traffic.wire_s += perf_counter() - begin
        received = SealedFrames(frames, slot.padded(nbytes, frames), sent.call, announced)
        decode = decode_sum if summed else decode_frames
        decode(received, incoming, out, ranks=peers.ranks, traffic=self._traffic)

    def _exchange_overflows(
        self, outgoing: Sequence[Tensor], places: Sequence[tuple[int, Tensor]]
    ) -> None:
        """Send and receive what slots had no room for.

        Args:
            outgoing: P messages, one for each rank; an empty one is not sent.
            places: pairs of a rank and the memory for its message.
        """
        pg, rank = self._peers.pg, self._peers.pg.rank()
        sends = [(p, message) for p, message in enumerate(outgoing) if message.numel()]
        for p, place in places:
            if p == rank:
                place.copy_(outgoing[rank])
        messages = [(dist.isend, *pair) for pair in sends] + [(dist.irecv, *p) for p in places]
        messages = [message for message in messages if message[1] != rank]
        ops = [dist.P2POp(kind, m, group=pg, group_peer=p) for kind, p, m in messages]
        works = dist.batch_isend_irecv(ops) if ops else []
        alone = len(works) == len(ops)  # NCCL has one work for all
        for n, work in enumerate(works):
            peer = messages[n][1] if alone else None
            self._wait_for(work, f"overflow of the {self._name}", peer)

    def _wait_for(self, work: dist.Work | None, name: str, peer: int | None = None) -> None:
        try:
            if work is not None:
                work.wait()  # with NCCL the current stream waits, with gloo the host
        except RuntimeError as error:
            raise self._peers.lost(error, name, since=self._started, peer=peer) from error

    def _count(self, nbytes: Tensor, frame_nbytes: Sequence[int]) -> None:
        """Count what was sent, now that it is known. Args: nbytes: [S] int64 on CPU."""
        placed = self._sent.placed
        plan, rank, fan_out = placed.plan, self._peers.pg.rank(), placed.plan.fan_out
        wire = nbytes * plan.segment_copies
        sent = int(np.dot(np.asarray(frame_nbytes, np.int64), plan.remote_copies.numpy()))
        raw = placed.raw_nbytes * plan.segment_copies
        self._traffic.add_bytes(plan.table, raw, wire, sent - int(wire.sum()))
        capacities: Any = np.tile(self._own_capacities, fan_out)
        count_slots(self._traffic, rank, list(frame_nbytes) * fan_out, capacities)
