"""Stock's average: whole tensors become their mean over replicas, as in DMPCollection.

Knows: process groups, tensors. Does not know: rows, codecs.
Numerics: on a GPU NCCL's AVG; on a CPU gloo's SUM divided by N, because gloo has no AVG.
"""

import hashlib
from collections.abc import Sequence
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.peers import Peers
from trec_qcomm.core.transfer import download

_CHUNK = 1 << 20  # values


def average_whole(peers: Peers, tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over replicas. Collective.

    Args: tensors: tensors of one dtype in one memory.
    Raises: LostPeerError: a peer is gone.
    """
    begin = perf_counter()
    try:
        if all(tensor.device.type == "cpu" for tensor in tensors):
            for tensor in tensors:
                dist.all_reduce(tensor, group=peers.pg)
                tensor.div_(peers.pg.size())
        else:
            options = dist.AllreduceCoalescedOptions()
            options.reduceOp = dist.ReduceOp(dist.ReduceOp.AVG)
            peers.pg.allreduce_coalesced(list(tensors), opts=options).wait()
    except RuntimeError as error:
        raise peers.lost(error, "sync of replicas: whole tensors", since=begin) from error


def digests(tables: Sequence[Tensor]) -> list[str]:
    """Return a digest of each table's bits. Waits for a GPU, and downloads a chunk at a time.

    Args: tables: float32, contiguous.
    """
    made = []
    for table in tables:
        digest = hashlib.blake2b(digest_size=8)
        for chunk in torch.split(table.reshape(-1), _CHUNK):
            digest.update(download(chunk).numpy().tobytes())
        made.append(digest.hexdigest())
    return made
