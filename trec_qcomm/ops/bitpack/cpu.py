"""Bitpack in numba. Same bytes as reference.py.

A group is 32 blocks of 32 values, zigzagged into `words` [1024] uint32, which stay in the first
cache. If all words of a group fit in 8 bits, the group is *narrow*. Its words are copied to bytes,
and 8 bytes at a time are folded inside a 64-bit integer in three steps. Otherwise it is *wide*: two
words at a time are shifted into place. The compiler vectorizes the loops over a whole group, but
not the loops over a block, which are too short.

64-bit integers are stored and loaded without a test for the end of the bytes. If a group has too
little room after it, its blocks go through a small copy, `spare`.
"""

import numpy as np

from trec_qcomm.jit import inner, intrinsic, kernel, numba

BLOCK, GROUP = 32, 1024
MAX_WIDTH = 24
# The blocks of a group at 24 bits, plus what is written or read behind the last block.
SPARE_NBYTES = GROUP * MAX_WIDTH // 8 + BLOCK * MAX_WIDTH // 8 + 8

_WIDTHS = np.arange(9, dtype=np.uint64)
_ONES = (np.uint64(1) << _WIDTHS) - np.uint64(1)
_BYTES = _ONES * np.uint64(0x0001000100010001)  # w bits at the even bytes
_PAIRS = ((np.uint64(1) << (2 * _WIDTHS)) - np.uint64(1)) * np.uint64(0x0000000100000001)
_QUADS = (np.uint64(1) << (4 * _WIDTHS)) - np.uint64(1)
_LOW_HALF = np.uint64(0xFFFFFFFF)

# These functions make no arrays, so they need no reference counts. Without this option of numba's
# counting would cost as much as the work itself.
_inner = inner(_nrt=False)


@intrinsic
def store_uint64(typing, data, at, word):
    """Store a uint64 to data[at : at + 8], little-endian, at any alignment and unchecked."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = args[2].type.as_pointer()
        place = numba.core.cgutils.pointer_add(builder, array.data, args[1], pointer)
        builder.store(args[2], place, align=1)
        return context.get_dummy_value()

    types = numba.types
    return types.void(data, types.int64, types.uint64), codegen


@intrinsic
def load_uint64(typing, data, at):
    """Load a uint64 from data[at : at + 8], at any alignment and unchecked."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = context.get_value_type(signature.return_type).as_pointer()
        place = numba.core.cgutils.pointer_add(builder, array.data, args[1], pointer)
        return builder.load(place, align=1)

    return numba.types.uint64(data, numba.types.int64), codegen


@intrinsic
def _leading_zeros(typing, word):
    """Count the leading zeros of a uint64; 64 for 0."""

    def codegen(context, builder, signature, args):
        return builder.ctlz(args[0], numba.core.cgutils.false_bit)

    return numba.types.int64(numba.types.uint64), codegen


@_inner
def bit_length(word):
    """Return the bits up to the highest 1 of a uint64; 0 for 0."""
    return np.int64(64) - _leading_zeros(word)


@_inner
def _pack_narrow_block(narrow, first, width, out, at):
    """Pack the 32 bytes at narrow[first:], each of <= 8 bits."""
    w = np.uint64(width)
    low1, low2, low4 = _BYTES[w], _PAIRS[w], _QUADS[w]
    high1, high2, high4 = low1 << w, low2 << np.uint64(2 * w), low4 << np.uint64(4 * w)
    s1, s2, s4 = np.uint64(8 - w), np.uint64(16 - 2 * w), np.uint64(32 - 4 * w)
    a, b = load_uint64(narrow, first), load_uint64(narrow, first + 8)
    c, d = load_uint64(narrow, first + 16), load_uint64(narrow, first + 24)
    a, b = (a & low1) | ((a >> s1) & high1), (b & low1) | ((b >> s1) & high1)
    c, d = (c & low1) | ((c >> s1) & high1), (d & low1) | ((d >> s1) & high1)
    a, b = (a & low2) | ((a >> s2) & high2), (b & low2) | ((b >> s2) & high2)
    c, d = (c & low2) | ((c >> s2) & high2), (d & low2) | ((d >> s2) & high2)
    a, b = (a & low4) | ((a >> s4) & high4), (b & low4) | ((b >> s4) & high4)
    c, d = (c & low4) | ((c >> s4) & high4), (d & low4) | ((d >> s4) & high4)
    store_uint64(out, at, a)
    store_uint64(out, at + width, b)
    store_uint64(out, at + width * 2, c)
    store_uint64(out, at + width * 3, d)


