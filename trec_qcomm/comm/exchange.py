"""Exchange: every rank sends every peer one frame of coded rows, asynchronously.

Knows: frames, splits, the process group. Does not know: codecs, autograd, TorchRec.
If all codecs are of fixed size, both ends compute all sizes. Otherwise, on a CPU, a receiver has
room for the largest frame: gloo takes shorter ones, and a frame's header says how long it is. On a
GPU the sizes travel first, one int64 a segment, as the host does not read frames there.
Shapes: P frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.frames.coding import SealedFrames
from trec_qcomm.comm.frames.decoding import decode_frames
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.frames.sums import decode_sum
from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.sizes import exchange_tables, largest_nbytes
from trec_qcomm.core.counters import Traffic
from trec_qcomm.wire import frame


@dataclass(eq=False)
class PendingFrames:
    """Frames of an exchange that was started. Call `wait` once.

    Args:
        works: work of torch.distributed to wait for.
        sent: tensors that must stay in memory until then.
        received: the frames to come, whose rows `incoming` places.
        peers, incoming, traffic, name: arguments of `start_exchange`.
    """

    peers: Peers
    works: Sequence[dist.Work]
    sent: SealedFrames
    received: SealedFrames
    incoming: PlacedFrames
    traffic: Traffic
    name: str
    started: float = field(init=False, default_factory=perf_counter)

    def wait(self, out: Tensor, *, summed: bool = False) -> None:
        """Block until all frames are here and write their rows to `out`.

        Args: summed: whether to add up the rows of all frames (frames.sums.decode_sum).
        Raises: CorruptFrameError: a frame is wrong.  LostPeerError: a peer is gone.
        """
        begin = perf_counter()
        try:
            for work in self.works:
                work.wait()
        except RuntimeError as error:
            raise self.peers.lost(error, self.name, since=self.started) from error
        self.works = ()
        self.traffic.wire_s += perf_counter() - begin
        decode = decode_sum if summed else decode_frames
        decode(self.received, self.incoming, out, ranks=self.peers.ranks, traffic=self.traffic)


def start_exchange(
    peers: Peers,
    sent: SealedFrames,
    incoming: PlacedFrames,
    *,
    fixed_size: bool,
    traffic: Traffic,
    name: str,
) -> PendingFrames:
    """Launch the all-to-all of frames. Return at once, or on a GPU as soon as sizes have come.

    Args:
        peers: the ranks.
        sent: one frame per peer.
        incoming: the rows that the peers' frames will hold.
        fixed_size: whether every rank's frames have the sizes that `incoming` computes; the same on
            all ranks.
        traffic: counters of seconds and of the sizes' bytes.
        name: words for this exchange, for errors.
    Raises: CorruptFrameError: on a GPU, an impossible size.  LostPeerError: a peer is gone.
    """
    pg = peers.pg
    if pg.size() == 1:
        return PendingFrames(peers, (), sent, sent, incoming, traffic, name)
    begin = perf_counter()
    alignment = frame.alignment_of(sent.buffer)
    sizes = incoming.layout(alignment).frame_nbytes
    announced = None
    if frame.is_on_gpu(sent.buffer):
        announced = incoming.announced
        if not fixed_size:
            assert sent.announced is not None
            announced = exchange_tables(
                peers, sent.announced, sent.counts, sent.call, incoming, traffic, name
            )
            counts = incoming.plan.segments_per_frame
            _, sizes = frame.lay_out(announced.nbytes, counts, alignment)
    elif not fixed_size:
        # The most that the codecs take here, and the most that a peer in a bypass sends.
        sizes = list(map(max, sizes, largest_nbytes(incoming)))
        sizes[pg.rank()] = sent.nbytes[pg.rank()]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=sent.buffer.device)
    received = SealedFrames(buffer, sizes, sent.call, announced)
    works = (_send_one_to_all if sent.is_shared else _send_each)(peers, sent, received)
    traffic.wire_s += perf_counter() - begin
    return PendingFrames(peers, works, sent, received, incoming, traffic, name)


def _send_each(peers: Peers, sent: SealedFrames, received: SealedFrames) -> Sequence[dist.Work]:
    work = dist.all_to_all_single(
        received.buffer,
        sent.buffer,
        output_split_sizes=received.nbytes,
        input_split_sizes=sent.nbytes,
        group=peers.pg,
        async_op=True,
    )
    return (work,)


def _send_one_to_all(
    peers: Peers, sent: SealedFrames, received: SealedFrames
) -> Sequence[dist.Work]:
    """Send every peer the same frame out of the same memory.

    Frames of equal size take an all-gather, which takes each frame into each node once. NCCL has
    none in one call for frames that differ in size.
    """
    pg, frames = peers.pg, torch.split(received.buffer, received.nbytes)
    if received.nbytes[0] and len(set(received.nbytes)) == 1:
        whole = received.buffer, sent.buffer
        return (dist.all_gather_into_tensor(*whole, group=pg, async_op=True),)
    frames[pg.rank()].copy_(sent.buffer)
    others = [p for p in range(pg.size()) if p != pg.rank()]
    operations = [
        *(dist.P2POp(dist.isend, sent.buffer, group=pg, group_peer=p) for p in others),
        *(dist.P2POp(dist.irecv, frames[p], group=pg, group_peer=p) for p in others),
    ]
    operations = [operation for operation in operations if operation.tensor.numel()]
    works: Sequence[dist.Work] = dist.batch_isend_irecv(operations) if operations else ()
    return works
