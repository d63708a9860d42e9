"""Bitpack in numba. Same bytes as reference.py.

A group is 32 blocks of 32 values, zigzagged into `words` [1024] uint32, which stay in the first
cache. If all fit in 8 bits, they are narrowed to bytes, and 8 bytes at a time are folded as one
word in three steps; else two words at a time are shifted into place. The loops over a whole group
are the compiler's to vectorize; those over a block are too short for it.

Words of 8 bytes are stored and loaded without looking where the bytes end: the blocks of a group
that have too little room beyond them go through a small copy, `spare`.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK, GROUP = 32, 1024
MAX_WIDTH = 24
# The blocks of a group at 24 bits, and what writing or reading the last words may go beyond.
SPARE_NBYTES = GROUP * MAX_WIDTH // 8 + BLOCK * MAX_WIDTH // 8 + 8

_WIDTHS = np.arange(9, dtype=np.uint64)
_ONES = (np.uint64(1) << _WIDTHS) - np.uint64(1)
_BYTES = _ONES * np.uint64(0x0001000100010001)  # w bits at the even bytes
_PAIRS = ((np.uint64(1) << (2 * _WIDTHS)) - np.uint64(1)) * np.uint64(0x0000000100000001)
_QUADS = (np.uint64(1) << (4 * _WIDTHS)) - np.uint64(1)
_LOW_HALF = np.uint64(0xFFFFFFFF)

# Takes arrays and makes none: counting references to them, which this option of numba's leaves
# out, would cost as much as the work.
_kernel = njit(nogil=True, cache=True, _nrt=False)


@intrinsic
def store_word(typing, data, at, word):
    """data[at : at + 8] = word (uint64, little-endian), at any alignment and unchecked."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = cgutils.pointer_add(builder, array.data, args[1], ir.IntType(64).as_pointer())
        builder.store(args[2], place, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), codegen


@intrinsic
def load_word(typing, data, at):
    """The uint64 of data[at : at + 8], at any alignment and unchecked."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = cgutils.pointer_add(builder, array.data, args[1], ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(data, types.int64), codegen


@intrinsic
def _leading_zeros(typing, word):
    """Of a uint64; 64 for 0."""

    def codegen(context, builder, signature, args):
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@_kernel
def _bit_length(word):
    """Bits up to the highest 1 of a uint64; 0 for 0."""
    return np.int64(64) - _leading_zeros(word)


@_kernel
def _fold(narrow, first, width, out, at):
    """Pack the 32 bytes at narrow[first:], each of <= 8 bits."""
    w = np.uint64(width)
    low1, low2, low4 = _BYTES[w], _PAIRS[w], _QUADS[w]
    high1, high2, high4 = low1 << w, low2 << np.uint64(2 * w), low4 << np.uint64(4 * w)
    s1, s2, s4 = np.uint64(8 - w), np.uint64(16 - 2 * w), np.uint64(32 - 4 * w)
    a, b = load_word(narrow, first), load_word(narrow, first + 8)
    c, d = load_word(narrow, first + 16), load_word(narrow, first + 24)
    a, b = (a & low1) | ((a >> s1) & high1), (b & low1) | ((b >> s1) & high1)
    c, d = (c & low1) | ((c >> s1) & high1), (d & low1) | ((d >> s1) & high1)
    a, b = (a & low2) | ((a >> s2) & high2), (b & low2) | ((b >> s2) & high2)
    c, d = (c & low2) | ((c >> s2) & high2), (d & low2) | ((d >> s2) & high2)
    a, b = (a & low4) | ((a >> s4) & high4), (b & low4) | ((b >> s4) & high4)
    c, d = (c & low4) | ((c >> s4) & high4), (d & low4) | ((d >> s4) & high4)
    store_word(out, at, a)
    store_word(out, at + width, b)
    store_word(out, at + width * 2, c)
    store_word(out, at + width * 3, d)


@_kernel
def _unfold(data, at, width, narrow, first):
    """The inverse of `_fold`."""
    w = np.uint64(width)
    low1, low2, low4 = _BYTES[w], _PAIRS[w], _QUADS[w]
    high1, high2, high4 = low1 << np.uint64(8), low2 << np.uint64(16), low4 << np.uint64(32)
    s1, s2, s4 = np.uint64(8 - w), np.uint64(16 - 2 * w), np.uint64(32 - 4 * w)
    a, b = load_word(data, at), load_word(data, at + width)
    c, d = load_word(data, at + width * 2), load_word(data, at + width * 3)
    a, b = (a & low4) | ((a << s4) & high4), (b & low4) | ((b << s4) & high4)
    c, d = (c & low4) | ((c << s4) & high4), (d & low4) | ((d << s4) & high4)
    a, b = (a & low2) | ((a << s2) & high2), (b & low2) | ((b << s2) & high2)
    c, d = (c & low2) | ((c << s2) & high2), (d & low2) | ((d << s2) & high2)
    a, b = (a & low1) | ((a << s1) & high1), (b & low1) | ((b << s1) & high1)
    c, d = (c & low1) | ((c << s1) & high1), (d & low1) | ((d << s1) & high1)
    store_word(narrow, first, a)
    store_word(narrow, first + 8, b)
    store_word(narrow, first + 16, c)
    store_word(narrow, first + 24, d)


@_kernel
def _shift_in(words, first, width, out, at):
    """Pack words[first : first + 32] of <= 24 bits, two at a time."""
    w = np.uint64(width)
    carry, held = np.uint64(0), np.uint64(0)
    for k in range(BLOCK // 2):
        two = load_word(words, 4 * first + 8 * k)
        two = (two & _LOW_HALF) | ((two >> np.uint64(32)) << w)
        carry |= two << held
        store_word(out, at, carry)
        held += np.uint64(2 * w)
        at += np.int64(held >> np.uint64(3))
        carry >>= held & np.uint64(56)
        held &= np.uint64(7)


@_kernel
def _shift_out(data, at, width, words, first):
    """The inverse of `_shift_in`."""
    w = np.uint64(width)
    mask = (np.uint64(1) << w) - np.uint64(1)
    for k in range(BLOCK // 2):
        bit = 2 * k * width
        two = load_word(data, at + (bit >> 3)) >> np.uint64(bit & 7)
        two = (two & mask) | (((two >> w) & mask) << np.uint64(32))
        store_word(words, 4 * first + 8 * k, two)


@_kernel
def _narrow_widths(narrow, num_blocks, widths):
    """widths [32] = bits of the largest byte of each block."""
    for b in range(num_blocks):
        at = BLOCK * b
        top = load_word(narrow, at) | load_word(narrow, at + 8)
        top |= load_word(narrow, at + 16) | load_word(narrow, at + 24)
        top |= top >> np.uint64(32)
        top |= top >> np.uint64(16)
        widths[b] = _bit_length((top | (top >> np.uint64(8))) & np.uint64(255))


@_kernel
def _wide_widths(words, num_blocks, widths):
    """widths [32] = bits of the largest word of each block."""
    for b in range(num_blocks):
        at, top = 4 * BLOCK * b, np.uint64(0)
        for k in range(0, 4 * BLOCK, 32):
            top |= load_word(words, at + k) | load_word(words, at + k + 8)
            top |= load_word(words, at + k + 16) | load_word(words, at + k + 24)
        widths[b] = _bit_length((top | (top >> np.uint64(32))) & _LOW_HALF)


@_kernel
def _blocks_nbytes(widths, n):
    """Bytes of the blocks of a group of n values."""
    total, full = np.int64(0), n // BLOCK
    for b in range(full):
        total += widths[b]
    total *= BLOCK // 8
    if n % BLOCK:
        total += (widths[full] * (n % BLOCK) + 7) // 8
    return total


@_kernel
def _write_widths(widths, num_blocks, least, bits, out, at):
    """A group's header and codes."""
    out[at] = least | (bits << 5)
    at += 1
    codes, held = np.int64(0), np.int64(0)
    for b in range(num_blocks):
        codes |= (widths[b] - least) << held
        held += bits
        if held >= 8:
            out[at] = codes & 255
            at, codes, held = at + 1, codes >> 8, held - 8
    if held:
        out[at] = codes


