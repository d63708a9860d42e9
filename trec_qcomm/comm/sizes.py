"""Sizes of frames whose codecs have no fixed size.

On a CPU a frame has a largest size, and its header says how long it is. The host does not read
frames in a GPU's memory, so a size and a codec are sent before them for each segment, from the
CPU's memory, over gloo. The choices were:
- NCCL, in the group of the frames: all kernels of a communicator run in the order of their launch.
  So the host, which must read the sizes, would wait for every earlier exchange of the group.
- A communicator of NCCL for sizes alone: still two copies and a wait for the GPU, memory for one
  more communicator, and a deadlock if ranks launch it and another communicator in different orders.
- gloo: no copy and no wait for the GPU. The host waits for its slowest peer, as it would anyway. A
  message takes longer, some ten microseconds to a neighbour instead of a few.

Knows: process groups, what a receiver expects. Does not know: which codec, autograd.
Shapes: P frames, S segments in all.
"""

from collections.abc import Sequence
from time import perf_counter

import torch
import torch.distributed as dist

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.peers import Peers
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.wire import frame

# A segment's word: 32 bits of size, 8 of the codec's wire id, and the call's number.
_CODEC_SHIFT, _CALL_SHIFT, _CALL_BITS = 32, 40, 16


def exchange_tables(
    peers: Peers,
    announced: frame.Announced,
    counts: Sequence[int],
    call: int,
    incoming: PlacedFrames,
    traffic: Traffic,
    name: str,
) -> frame.Announced:
    """Return each segment's codec and size; refuse wrong ones before memory is allocated for them.

    Both travel as one int64 word a segment, with the number of the call. The host knows its own
    sizes (encoding has waited for them), so they are sent from the CPU's memory by `peers.host`.

    Args: announced: codec and size of each segment to send.  counts: number of segments for each
        peer.  call: number of the exchange.  name: words for the exchange, for errors.
    Raises: CorruptFrameError: an impossible size, or another call.  LostPeerError: a peer is gone.
    """
    plan, call = incoming.plan, call % 2**_CALL_BITS
    sizes, codecs = announced.nbytes.numpy(), announced.codecs.numpy()
    words = torch.from_numpy(sizes | codecs << _CODEC_SHIFT | call << _CALL_SHIFT)
    received = torch.empty_like(incoming.raw_nbytes)
    begin = perf_counter()
    try:
        dist.all_to_all_single(
            received,
            words,
            output_split_sizes=list(plan.segments_per_frame),
            input_split_sizes=list(counts),
            group=peers.host,
        )
    except RuntimeError as error:
        raise peers.lost(error, f"sizes of the {name}", since=begin) from error
    traffic.header_nbytes += 8 * (sum(counts) - counts[peers.pg.rank()])
    came, raw = received.numpy(), incoming.raw_nbytes.numpy()  # faster on vectors this short
    codecs, nbytes = came >> _CODEC_SHIFT & 0xFF, came & 0xFFFFFFFF
    late = came >> _CALL_SHIFT != call
    bad = late | (nbytes > 2 * raw + 4096) | (nbytes % 8 != 0)
    if bad.any():
        s = int(bad.argmax())
        rank = peers.ranks[int(plan.frame[s])]
        if late[s]:
            raise CorruptFrameError(frame.OUT_OF_STEP, rank=rank)
        reason = f"{int(nbytes[s])} bytes of codec {int(codecs[s])} announced"
        raise CorruptFrameError(reason, rank=rank, table=plan.tables[s])
    return frame.Announced(torch.from_numpy(codecs), torch.from_numpy(nbytes))


def largest_nbytes(placed: PlacedFrames) -> list[int]:
    """Return P ints, the largest size in bytes that each frame may have.

    The limit is twice the float32 bytes of the rows, plus 4096 for the frame and for each segment.
    It is 0 for a frame without segments, which is not sent.
    """
    counts = placed.plan.segments_per_frame
    raw = frame.payload_nbytes(placed.raw_nbytes, counts)
    pairs = zip(raw, counts, strict=True)
    return [2 * n + 4096 * (1 + count) if count else 0 for n, count in pairs]
