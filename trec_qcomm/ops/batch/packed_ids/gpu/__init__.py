"""Packed ids in Triton. Same bytes as reference.py.

Encoding: measure blocks of bags and ids; choose the parameters of each segment; find sizes and
places; wait for the sizes; write blocks of bags and ids.
Decoding: read the heads; wait for the numbers of bags, ids and bytes of high parts; read blocks of
lengths, and add up blocks of gaps and of ones; find the ones of high parts; read blocks of ids;
wait for what is wrong with the bytes.
A block is up to 1024 items of one segment, and has a program. What it must know of earlier blocks
are their sums. `plan` has a program a segment, which visits its blocks. Programs that lay out or
read heads take a message, because a head begins where the head before it ends.
Shapes: P messages, S segments in all, B bags, N ids, W bytes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum, int64_tensor
from trec_qcomm.ops.batch.packed_ids.gpu import columns
from trec_qcomm.ops.batch.packed_ids.gpu.plan import lay_out, measure, plan
from trec_qcomm.ops.batch.packed_ids.gpu.read import (
    BAD_DTYPE,
    REASONS,
    find_ones,
    read,
    read_blocks,
    read_heads,
)
from trec_qcomm.ops.batch.packed_ids.gpu.write import write
from trec_qcomm.ops.batch.packed_ids.reference import MAX_RUNS
from trec_qcomm.ops.device import download, launch, no_segment, upload, words

_BLOCK = 1024  # ids, lengths or bytes of a block
_WARPS = 2  # each works out anew what the lanes of a block have in common
_BLOCKS = 128  # blocks of a segment whose sums a program adds up at once
_SEGMENTS = 128  # segments of a message that a program lays out at once


def encode(
    ids: Tensor,
    lengths: Tensor,
    num_bags: Tensor,
    counts: Sequence[int],
    *,
    states_bags: bool,
    room: int,
    alignment: int,
) -> tuple[Tensor, Tensor, Tensor, bool, int]:
    """Encode the bags of P messages. The arguments are those of `packed_ids.encode`.

    Returns: the payload on the device; [P] sizes and [S] numbers of ids on CPU; whether a length
        is negative or above N; and the sum of all lengths.
    """
    device, per_message, num_segments = ids.device, int64_tensor(counts), len(num_bags)
    message_of = torch.repeat_interleave(torch.arange(len(counts)), per_message)
    first_bag, first_segment, message_of = upload(
        device, exclusive_cumsum(num_bags), exclusive_cumsum(per_message), message_of
    )
    num_columns, num_messages = columns.NUM_COLUMNS.value, len(counts)
    parts = [num_segments * num_columns, num_messages, 1, len(lengths) + 1]
    zeros = torch.zeros(sum(parts), dtype=torch.int64, device=device)
    plans, nbytes, wrong, ends = zeros.split(parts)
    plans = plans.view(num_segments, num_columns)
    torch.cumsum(lengths, 0, dtype=torch.int64, out=ends[1:])
    first_id = ends[first_bag].clamp_(0, len(ids))
    batch = ids, lengths, first_bag, first_id
    starts, runs = torch.empty(3 * num_segments * MAX_RUNS, dtype=torch.int64, device=device).split(
        [num_segments * MAX_RUNS, 2 * num_segments * MAX_RUNS]
    )
    blocks = _num_blocks(len(lengths), num_segments) + _num_blocks(len(ids), num_segments)
    measures = torch.empty(blocks, columns.NUM_MEASURES.value, dtype=torch.int64, device=device)
    sizes, head_at = torch.empty(3 * num_segments, dtype=torch.int64, device=device).split(
        [2 * num_segments, num_segments]
    )
    launch(
        measure, blocks, *batch, plans, starts, measures, num_segments, len(lengths),
        BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip
    launch(
        plan, num_segments, *batch, plans, starts, runs, measures, sizes, num_segments,
        len(lengths), len(ids), STATES_BAGS=states_bags, BLOCK=_BLOCK, BLOCKS=_BLOCKS,
        num_warps=1,
    )  # fmt: skip
    launch(
        lay_out, len(counts), plans, sizes, first_segment, nbytes, head_at, wrong, num_segments,
        room, alignment, BLOCK=_SEGMENTS,
    )  # fmt: skip
    num_ids = plans[:, columns.IDS.value]
    host = download(torch.cat([nbytes, num_ids, wrong, ends[-1:]]))
    on_host, ids_on_host, rest = host.split([num_messages, num_segments, 2])
    total = int(rest[1])
    if int(rest[0]) or total != len(ids):
        return ids.new_empty(0, dtype=torch.uint8), on_host, ids_on_host, bool(rest[0]), total
    payload = torch.zeros(int(on_host.sum()), dtype=torch.uint8, device=device)
    launch(
        write, blocks, *batch, plans, runs, measures, head_at, message_of, nbytes.cumsum(0), nbytes,
        words(payload, torch.int32), num_segments, len(lengths), STATES_BAGS=states_bags,
        BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip
    return payload, on_host, ids_on_host, False, total


def decode(
    payload: Tensor,
    begins: Tensor,
    ends: Tensor,
    num_bags: Tensor | None,
    *,
    num_segments: int,
    dtypes: tuple[torch.dtype, torch.dtype],
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Decode P messages of `num_segments` segments each. Arguments as in `packed_ids.decode`.

    Returns: ids and lengths on the device; [2, S] numbers of bags and ids on CPU; and -1, or 16
        times the first bad segment plus the kind of error.
    """
    device, total = payload.device, len(begins) * num_segments
    states_bags = num_bags is None
    given = torch.zeros(0, dtype=torch.int64) if num_bags is None else num_bags
    begins, ends, given = upload(device, begins, ends, given)
    plans = torch.zeros(total, columns.NUM_COLUMNS.value, dtype=torch.int64, device=device)
    heads_end, flag = torch.empty_like(begins), no_segment(device)
    launch(
        read_heads, len(begins), payload, begins, ends, given, plans, heads_end, flag, num_segments,
        STATES=states_bags, num_warps=1,
    )  # fmt: skip
    sizes_of = (columns.BAGS, columns.IDS, columns.UNARY_NBYTES)
    host = download(torch.cat([*(plans[:, c.value] for c in sizes_of), flag.to(torch.int64)]))
    counts, bad = host[:-1].view(3, total), int(host[-1])
    none = torch.empty(0, dtype=torch.int64, device=device)
    if bad >= 0:
        return none, none, counts[:2], bad
    num_bags, num_ids, num_bytes = counts.sum(1).tolist()
    lengths, ids = (
        torch.empty(size, dtype=dtype, device=device)
        for size, dtype in ((num_bags, dtypes[1]), (num_ids, dtypes[0]))
    )
    first_bag, first_id, first_byte = upload(device, *map(exclusive_cumsum, counts))
    blocks = [_num_blocks(size, total) for size in (num_bags, num_ids, num_bytes)]
    gap_sums, one_sums, ones = (
        torch.empty(size, dtype=torch.int64, device=device) for size in (*blocks[1:], num_ids)
    )
    all_words = words(payload, torch.int64)
    launch(
        read_blocks, sum(blocks), payload, all_words, ends, plans, heads_end, first_bag, first_id,
        first_byte, gap_sums, one_sums, lengths, flag, total, num_segments, len(all_words),
        *blocks[:2], BLOCK=_BLOCK,
    )  # fmt: skip
    launch(
        find_ones, blocks[2], payload, plans, heads_end, first_id, first_byte, one_sums, ones,
        flag, total, num_segments, BLOCK=_BLOCK, BLOCKS=_BLOCKS,
    )  # fmt: skip
    launch(
        read, blocks[1], all_words, plans, heads_end, first_id, gap_sums, ones, ids, flag, total,
        num_segments, len(all_words), BLOCK=_BLOCK, BLOCKS=_BLOCKS, num_warps=_WARPS,
    )  # fmt: skip
    return ids, lengths, counts[:2], int(download(flag))


def _num_blocks(num_items: int, num_segments: int) -> int:
    """Return the number of programs that have all blocks, see `numbers.block_of`."""
    return num_items // _BLOCK + num_segments


__all__ = ["BAD_DTYPE", "REASONS", "decode", "encode"]
