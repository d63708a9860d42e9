"""All-reduce of table gradients whose rows are mostly zero: only touched rows are sent.

A rank touched a row if its gradient of the row has a value other than zero. Ranks first tell one
another which rows they touched, one bit a row. Rows that at least one rank touched, the union, are
packed and all-reduced like a dense bucket. All other rows are zero everywhere and stay so. On a GPU
the host waits once, for the number of rows in the union.

Knows: rows, reductions. Does not know: DDP, codecs.
Shapes: R rows of all tables of a bucket, E values; N ranks.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trec_qcomm.comm.dense.all_reduce import Reduction, ring_nbytes
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.rounds import Round, Rounds
from trec_qcomm.core.segments import ALIGNMENT, exclusive_cumsum
from trec_qcomm.ops.batch.rows import add, choose, take
from trec_qcomm.wire import frame


def all_reduce_touched(
    reduction: Reduction, tables: Sequence[ParameterShape], bucket: Tensor, *, is_last: bool = True
) -> Rounds:
    """Yield the rounds in which `bucket` becomes the mean over ranks, as Reduction.start does.

    Args:
        reduction: the all-reduce of the packed rows.
        tables: shapes of the tables' gradients, in the bucket's order; a block is a row.
        bucket: [E] float32, contiguous.
        is_last: whether this is the last bucket of its step.
    """
    dim = torch.tensor([table.block for table in tables], dtype=torch.int64)
    numel = torch.tensor([table.numel for table in tables], dtype=torch.int64)
    num_rows = numel // dim
    parts = torch.split(bucket, numel.tolist())
    touched = [(p.view(-1, t.block) != 0).any(1) for p, t in zip(parts, tables, strict=True)]
    chosen = torch.cat(touched)
    bits = _packed(chosen)
    peers = [p for p in range(reduction.world_size) if p != reduction.rank]
    sizes = [len(bits)] * len(peers)
    received = yield Round([(p, bits) for p in peers], peers, sizes, sizes)
    for other in received.messages():
        bits = bits | other
    chosen = _unpacked(bits, len(chosen))
    first, start = exclusive_cumsum(num_rows)[:-1], exclusive_cumsum(numel)[:-1]
    rows = choose(chosen, first, num_rows, start, dim, dim)
    values = bucket.new_empty(rows.num_values)
    take(bucket, rows, values)
    counts = rows.counts.tolist()
    compact = [
        ParameterShape(t.name, n * t.block, t.block) for t, n in zip(tables, counts, strict=True)
    ]
    yield from reduction.start(compact, values, once=True, is_last=is_last)
    add(values, rows, bucket.zero_())
    left_out = ring_nbytes(len(bucket) - len(values), reduction.world_size)
    reduction.traffic.raw_nbytes += left_out
    reduction.traffic.header_nbytes += len(bits) * len(peers)


def _packed(chosen: Tensor) -> Tensor:
    """Return [R] bool as bits in uint8, the first row in the lowest bit, padded as frames are."""
    if frame.is_on_gpu(chosen):
        rows = F.pad(chosen, (0, -len(chosen) % (8 * frame.alignment_of(chosen)))).view(-1, 8)
        return (rows.to(torch.uint8) << _bit_numbers(chosen)).sum(1, dtype=torch.uint8)
    packed = np.packbits(chosen.numpy(), bitorder="little")
    return torch.from_numpy(np.pad(packed, (0, -len(packed) % ALIGNMENT)))


def _unpacked(bits: Tensor, num_rows: int) -> Tensor:
    if frame.is_on_gpu(bits):
        unpacked: Tensor = (bits[:, None] >> _bit_numbers(bits)) & 1
        return unpacked.view(-1)[:num_rows] != 0
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=num_rows, bitorder="little") != 0)


def _bit_numbers(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
