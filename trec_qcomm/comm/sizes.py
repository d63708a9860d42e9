"""Send the sizes of frames before the frames, where codecs have no fixed size.

On a CPU one size a frame is sent. For frames in a GPU's memory, which the host does not read, a
size and a codec are sent for each segment. Both travel from the CPU's memory, over gloo. These are
the choices for a GPU:
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
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.peers import Peers
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.wire import frame

_CALL_BITS = 16
_SIZE_BITS = 47  # of a word that holds a frame's size and, above it, a call's number
# A segment's word: 32 bits of size, 8 of the codec's wire id, and the call's number.
_CODEC_SHIFT, _TABLE_BITS = 32, 40


def exchange_sizes(
    peers: Peers, nbytes: Sequence[int], call: int, incoming: PlacedFrames, name: str
) -> list[int]:
    """Return each peer's frame size; refuse a wrong one before memory is allocated for it.

    The number of the call travels in the same word, above the size. gloo ends the process at a
    message of another size than expected, so the frame of another call must be refused before.

    Args: nbytes: size of the frame for each peer.  call: number of the exchange.  name: words for
        the exchange, for errors.
    Raises: CorruptFrameError: an impossible size, or another call.  LostPeerError: a peer is gone.
    """
    words, senders = int64_tensor(nbytes), torch.arange(len(nbytes))
    received = _exchange_words(peers, peers.pg, words, call, name, senders=senders, bits=_SIZE_BITS)
    limits = largest_nbytes(incoming)
    bad = (received > limits) | (received % 8 != 0)
    if bool(bad.any()):
        p = int(bad.nonzero()[0])
        reason = f"{int(received[p])} bytes announced, at most {int(limits[p])} expected"
        raise CorruptFrameError(reason, rank=peers.ranks[p])
    return received.tolist()


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
    plan = incoming.plan
    words = announced.nbytes | announced.codecs << _CODEC_SHIFT
    splits = list(plan.segments_per_frame), list(counts)
    received = _exchange_words(
        peers, peers.host, words, call, name, senders=plan.frame, bits=_TABLE_BITS, splits=splits
    )
    traffic.header_nbytes += 8 * (sum(counts) - counts[peers.pg.rank()])
    codecs, nbytes = received >> _CODEC_SHIFT, received & 0xFFFFFFFF
    bad = (nbytes > 2 * incoming.raw_nbytes + 4096) | (nbytes % 8 != 0)
    if bool(bad.any()):
        s = int(bad.nonzero()[0])
        reason = f"{int(nbytes[s])} bytes of codec {int(codecs[s])} announced"
        rank = peers.ranks[int(plan.frame[s])]
        raise CorruptFrameError(reason, rank=rank, table=plan.tables[s])
    return frame.Announced(codecs, nbytes)


def _exchange_words(
    peers: Peers,
    group: dist.ProcessGroup | None,
    words: Tensor,
    call: int,
    name: str,
    *,
    senders: Tensor,
    bits: int,
    splits: tuple[list[int] | None, list[int] | None] = (None, None),
) -> Tensor:
    """Return the peers' words, of so many bits each. Above these the number of the call travels.

    Args: senders: [n] int64, the rank in the group that sends each word.  splits: numbers of words
        from and to each rank; None: equal ones.
    """
    call %= 2**_CALL_BITS
    received = torch.empty(len(senders), dtype=torch.int64)
    begin = perf_counter()
    try:
        dist.all_to_all_single(
            received,
            words | call << bits,
            output_split_sizes=splits[0],
            input_split_sizes=splits[1],
            group=group,
        )
    except RuntimeError as error:
        raise peers.lost(error, f"sizes of the {name}", since=begin) from error
    late = senders[received >> bits != call]
    if len(late):
        raise CorruptFrameError(frame.OUT_OF_STEP, rank=peers.ranks[int(late[0])])
    return received & (1 << bits) - 1


def largest_nbytes(placed: PlacedFrames) -> Tensor:
    """Return [P] int64, the largest size in bytes that each frame may have.

    The limit is twice the float32 bytes of the rows, plus 4096 for the frame and for each segment.
    It is 0 for a frame without segments, which is not sent.
    """
    counts = list(placed.plan.segments_per_frame)
    limits = []
    for raw, count in zip(torch.split(placed.raw_nbytes, counts), counts, strict=True):
        limits.append(2 * int(raw.numpy().sum()) + 4096 * (1 + count) if count else 0)
    return int64_tensor(limits)