@_inner
def _unpack_narrow_block(data, at, width, narrow, first):
    """Invert `_pack_narrow_block`."""
    w = np.uint64(width)
    low1, low2, low4 = _BYTES[w], _PAIRS[w], _QUADS[w]
    high1, high2, high4 = low1 << np.uint64(8), low2 << np.uint64(16), low4 << np.uint64(32)
    s1, s2, s4 = np.uint64(8 - w), np.uint64(16 - 2 * w), np.uint64(32 - 4 * w)
    a, b = load_uint64(data, at), load_uint64(data, at + width)
    c, d = load_uint64(data, at + width * 2), load_uint64(data, at + width * 3)
    a, b = (a & low4) | ((a << s4) & high4), (b & low4) | ((b << s4) & high4)
    c, d = (c & low4) | ((c << s4) & high4), (d & low4) | ((d << s4) & high4)
    a, b = (a & low2) | ((a << s2) & high2), (b & low2) | ((b << s2) & high2)
    c, d = (c & low2) | ((c << s2) & high2), (d & low2) | ((d << s2) & high2)
    a, b = (a & low1) | ((a << s1) & high1), (b & low1) | ((b << s1) & high1)
    c, d = (c & low1) | ((c << s1) & high1), (d & low1) | ((d << s1) & high1)
    store_uint64(narrow, first, a)
    store_uint64(narrow, first + 8, b)
    store_uint64(narrow, first + 16, c)
    store_uint64(narrow, first + 24, d)


