"""Stock's average: whole tensors become their mean over replicas, as DMPCollection has it.

Knows: process groups, tensors. Does not know: rows, codecs.
Numerics: on a GPU NCCL's AVG. gloo has no AVG: its SUM, divided by N.
"""

from collections.abc import Sequence
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.peers import Peers

_ODD = 0x1E3779B97F4A7C15


def average_whole(peers: Peers, tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over replicas. Collective.

    Args: tensors: tensors of one dtype in one memory.
    Raises: LostPeerError.
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
    """Return a digest of each table's bits. Waits for a GPU.

    Args: tables: float32, contiguous.
    """
    sums = []
    for table in tables:
        bits = table.reshape(-1).view(torch.int32).to(torch.int64)
        numbers = torch.arange(len(bits), device=bits.device)
        sums.append(((bits + 1) * (numbers * _ODD + 1)).sum())  # modulo 2^64
    return [f"{int(total):x}" for total in sums]