@_kernel
def _read_widths(data, at, end, num_blocks, widths):
    """Returns (the end of header and codes, the largest width); (-1, 0) where they are invalid."""
    if at >= end:
        return np.int64(-1), np.int64(0)
    least, bits = np.int64(data[at] & 31), np.int64(data[at] >> 5)
    at += 1
    codes_end = at + (num_blocks * bits + 7) // 8
    if bits > 5 or codes_end > end:
        return np.int64(-1), np.int64(0)
    mask, most, codes, held = (1 << bits) - 1, np.int64(0), np.int64(0), np.int64(0)
    for b in range(num_blocks):
        if held < bits:
            codes |= np.int64(data[at]) << held
            at, held = at + 1, held + 8
        widths[b] = least + (codes & mask)
        codes, held = codes >> bits, held - bits
        most = max(most, widths[b])
    if most > MAX_WIDTH:
        return np.int64(-1), np.int64(0)
    return codes_end, most


@_kernel
def _pack_blocks(words, narrow, is_narrow, n, widths, out, at):
    """Write the blocks of a group at out[at:], and zeros beyond: up to a block and 8 bytes."""
    for b in range((n + BLOCK - 1) // BLOCK):
        if is_narrow:
            _fold(narrow, b * BLOCK, widths[b], out, at)
        else:
            _shift_in(words, b * BLOCK, widths[b], out, at)
        at += widths[b] * (BLOCK // 8)


@_kernel
def _unpack_blocks(data, at, is_narrow, n, widths, words, narrow):
    """The inverse, which may read as much beyond."""
    for b in range((n + BLOCK - 1) // BLOCK):
        if is_narrow:
            _unfold(data, at, widths[b], narrow, b * BLOCK)
        else:
            _shift_out(data, at, widths[b], words, b * BLOCK)
        at += widths[b] * (BLOCK // 8)


@_kernel
def pack_group(words, top, n, out, at, end, narrow, widths, spare):
    """Write one group at out[at:end]. Returns its end, or -1 where it does not fit.

    words: [1024] uint32, n zigzagged values and zeros.  top: all of them or-ed.
    narrow: [1024] uint8, widths: [32] int64, spare: [SPARE_NBYTES] uint8 are scratch.
    """
    num_blocks, is_narrow = (n + BLOCK - 1) // BLOCK, top < 256
    if is_narrow:
        for k in range(GROUP):
            narrow[k] = np.uint8(words[k])
        _narrow_widths(narrow, num_blocks, widths)
    else:
        _wide_widths(words, num_blocks, widths)
    least, most = np.int64(MAX_WIDTH), np.int64(0)
    for b in range(num_blocks):
        least, most = min(least, widths[b]), max(most, widths[b])
    bits, nbytes = _bit_length(np.uint64(most - least)), _blocks_nbytes(widths, n)
    blocks_at = at + 1 + (num_blocks * bits + 7) // 8
    if blocks_at + nbytes > end:
        return np.int64(-1)
    _write_widths(widths, num_blocks, least, bits, out, at)
    if most > 0:
        room = nbytes + BLOCK * MAX_WIDTH // 8 + 8
        if blocks_at + room <= end:
            _pack_blocks(words, narrow, is_narrow, n, widths, out, blocks_at)
        else:
            _pack_blocks(words, narrow, is_narrow, n, widths, spare, np.int64(0))
            for i in range(nbytes):
                out[blocks_at + i] = spare[i]
    return blocks_at + nbytes


@_kernel
def unpack_group(data, at, end, n, words, narrow, widths, spare):
    """Read one group of n values at data[at:end]; the rest of data may be read, and is ignored.

    Returns (its end, or -1 where it is invalid; whether the zigzagged values are in `narrow`
    [1024] uint8, or else in `words` [1024] uint32; what follows the n values there is arbitrary).
    """
    at, most = _read_widths(data, at, end, (n + BLOCK - 1) // BLOCK, widths)
    is_narrow, nbytes = most <= 8, _blocks_nbytes(widths, n)
    if at < 0 or at + nbytes > end:
        return np.int64(-1), is_narrow
    if most == 0:
        for k in range(GROUP):
            narrow[k] = 0
    elif at + nbytes + BLOCK * MAX_WIDTH // 8 + 8 <= data.size:
        _unpack_blocks(data, at, is_narrow, n, widths, words, narrow)
    else:
        for i in range(nbytes):
            spare[i] = data[at + i]
        _unpack_blocks(spare, np.int64(0), is_narrow, n, widths, words, narrow)
    return at + nbytes, is_narrow


@njit(forceinline=True)
def index_of(word):
    """0, -1, 1, -2, 2 for a word (uint8 or uint32) of 0, 1, 2, 3, 4."""
    word = np.int32(word)
    return np.int32(np.int32(word >> np.int32(1)) ^ np.int32(-np.int32(word & np.int32(1))))


@_kernel
def _zigzag(q, first, n, words):
    """words [1024] = q[first : first + n], folded to 0, 1, 2, 3, 4 for 0, -1, 1, -2, 2, and zeros.

    Returns all of them or-ed.
    """
    top = np.uint32(0)
    for k in range(n):
        index = np.int32(q[np.uint64(first) + np.uint64(k)])
        word = np.uint32(np.int32(index << np.int32(1)) ^ np.int32(index >> np.int32(31)))
        words[k] = word
        top = np.uint32(top | word)
    words[n:] = 0
    return top


@_kernel
def unzigzag(words, q, first, n):
    """q[first : first + n] = the indices of words, [1024] uint8 or uint32."""
    for k in range(n):
        q[np.uint64(first) + np.uint64(k)] = index_of(words[k])


@njit(nogil=True, cache=True)
def encode_segment(q, dim, out):
    """Write the indices q [N] int32 to out; returns the number of bytes, -1 if it is too small."""
    words, narrow = np.empty(GROUP, np.uint32), np.empty(GROUP, np.uint8)
    widths, spare = np.empty(GROUP // BLOCK, np.int64), np.empty(SPARE_NBYTES, np.uint8)
    at = np.int64(0)
    for first in range(0, q.size, GROUP):
        n = min(GROUP, q.size - first)
        top = _zigzag(q, first, n, words)
        at = pack_group(words, top, n, out, at, out.size, narrow, widths, spare)
        if at < 0:
            return at
    return at


@njit(nogil=True, cache=True)
def decode_segment(data, dim, q):
    """Read the indices q [N] int32 from all of data; returns False where it is invalid."""
    words, narrow = np.empty(GROUP, np.uint32), np.empty(GROUP, np.uint8)
    widths, spare = np.empty(GROUP // BLOCK, np.int64), np.empty(SPARE_NBYTES, np.uint8)
    at = np.int64(0)
    for first in range(0, q.size, GROUP):
        n = min(GROUP, q.size - first)
        at, is_narrow = unpack_group(data, at, data.size, n, words, narrow, widths, spare)
        if at < 0:
            return False
        if is_narrow:
            unzigzag(narrow, q, first, n)
        else:
            unzigzag(words, q, first, n)
    return at == data.size
