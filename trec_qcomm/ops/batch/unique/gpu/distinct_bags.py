"""Distinct bags of a batch, in Triton.

`unique_bags`: each group has an open-addressing hash table in device memory, with two or more slots
a bag. A bag takes a slot, and all equal bags share it. The slot ends up with the least of their
numbers, in whatever order programs run. This tells which bags are first occurrences. Counting first
occurrences tile by tile numbers the distinct bags. There are five launches over all groups, with
some of torch's own between them. The host waits once, for the sizes. `take_bags` is one launch.
"""
# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.ops.device import download, launch, new_vectors, segment_of, upload

_BAGS = 128  # bags of a tile, which one warp takes: four would each work out where the tile is
_GROUPS = 128  # groups that one program decides about
_REGISTERS = 128  # that a thread of _insert may use; told no number, the compiler spills
_EMPTY = tl.constexpr(-1)
_MIX = tl.constexpr(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: multiplicative hashing


def unique_bags(
    values: Tensor, lengths: Tensor, num_bags: Tensor, max_share: Tensor, weight_bits: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, bool]:
    """Find the distinct bags. The arguments are those of reference.py.

    Returns: the four fields of UniqueBags, the sum of all lengths, and whether a length is
        negative.
    """
    device, num_groups = values.device, len(num_bags)
    tiles = exclusive_cumsum(-(-num_bags // _BAGS))
    first, inverse, rank = new_vectors(3, len(lengths), dtype=torch.int64, device=device)
    if not len(lengths):
        return first, torch.zeros_like(num_bags), inverse, torch.zeros_like(num_bags), 0, False
    looked = (max_share > 0) & (num_bags > 0)
    bits = torch.where(looked, torch.frexp((2 * num_bags - 1).double())[1], 0).to(torch.int64)
    slots = torch.where(looked, 1 << bits, 0)
    groups = upload(
        device, tiles, exclusive_cumsum(num_bags)[:-1], num_bags, exclusive_cumsum(slots)[:-1],
        bits, max_share.view(torch.int64),
    )  # fmt: skip
    table = torch.full((int(slots.sum()),), -1, dtype=torch.int32, device=device)
    ends = lengths.cumsum(0, dtype=torch.int64)
    bags = (values, weight_bits, lengths, ends, len(values))
    bag_slot = torch.empty(len(lengths), dtype=torch.int32, device=device)
    in_tile = torch.empty(int(tiles[-1]), dtype=torch.int64, device=device)
    # For each group its count; for each group its number of ids; whether a length is negative.
    totals = torch.zeros(2 * num_groups + 1, dtype=torch.int64, device=device)
    layout, programs = (*groups, num_groups), len(in_tile)
    block = {"STEPS": num_groups.bit_length(), "BLOCK": _BAGS, "num_warps": 1}
    weighted = {"WEIGHTED": len(weight_bits) > 0}
    launch(
        _insert, programs, table, bag_slot, *bags, *layout, maxnreg=_REGISTERS, **block, **weighted
    )  # fmt: skip
    bag_first = bag_slot  # _count replaces each bag's slot by its first occurrence
    launch(_count, programs, table, bag_first, lengths, in_tile, totals, *layout, **block)
    up_to = in_tile.cumsum(0)
    launch(_decide, -(-num_groups // _GROUPS), up_to, totals, *layout, BLOCK=_GROUPS)
    last = totals[:num_groups].cumsum(0)
    launch(
        _number, programs, bag_first, lengths, in_tile, up_to, totals, last, first, rank, *layout,
        **block,
    )  # fmt: skip
    launch(_invert, programs, bag_first, rank, totals, inverse, *layout, **block)
    host = download(torch.cat([totals, ends[-1:]]))
    counts, num_ids = host[:num_groups], host[num_groups : 2 * num_groups]
    return first[: int(counts.sum())], counts, inverse, num_ids, int(host[-1]), bool(host[-2])


def take_bags(
    values: Tensor, lengths: Tensor, bags: Tensor, weights: Tensor | None, num_ids: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the ids, lengths and weights of some bags.

    Args: num_ids: how many ids they have; None: the host waits for this number.
    """
    taken, ends = lengths.index_select(0, bags), lengths.cumsum(0, dtype=torch.int64)
    taken_ends = taken.cumsum(0, dtype=torch.int64)
    if num_ids is None:
        num_ids = int(download(taken_ends[-1:])) if len(bags) else 0
    ids = torch.empty(num_ids, dtype=values.dtype, device=values.device)
    picked = None if weights is None else torch.empty(num_ids, device=values.device)
    launch(
        _take, -(-len(bags) // _BAGS), values, values if weights is None else weights, bags, ends,
        taken, taken_ends, ids, ids if picked is None else picked, len(bags), len(values), num_ids,
        WEIGHTED=weights is not None, BLOCK=_BAGS, num_warps=1,
    )  # fmt: skip
    return ids, taken, picked


@triton.jit
def _bags_of_tile(first_tile, first_bag, num_bags, num_groups, STEPS, BLOCK: tl.constexpr):
    """Return the group g of this program, and for each of its bags: whether there is one, its
    number in the group, and its number among all. Where there is none, the numbers are those of the
    group's last bag."""
    tile = tl.program_id(0).to(tl.int64)
    g = segment_of(tile, first_tile, num_groups, STEPS)
    i, n = (tile - tl.load(first_tile + g)) * BLOCK + tl.arange(0, BLOCK), tl.load(num_bags + g)
    live, i = i < n, tl.minimum(i, n - 1)
    return g, live, i, tl.load(first_bag + g) + i


@triton.jit
def _place_of(b, lengths, ends, num_ids):
    """Return where the ids of bags begin, and how many each has; never beyond the ids."""
    length = tl.load(lengths + b).to(tl.int64)
    at = tl.load(ends + b) - length
    length = tl.minimum(tl.maximum(length, 0), num_ids)
    return tl.minimum(tl.maximum(at, 0), num_ids - length), length


@triton.jit
def _mixed(h, number):
    h = (h ^ number.to(tl.uint64)) * _MIX
    return h ^ (h >> 32)


@triton.jit
def _hash(values, weight_bits, at, length, WEIGHTED: tl.constexpr):
    """Return a uint64 hash of each bag, whose upper bits are as good as random."""
    h = length.to(tl.uint64) * _MIX
    k, longest = tl.cast(0, tl.int64), tl.max(length, 0)
    while k < longest:
        inside = k < length
        new = _mixed(h, tl.load(values + at + k, mask=inside, other=0))
        if WEIGHTED:
            new = _mixed(new, tl.load(weight_bits + at + k, mask=inside, other=0))
        h = tl.where(inside, new, h)
        k += 1
    return h * _MIX


@triton.jit
def _equal(values, weight_bits, at, length, other_at, other_length, asked, WEIGHTED: tl.constexpr):
    """Return which of the `asked` bags are equal to the other bags."""
    same = asked & (length == other_length)
    k = tl.cast(0, tl.int64)
    while tl.max(tl.where(same, length, 0), 0) > k:
        inside = same & (k < length)
        a = tl.load(values + at + k, mask=inside, other=0)
        same = same & (a == tl.load(values + other_at + k, mask=inside, other=0))
        if WEIGHTED:
            a = tl.load(weight_bits + at + k, mask=inside, other=0)
            same = same & (a == tl.load(weight_bits + other_at + k, mask=inside, other=0))
        k += 1
    return same


@triton.jit(do_not_specialize=["num_ids"])
def _insert(
    table, bag_slot, values, weight_bits, lengths, ends, num_ids,
    first_tile, first_bag, num_bags, first_slot, log2, share, num_groups,
    WEIGHTED: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Insert all bags into their groups' tables.

    What a lane reads of a slot may be outdated: then it is a bag equal to the one there now, or the
    attempt to take the slot fails. Lanes that take no slot run the same instructions on `bag_slot`,
    where they replace a 0 by 0.

    Args: bag_slot: int32, written: the slot of each bag in its group's table.
    """
    g, live, i, b = _bags_of_tile(first_tile, first_bag, num_bags, num_groups, STEPS, BLOCK)
    bits = tl.load(log2 + g)
    if bits > 0:
        at, length = _place_of(b, lengths, ends, num_ids)
        h = _hash(values, weight_bits, at, length, WEIGHTED)
        slot = (h >> (64 - bits).to(tl.uint64)).to(tl.int64)
        slots, number = table + tl.load(first_slot + g), i.to(tl.int32)
        pending = i >= 0
        while tl.max(pending.to(tl.int32), 0) > 0:
            seen = tl.load(slots + slot, mask=pending, other=0, cache_modifier=".cg")
            free = pending & (seen == _EMPTY)
            where = tl.where(free, slots + slot, bag_slot + b)
            before = tl.atomic_cas(
                where, tl.where(free, _EMPTY, 0), tl.where(free, number, 0), sem="relaxed"
            )
            seen = tl.where(free, before, seen)
            mine = free & (seen == _EMPTY)
            other = tl.load(first_bag + g) + tl.where(mine, number, seen)
            other_at, other_length = _place_of(other, lengths, ends, num_ids)
            asked = pending & ~mine
            equal = _equal(values, weight_bits, at, length, other_at, other_length, asked, WEIGHTED)
            tl.atomic_min(slots + slot, number, mask=equal & (number < seen), sem="relaxed")
            pending = asked & ~equal
            slot = tl.where(pending, (slot + 1) & ((1 << bits) - 1), slot)
        tl.store(bag_slot + b, slot.to(tl.int32), mask=live)


@triton.jit
def _count(
    table, bag_first, lengths, in_tile, totals,
    first_tile, first_bag, num_bags, first_slot, log2, share, num_groups,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Replace each bag's slot in `bag_first` by the first bag of the group that equals it.

    Args: in_tile: written: how many bags of each tile are first occurrences.
    """
    g, live, i, b = _bags_of_tile(first_tile, first_bag, num_bags, num_groups, STEPS, BLOCK)
    looked = live & (tl.load(log2 + g) > 0)
    slot = tl.load(bag_first + b, mask=looked, other=0)
    first = tl.load(table + tl.load(first_slot + g) + slot, mask=looked, other=0)
    first = tl.where(looked, first, i.to(tl.int32))
    tl.store(bag_first + b, first, mask=live)
    tl.store(in_tile + tl.program_id(0), tl.sum((live & (first == i)).to(tl.int64), 0))
    negative = tl.max((tl.load(lengths + b) < 0).to(tl.int32), 0) > 0
    tl.store(totals + 2 * num_groups, 1, mask=negative)


@triton.jit
def _decide(
    up_to, totals, first_tile, first_bag, num_bags, first_slot, log2, share, num_groups,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write each group's count: its distinct bags, or all its bags if too many are distinct.

    Args: up_to: running sums of in_tile.
    """
    g = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = g < num_groups
    n = tl.load(num_bags + g, mask=live, other=0)
    begin = tl.load(first_tile + g, mask=live, other=0)
    end = tl.load(first_tile + g + 1, mask=live, other=0)
    some = live & (end > begin)
    distinct = tl.load(up_to + end - 1, mask=some, other=0)
    distinct -= tl.load(up_to + begin - 1, mask=some & (begin > 0), other=0)
    most = tl.load(share + g, mask=live, other=0).to(tl.float64, bitcast=True) * n.to(tl.float64)
    tl.store(totals + g, tl.where(distinct.to(tl.float64) > most, n, distinct), mask=live)


@triton.jit
def _number(
    bag_first, lengths, in_tile, up_to, totals, last, first, rank,
    first_tile, first_bag, num_bags, first_slot, log2, share, num_groups,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write which bags are distinct, and the number of each such bag in its group; add up their
    ids. last: running sums of the counts."""
    tile = tl.program_id(0)
    g, live, i, b = _bags_of_tile(first_tile, first_bag, num_bags, num_groups, STEPS, BLOCK)
    count, begin = tl.load(totals + g), tl.load(first_tile + g)
    every = count == tl.load(num_bags + g)
    distinct = live & (every | (tl.load(bag_first + b) == i))
    flag = distinct.to(tl.int64)
    before = tl.load(up_to + tile) - tl.load(in_tile + tile)
    before -= tl.load(up_to + begin) - tl.load(in_tile + begin)
    k = tl.where(every, i, before + tl.cumsum(flag, 0) - flag)
    tl.store(first + tl.load(last + g) - count + k, b, mask=distinct)
    tl.store(rank + b, k, mask=distinct)
    num_ids = tl.sum(tl.load(lengths + b, mask=distinct, other=0).to(tl.int64), 0)
    tl.atomic_add(totals + num_groups + g, num_ids, sem="relaxed")


@triton.jit
def _invert(
    bag_first, rank, totals, inverse,
    first_tile, first_bag, num_bags, first_slot, log2, share, num_groups,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write for each bag the number of the distinct bag that it equals."""
    g, live, i, b = _bags_of_tile(first_tile, first_bag, num_bags, num_groups, STEPS, BLOCK)
    every = tl.load(totals + g) == tl.load(num_bags + g)
    first = tl.where(every, i, tl.load(bag_first + b))
    tl.store(inverse + b, tl.load(rank + tl.load(first_bag + g) + first), mask=live)


@triton.jit(do_not_specialize=["num_bags", "num_values", "num_ids"])
def _take(
    values, weights, bags, ends, taken, taken_ends, ids, picked, num_bags, num_values, num_ids,
    WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the ids, and weights, of BLOCK bags; each lane copies one bag."""
    u = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = u < num_bags
    length = tl.load(taken + u, mask=live, other=0).to(tl.int64)
    source = tl.load(ends + tl.load(bags + u, mask=live, other=0)) - length
    target = tl.load(taken_ends + u, mask=live, other=0) - length
    length = tl.minimum(length, tl.minimum(num_values - source, num_ids - target))
    k, longest = tl.cast(0, tl.int64), tl.max(length, 0)
    while k < longest:
        inside = (k < length) & (source + k >= 0) & (target + k >= 0)
        tl.store(ids + target + k, tl.load(values + source + k, mask=inside), mask=inside)
        if WEIGHTED:
            tl.store(picked + target + k, tl.load(weights + source + k, mask=inside), mask=inside)
        k += 1
