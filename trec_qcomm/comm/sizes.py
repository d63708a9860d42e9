"""Sizes of frames that travel before the frames, where codecs have no fixed size.

Knows: process groups, what a receiver expects. Does not know: which codec, autograd.
Shapes: P frames, S segments in all.
"""

from collections.abc import Sequence
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.frame_plan import PlacedFrames
from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.streams import sizes_stream
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.core.transfer import download, upload
from trec_qcomm.wire import frame

_SIZE_BITS = 47  # of a word that holds a size and, above it, the 16 bits of a call's number


def exchange_sizes(
    peers: Peers, nbytes: Sequence[int], call: int, incoming: PlacedFrames, name: str
) -> list[int]:
    """Return each peer's frame size; refuse a wrong one before memory is allocated for it.

    The number of the call travels in the same word, above the size: gloo ends the process at a
    message of another size than expected, so that a frame of another call may never be read.

    Args: nbytes: size of the frame for each peer.  call: number of the exchange.  name: words for
        the exchange, for errors.
    Raises: CorruptFrameError.  LostPeerError.
    """
    call %= 2**16
    words = int64_tensor(nbytes) | call << _SIZE_BITS
    received = torch.empty_like(words)
    begin = perf_counter()
    try:
        dist.all_to_all_single(received, words, group=peers.pg)
    except RuntimeError as error:
        raise peers.lost(error, f"sizes of the {name}", since=begin) from error
    in_step = received >> _SIZE_BITS == call
    if not bool(in_step.all()):
        p = int((~in_step).nonzero()[0])
        raise CorruptFrameError("of another call: the ranks are out of step", rank=peers.ranks[p])
    received &= 2**_SIZE_BITS - 1
    limits = largest_nbytes(incoming)
    bad = (received > limits) | (received % 8 != 0)
    if bool(bad.any()):
        p = int(bad.nonzero()[0])
        raise CorruptFrameError(
            f"{int(received[p])} bytes announced, at most {int(limits[p])} expected",
            rank=peers.ranks[p],
        )
    return received.tolist()


def exchange_tables(
    peers: Peers,
    announced: frame.Announced,
    counts: Sequence[int],
    incoming: PlacedFrames,
    device: torch.device,
    traffic: Traffic,
) -> frame.Announced:
    """Return each segment's codec and size; refuse wrong ones before memory is allocated for them.

    Both travel as one int64 word a segment. The host waits for the peers' words; no stream waits
    for the host.

    Args: announced: codec and size of each segment to send.  counts: number of segments for each
        peer.  device: where the frames lie.
    Raises: CorruptFrameError.
    """
    plan = incoming.plan
    words = announced.codecs << 32 | announced.nbytes
    with sizes_stream(device):
        (words,) = upload(device, words)
        received = torch.empty(len(plan.tables), dtype=torch.int64, device=device)
        dist.all_to_all_single(
            received,
            words,
            output_split_sizes=list(plan.segments_per_frame),
            input_split_sizes=list(counts),
            group=peers.pg,
        )
        received = download(received)
    traffic.header_nbytes += 8 * (sum(counts) - counts[peers.pg.rank()])
    codecs, nbytes = received >> 32, received & 0xFFFFFFFF
    bad = (nbytes > 2 * incoming.raw_nbytes + 4096) | (nbytes % 8 != 0) | (codecs > 255)
    if bool(bad.any()):
        s = int(bad.nonzero()[0])
        raise CorruptFrameError(
            f"{int(nbytes[s])} bytes of codec {int(codecs[s])} announced",
            rank=peers.ranks[int(plan.frame[s])],
            table=plan.tables[s],
        )
    return frame.Announced(codecs, nbytes)


def largest_nbytes(placed: PlacedFrames) -> Tensor:
    """Return [P] int64, the largest size in bytes that each frame may have.

    It is twice the float32 bytes of the rows, and 4096 for the frame and for each segment. A frame
    without segments is not sent, so it has 0.
    """
    counts = list(placed.plan.segments_per_frame)
    limits = []
    for raw, count in zip(torch.split(placed.raw_nbytes, counts), counts, strict=True):
        limits.append(2 * int(raw.numpy().sum()) + 4096 * (1 + count) if count else 0)
    return int64_tensor(limits)
