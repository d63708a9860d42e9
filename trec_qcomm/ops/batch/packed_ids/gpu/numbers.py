"""Numbers in Triton: varints, bit lengths, words of ids, blocks of segments."""

# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.batch.packed_ids import reference

OFFSETS, GAPS = tl.constexpr(reference.OFFSETS), tl.constexpr(reference.GAPS)
STEPS, UNARY = tl.constexpr(reference.STEPS), tl.constexpr(reference.UNARY)
MAX_RUNS = tl.constexpr(reference.MAX_RUNS)
MAX_UNARY_BITS = tl.constexpr(reference.MAX_UNARY_BITS)
MAX_LENGTH_BITS = tl.constexpr(reference.MAX_LENGTH_BITS)
_SEGMENTS = tl.constexpr(128)  # segments among which that of a block is looked for at once


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
def put_byte(out, at, byte):
    """Write a byte where zeros are. out: pointer to int32, in whose words others write, too."""
    shift = (8 * (at & 3)).to(tl.int32)
    tl.atomic_or(out + (at >> 2), byte.to(tl.int32) << shift, sem="relaxed")


@triton.jit
def put_varint(out, at, number):
    """Write a uint64 as a varint. Return its end."""
    number = number.to(tl.uint64)
    while number >= 128:
        put_byte(out, at, (number & 127) | 128)
        number = number >> 7
        at += 1
    put_byte(out, at, number)
    return at + 1


@triton.jit
def block_of(number, firsts, num_segments, BLOCK: tl.constexpr):
    """Return (segment, where the block begins in it) of the block with this number, int64.

    The blocks of segment s begin with number firsts[s] // BLOCK + s. So firsts[S] // BLOCK + S
    programs have all blocks, and at most one program a segment has none: its block begins behind
    the segment.

    Args: firsts: [S + 1] int64, where the items of segments begin.
    """
    segment, tile = tl.cast(-1, tl.int64), tl.cast(0, tl.int64)
    while tile < num_segments:
        s = tile + tl.arange(0, _SEGMENTS)
        first = tl.load(firsts + s, mask=s < num_segments, other=0)
        begins = (s < num_segments) & (first // BLOCK + s <= number)
        segment += tl.sum(begins.to(tl.int32), 0)
        tile += _SEGMENTS
    return segment, (number - first_block(firsts, segment, BLOCK)) * BLOCK


@triton.jit
def first_block(firsts, segment, BLOCK: tl.constexpr):
    """Return the number of a segment's first block, see `block_of`."""
    return tl.load(firsts + segment) // BLOCK + segment


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
