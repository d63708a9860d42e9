"""Stock's average: whole tensors become their mean over replicas, as DMPCollection has it.

Knows: process groups, tensors. Does not know: rows, codecs.
Numerics: on a GPU NCCL's AVG. gloo has no AVG: its SUM, divided by N.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.peers import Peers

_ODD = 0x1E3779B97F4A7C15
_CHUNK = 1 << 20


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

    Memory: that of a chunk of 2^20 values, whatever the tables have.

    Args: tables: float32, contiguous.
    """
    return [f"{sum(map(int, _sums(table.reshape(-1)))) % 2**64:x}" for table in tables]


def _sums(values: Tensor) -> Iterator[Tensor]:
    """Yield the sum of each chunk of values, modulo 2^64."""
    for begin in range(0, len(values), _CHUNK):
        bits = values[begin : begin + _CHUNK].view(torch.int32).to(torch.int64)
        numbers = torch.arange(begin, begin + len(bits), device=bits.device)
        yield ((bits + 1) * numbers.mul_(_ODD).add_(1)).sum()
