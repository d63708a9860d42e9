"""Numbers of a segment's head and streams in Triton: varints, bit lengths, words of ids."""

# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.batch.packed_ids import reference

OFFSETS, GAPS = tl.constexpr(reference.OFFSETS), tl.constexpr(reference.GAPS)
STEPS, UNARY = tl.constexpr(reference.STEPS), tl.constexpr(reference.UNARY)
MAX_RUNS = tl.constexpr(reference.MAX_RUNS)
MAX_UNARY_BITS = tl.constexpr(reference.MAX_UNARY_BITS)
MAX_LENGTH_BITS = tl.constexpr(reference.MAX_LENGTH_BITS)


@triton.jit
def bit_length(number):
    """Return the bits of a uint64 as int64."""
    number = number.to(tl.uint64)
    bits = tl.zeros_like(number).to(tl.int64)
    for t in tl.static_range(6):
        wide = (number >> (32 >> t)) > 0
        bits += tl.where(wide, 32 >> t, 0)
        number = tl.where(wide, number >> (32 >> t), number)
    return bits + (number > 0).to(tl.int64)


@triton.jit
def varint_nbytes(number):
    """Return the bytes of a uint64 as a varint."""
    return tl.maximum((bit_length(number) + 6) // 7, 1)


@triton.jit
def zigzag(number):
    """Return an int64 as uint64: 0, -1, 1, -2 ... as 0, 1, 2, 3 ..."""
    return ((number << 1) ^ (number >> 63)).to(tl.uint64)


@triton.jit
def mask_of(bits):
    """Return a uint64 whose `bits` lowest bits are set. bits: int64, 0..64."""
    every = tl.cast(-1, tl.int64).to(tl.uint64)
    return tl.where(bits > 0, every >> tl.minimum(64 - bits, 63).to(tl.uint64), 0)


@triton.jit
def put_varint(out, at, number):
    """Write a uint64 as a varint. Return its end."""
    number = number.to(tl.uint64)
    while number >= 128:
        tl.store(out + at, ((number & 127) | 128).to(tl.uint8))
        number = number >> 7
        at += 1
    tl.store(out + at, number.to(tl.uint8))
    return at + 1


@triton.jit
def first_id(ends, first_bag, num_ids):
    """Return where the ids of a bag begin, within 0..num_ids. ends: running sums of lengths."""
    at = tl.load(ends + tl.maximum(first_bag - 1, 0), mask=first_bag > 0, other=0)
    return tl.minimum(tl.maximum(at, 0), num_ids)


@triton.jit
def ids_of_segment(ends, first_bag, segment, num_ids):
    """Return (where the ids of a segment begin, how many there are), within the ids."""
    begin = first_id(ends, tl.load(first_bag + segment), num_ids)
    end = first_id(ends, tl.load(first_bag + segment + 1), num_ids)
    return begin, tl.maximum(end - begin, 0)


@triton.jit
def word_of(values, i, there, is_gap, base, step):
    """Return the words with index i of a segment as uint64, 0 where not `there`.

    Args: is_gap: whether a word is the step from the number before, which exists; else it is the
        distance from `base`.
    """
    number = tl.load(values + i, mask=there, other=0).to(tl.int64)
    before = tl.load(values + i - 1, mask=there & is_gap, other=0).to(tl.int64)
    before = tl.where(is_gap, before, base)
    return tl.where(there, number - before - step, 0).to(tl.uint64)
