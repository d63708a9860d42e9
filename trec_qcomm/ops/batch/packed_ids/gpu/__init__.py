"""Packed ids in Triton. Same bytes as reference.py.

Encoding has five parts: choose the parameters of each segment, find sizes and places, wait for the
sizes, find the ones of high parts, and write.
Decoding has five, too: read the heads, wait for the numbers of bags and ids, find the ones of high
parts, read, and wait for what is wrong with the bytes.
Most programs take a segment. Programs that lay out or read heads take a message, because a head
begins where the head before it ends.
Shapes: P messages, S segments in all, B bags, N ids, W bytes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum, int64_tensor
from trec_qcomm.ops.batch.packed_ids.gpu import columns
from trec_qcomm.ops.batch.packed_ids.gpu.plan import lay_out, plan
from trec_qcomm.ops.batch.packed_ids.gpu.read import BAD_DTYPE, REASONS, find_ones, read, read_heads
from trec_qcomm.ops.batch.packed_ids.gpu.write import place_ones, write
from trec_qcomm.ops.batch.packed_ids.reference import MAX_RUNS
from trec_qcomm.ops.device import download, launch, no_segment, upload, words

_BLOCK = 1024  # ids, lengths or bytes that a program takes at once
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
    ends = lengths.cumsum(0, dtype=torch.int64)
    bags = ids, lengths, ends, first_bag
    plans = torch.zeros(num_segments, columns.NUM_COLUMNS.value, dtype=torch.int64, device=device)
    runs = torch.empty(num_segments, 2 * MAX_RUNS, dtype=torch.int64, device=device)
    sizes, head_at = torch.empty(3 * num_segments, dtype=torch.int64, device=device).split(
        [2 * num_segments, num_segments]
    )
    zeros = torch.zeros(len(counts) + 1, dtype=torch.int64, device=device)
    nbytes, wrong = zeros[:-1], zeros[-1:]
    launch(
        plan, num_segments, *bags, plans, runs, sizes, num_segments, len(ids), BLOCK=_BLOCK,
        STATES_BAGS=states_bags,
    )  # fmt: skip
    launch(
        lay_out, len(counts), plans, sizes, first_segment, nbytes, head_at, wrong, num_segments,
        room, alignment, BLOCK=_SEGMENTS,
    )  # fmt: skip
    num_ids = plans[:, columns.IDS.value]
    host = download(torch.cat([nbytes, num_ids, wrong, ends[-1:]]))
    on_host, ids_on_host, rest = host.tensor_split([len(counts), len(counts) + num_segments])
    total = int(rest[1]) if len(rest) > 1 else 0
    if int(rest[0]) or total != len(ids):
        return ids.new_empty(0, dtype=torch.uint8), on_host, ids_on_host, bool(rest[0]), total
    payload = torch.zeros(int(on_host.sum()), dtype=torch.uint8, device=device)
    ones = torch.empty(len(ids), dtype=torch.int64, device=device)
    launch(
        place_ones, num_segments, ids, ends, first_bag, plans, ones, len(ids), BLOCK=_BLOCK
    )  # fmt: skip
    launch(
        write, num_segments, *bags, plans, runs, ones, head_at, message_of, nbytes.cumsum(0),
        nbytes, payload, len(ids), BLOCK=_BLOCK, STATES_BAGS=states_bags,
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
        STATES=states_bags,
    )  # fmt: skip
    counts = plans[:, columns.BAGS.value], plans[:, columns.IDS.value]
    host = download(torch.cat([*counts, flag.to(torch.int64)]))
    bags_and_ids, bad = host[:-1].view(2, total), int(host[-1])
    none = torch.empty(0, dtype=torch.int64, device=device)
    if bad >= 0:
        return none, none, bags_and_ids, bad
    sizes = bags_and_ids.sum(1).tolist()
    lengths, ids = (
        torch.empty(size, dtype=dtype, device=device)
        for size, dtype in zip(sizes, reversed(dtypes), strict=True)
    )
    firsts = upload(device, *(exclusive_cumsum(vector)[:-1] for vector in bags_and_ids))
    ones = torch.empty(len(ids), dtype=torch.int64, device=device)
    launch(
        find_ones, total, payload, plans, heads_end, firsts[1], ones, flag, num_segments,
        BLOCK=_BLOCK,
    )  # fmt: skip
    all_words = words(payload, torch.int64)
    launch(
        read, total, payload, all_words, begins, ends, plans, heads_end, *firsts, ones, lengths,
        ids, flag, num_segments, len(all_words), BLOCK=_BLOCK,
    )  # fmt: skip
    return ids, lengths, bags_and_ids, int(download(flag))


__all__ = ["BAD_DTYPE", "REASONS", "decode", "encode"]