@_inner
def _pack_wide_block(words, first, width, out, at):
    """Pack words[first : first + 32], each of <= 24 bits, two at a time."""
    w = np.uint64(width)
    carry, num_held = np.uint64(0), np.uint64(0)
    for k in range(BLOCK // 2):
        two = load_uint64(words, 4 * first + 8 * k)
        two = (two & _LOW_HALF) | ((two >> np.uint64(32)) << w)
        carry |= two << num_held
        store_uint64(out, at, carry)
        num_held += np.uint64(2 * w)
        at += np.int64(num_held >> np.uint64(3))
        carry >>= num_held & np.uint64(56)
        num_held &= np.uint64(7)


@_inner
def _unpack_wide_block(data, at, width, words, first):
    """Invert `_pack_wide_block`."""
    w = np.uint64(width)
    mask = (np.uint64(1) << w) - np.uint64(1)
    for k in range(BLOCK // 2):
        bit = 2 * k * width
        two = load_uint64(data, at + (bit >> 3)) >> np.uint64(bit & 7)
        two = (two & mask) | (((two >> w) & mask) << np.uint64(32))
        store_uint64(words, 4 * first + 8 * k, two)


@_inner
def _narrow_block_widths(narrow, num_blocks, widths):
    """Set widths [32] to the bits of the largest byte of each block."""
    for b in range(num_blocks):
        at = BLOCK * b
        all_bits = load_uint64(narrow, at) | load_uint64(narrow, at + 8)
        all_bits |= load_uint64(narrow, at + 16) | load_uint64(narrow, at + 24)
        all_bits |= all_bits >> np.uint64(32)
        all_bits |= all_bits >> np.uint64(16)
        widths[b] = bit_length((all_bits | (all_bits >> np.uint64(8))) & np.uint64(255))


@_inner
def _wide_block_widths(words, num_blocks, widths):
    """Set widths [32] to the bits of the largest word of each block."""
    for b in range(num_blocks):
        at, all_bits = 4 * BLOCK * b, np.uint64(0)
        for k in range(0, 4 * BLOCK, 32):
            all_bits |= load_uint64(words, at + k) | load_uint64(words, at + k + 8)
            all_bits |= load_uint64(words, at + k + 16) | load_uint64(words, at + k + 24)
        widths[b] = bit_length((all_bits | (all_bits >> np.uint64(32))) & _LOW_HALF)


@_inner
def _blocks_nbytes(widths, n):
    """Return the bytes of the blocks of a group of n values."""
    total, full = np.int64(0), n // BLOCK
    for b in range(full):
        total += widths[b]
    total *= BLOCK // 8
    if n % BLOCK:
        total += (widths[full] * (n % BLOCK) + 7) // 8
    return total


@_inner
def _write_widths(widths, num_blocks, min_width, code_bits, out, at):
    """Write a group's header and the codes of its widths."""
    out[at] = min_width | (code_bits << 5)
    at += 1
    codes, num_held = np.int64(0), np.int64(0)
    for b in range(num_blocks):
        codes |= (widths[b] - min_width) << num_held
        num_held += code_bits
        if num_held >= 8:
            out[at] = codes & 255
            at, codes, num_held = at + 1, codes >> 8, num_held - 8
    if num_held:
        out[at] = codes


@_inner
def _read_widths(data, at, end, num_blocks, widths):
    """Read a group's header and the codes of its widths.

    Returns: (the end of the codes, the largest width), or (-1, 0) where they are invalid.
    """
    if at >= end:
        return np.int64(-1), np.int64(0)
    min_width, code_bits = np.int64(data[at] & 31), np.int64(data[at] >> 5)
    at += 1
    codes_end = at + (num_blocks * code_bits + 7) // 8
    if code_bits > 5 or codes_end > end:
        return np.int64(-1), np.int64(0)
    mask, max_width, codes, num_held = (1 << code_bits) - 1, np.int64(0), np.int64(0), np.int64(0)
    for b in range(num_blocks):
        if num_held < code_bits:
            codes |= np.int64(data[at]) << num_held
            at, num_held = at + 1, num_held + 8
        widths[b] = min_width + (codes & mask)
        codes, num_held = codes >> code_bits, num_held - code_bits
        max_width = max(max_width, widths[b])
    if max_width > MAX_WIDTH:
        return np.int64(-1), np.int64(0)
    return codes_end, max_width


@_inner
def _pack_blocks(words, narrow, is_narrow, n, widths, out, at):
    """Write the blocks of a group at out[at:] and zeros behind: up to a block and 8 bytes."""
    for b in range((n + BLOCK - 1) // BLOCK):
        if is_narrow:
            _pack_narrow_block(narrow, b * BLOCK, widths[b], out, at)
        else:
            _pack_wide_block(words, b * BLOCK, widths[b], out, at)
        at += widths[b] * (BLOCK // 8)


@_inner
def _unpack_blocks(data, at, is_narrow, n, widths, words, narrow):
    """Invert `_pack_blocks`; may read up to a block and 8 bytes behind the blocks."""
    for b in range((n + BLOCK - 1) // BLOCK):
        if is_narrow:
            _unpack_narrow_block(data, at, widths[b], narrow, b * BLOCK)
        else:
            _unpack_wide_block(data, at, widths[b], words, b * BLOCK)
        at += widths[b] * (BLOCK // 8)


@_inner
def pack_group(words, all_bits, n, out, at, end, narrow, widths, spare):
    """Write one group at out[at:end]. Return its end, or -1 if it does not fit.

    Args: words: [1024] uint32, n zigzagged values, then zeros.  all_bits: all words or-ed.
          narrow: [1024] uint8, widths: [32] int64, spare: [SPARE_NBYTES] uint8, scratch.
    """
    num_blocks, is_narrow = (n + BLOCK - 1) // BLOCK, all_bits < 256
    if is_narrow:
        for k in range(GROUP):
            narrow[k] = np.uint8(words[k])
        _narrow_block_widths(narrow, num_blocks, widths)
    else:
        _wide_block_widths(words, num_blocks, widths)
    min_width, max_width = np.int64(MAX_WIDTH), np.int64(0)
    for b in range(num_blocks):
        min_width, max_width = min(min_width, widths[b]), max(max_width, widths[b])
    code_bits, nbytes = bit_length(np.uint64(max_width - min_width)), _blocks_nbytes(widths, n)
    blocks_at = at + 1 + (num_blocks * code_bits + 7) // 8
    if blocks_at + nbytes > end:
        return np.int64(-1)
    _write_widths(widths, num_blocks, min_width, code_bits, out, at)
    if max_width > 0:
        room = nbytes + BLOCK * MAX_WIDTH // 8 + 8
        if blocks_at + room <= end:
            _pack_blocks(words, narrow, is_narrow, n, widths, out, blocks_at)
        else:
            _pack_blocks(words, narrow, is_narrow, n, widths, spare, np.int64(0))
            for i in range(nbytes):
                out[blocks_at + i] = spare[i]
    return blocks_at + nbytes


@_inner
def unpack_group(data, at, end, n, words, narrow, widths, spare):
    """Read one group of n values at data[at:end]. Bytes that follow in data may be read, too.

    Args:    words: [1024] uint32, narrow: [1024] uint8, one of which is filled.
             widths: [32] int64, spare: [SPARE_NBYTES] uint8, scratch.
    Returns: (the group's end, or -1 if it is invalid; whether the zigzagged values are in `narrow`
             and not in `words`). Whatever follows the n values there is arbitrary.
    """
    at, max_width = _read_widths(data, at, end, (n + BLOCK - 1) // BLOCK, widths)
    is_narrow, nbytes = max_width <= 8, _blocks_nbytes(widths, n)
    if at < 0 or at + nbytes > end:
        return np.int64(-1), is_narrow
    if max_width == 0:
        for k in range(GROUP):
            narrow[k] = 0
    elif at + nbytes + BLOCK * MAX_WIDTH // 8 + 8 <= data.size:
        _unpack_blocks(data, at, is_narrow, n, widths, words, narrow)
    else:
        for i in range(nbytes):
            spare[i] = data[at + i]
        _unpack_blocks(spare, np.int64(0), is_narrow, n, widths, words, narrow)
    return at + nbytes, is_narrow


@inner(forceinline=True)
def index_of(word):
    """Map a word (uint8 or uint32) of 0, 1, 2, 3, 4 to the index 0, -1, 1, -2, 2."""
    word = np.int32(word)
    return np.int32(np.int32(word >> np.int32(1)) ^ np.int32(-np.int32(word & np.int32(1))))


@_inner
def _zigzag(q, first, n, words):
    """Fill words [1024] with the zigzagged q[first : first + n], then zeros.

    Returns: all words or-ed.
    """
    all_bits = np.uint32(0)
    for k in range(n):
        index = np.int32(q[np.uint64(first) + np.uint64(k)])
        word = np.uint32(np.int32(index << np.int32(1)) ^ np.int32(index >> np.int32(31)))
        words[k] = word
        all_bits = np.uint32(all_bits | word)
    words[n:] = 0
    return all_bits


@_inner
def unzigzag(words, q, first, n):
    """Set q[first : first + n] to the indices of words, [1024] uint8 or uint32."""
    for k in range(n):
        q[np.uint64(first) + np.uint64(k)] = index_of(words[k])


@_inner
def index_range(q):
    """Return the lowest and the highest index of q [N] int32; N > 0."""
    low, high = q[0], q[0]
    for k in range(q.size):
        low, high = min(low, q[k]), max(high, q[k])
    return low, high


@kernel
def encode_segment(q, dim, out):
    """Write the indices q [N] int32 to out. Return the number of bytes; -1 if out is too small.

    `dim` is not used; encoders share one signature.
    """
    words, narrow = np.empty(GROUP, np.uint32), np.empty(GROUP, np.uint8)
    widths, spare = np.empty(GROUP // BLOCK, np.int64), np.empty(SPARE_NBYTES, np.uint8)
    at = np.int64(0)
    for first in range(0, q.size, GROUP):
        n = min(GROUP, q.size - first)
        all_bits = _zigzag(q, first, n, words)
        at = pack_group(words, all_bits, n, out, at, out.size, narrow, widths, spare)
        if at < 0:
            return at
    return at


@kernel
def decode_segment(data, dim, q):
    """Fill q [N] int32 from all of data. Return False if data is invalid.

    `dim` is not used; encoders share one signature.
    """
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
