"""Bitmaps, and numbers packed in a few bits each, in Triton. Wire: FORMAT.md, "topk"."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def bits_to_bytes(flags, ROWS: tl.constexpr, BYTES: tl.constexpr):
    """[ROWS, 8 BYTES] of true and false -> [ROWS, BYTES] uint8, lowest bits first."""
    grouped = tl.reshape(flags.to(tl.int32), (ROWS, BYTES, 8))
    return tl.sum(grouped << tl.arange(0, 8)[None, None, :], 2).to(tl.uint8)


@triton.jit
def num_set(word):
    """Return how many bits are set in each int32."""
    word = word.to(tl.uint32, bitcast=True)
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def lowest_set(word):
    """Return the lowest bit that is set in each int32, alone, and its number (0 if none is set)."""
    alone = word & -word
    # The exponent field of 2^n as a float32 is n + 127.
    power = alone.to(tl.uint32, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    return alone, tl.maximum((power >> 23) - 127, 0)


@triton.jit
def mask_words(bits, begin, live, dim, WORDS: tl.constexpr):
    """Return [R, WORDS] int32, the rows' masks, 0 beyond the last column. begin: [R] int64, where
    each mask begins."""
    w = tl.arange(0, WORDS)
    word = tl.zeros_like(begin[:, None] + w[None, :]).to(tl.int32)
    for t in tl.static_range(4):
        there = live[:, None] & (w * 32 + t * 8 < dim)[None, :]
        byte = tl.load(bits + begin[:, None] + (w * 4 + t)[None, :], mask=there, other=0)
        word |= byte.to(tl.int32) << (8 * t)
    left = dim - w * 32
    columns = tl.where(left < 32, (1 << tl.minimum(tl.maximum(left, 0), 31)) - 1, -1)
    return word & columns[None, :]


@triton.jit
def store_mask_words(bits, begin, live, word, dim, WORDS: tl.constexpr):
    """Store the rows' masks: the inverse of `mask_words`."""
    w = tl.arange(0, WORDS)
    for t in tl.static_range(4):
        there = live[:, None] & (w * 32 + t * 8 < dim)[None, :]
        byte = (word >> (8 * t)).to(tl.uint8)
        tl.store(bits + begin[:, None] + (w * 4 + t)[None, :], byte, mask=there)


@triton.jit
def packed_byte(numbers, count, first, b, inside, width, NUMS, GAPS: tl.constexpr):
    """Return the bytes number first + b of `count` packed numbers.

    Args:
        numbers: pointer to the first number.
        first: int64, may be below 0.
        b: int32.
        inside: where such bytes exist.
        width: bits of a number, > 0.
        NUMS: how many numbers have bits in one byte, at most.
        GAPS: whether `numbers` are increasing places, of which the gaps before each are packed.
    """
    earlier = first * 8 // width
    bit = (first * 8 - earlier * width).to(tl.int32) + b * 8
    number = bit // width
    byte, t = tl.zeros_like(bit), 0
    while t < NUMS:
        j, shift = earlier + number + t, (number + t) * width - bit
        there = inside & (j < count) & (shift < 8)
        x = tl.load(numbers + j, mask=there, other=0).to(tl.int32)
        if GAPS:
            before = tl.load(numbers + j - 1, mask=there & (j > 0), other=-1)
            x = tl.where(there, x - before - 1, 0)
        shift = tl.minimum(shift, 8)  # a number further on has no bit in this byte
        byte |= tl.where(shift < 0, x >> tl.maximum(-shift, 0), x << tl.maximum(shift, 0))
        t += 1
    return byte & 0xFF


@triton.jit
def packed_number(payload, place, first, j, width, there, BYTES: tl.constexpr):
    """Return the packed numbers first + j, of those that begin at byte `place`; 0 where not
    `there`. The inverse of `packed_byte`.

    They are int32 up to 25 bits, int64 beyond. No byte is read that holds none of a number's bits.

    Args: first: int64.  j: int32.  BYTES: how many bytes a number's bits may lie in.
    """
    early = first * width
    bit = (early & 7).to(tl.int32) + j * width
    source, shift = payload + place + (early >> 3) + (bit >> 3), bit & 7
    word = tl.zeros_like(bit).to(tl.int32 if BYTES <= 4 else tl.int64)
    for t in tl.static_range(BYTES):
        byte = tl.load(source + t, mask=there & (8 * t < shift + width), other=0)
        word |= byte.to(word.dtype) << (8 * t)
    return (word >> shift) & ((tl.zeros_like(word) + 1 << width) - 1)
