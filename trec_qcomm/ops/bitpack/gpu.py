"""Bitpack in Triton: what ops.error_bound's kernels know of the format. For programs of one warp.

Eight words of w bits are w bytes: an *eight*. A group has 128 of them, each of which begins at a
byte, so that it is put together by itself and stored byte by byte.
"""

import triton
import triton.language as tl

from trec_qcomm.ops.bitpack.reference import MAX_CODE_BITS, MAX_WIDTH

_BLOCK, _BLOCKS, _EIGHTS, _GROUP = (tl.constexpr(n) for n in (32, 32, 128, 1024))
_AHEAD = tl.constexpr(128)
_MAX_WIDTH, _MAX_CODE_BITS = tl.constexpr(MAX_WIDTH), tl.constexpr(MAX_CODE_BITS)


@triton.jit
def _bit_length(word):
    """Bits up to the highest 1 of 0 <= word < 2^24, int32."""
    bits = word.to(tl.int32).to(tl.float32).to(tl.int32, bitcast=True)
    return tl.maximum((bits >> 23) - 126, 0)


@triton.jit
def _range_of(width, left):
    """(number of blocks, least width, largest width) of width [32]; see `nbytes_of`."""
    live = tl.arange(0, _BLOCKS) * _BLOCK < left
    least = tl.min(tl.where(live, width, _MAX_WIDTH), 0)
    return tl.minimum((left + _BLOCK - 1) // _BLOCK, _BLOCKS), least, tl.max(width, 0)


@triton.jit
def _sizes(width, left):
    """[32] widths -> bytes of the blocks."""
    num_words = tl.minimum(tl.maximum(left - tl.arange(0, _BLOCKS) * _BLOCK, 0), _BLOCK)
    return (num_words * width + 7) // 8


@triton.jit
def widths_of(words):
    """Widths of the blocks [32] of a group of words [1024], 0 behind the last one."""
    return _bit_length(tl.max(tl.reshape(words, (_BLOCKS, _BLOCK)), 1))


@triton.jit
def nbytes_of(width, left):
    """Bytes of a group of these widths. left: how many words there are from this group to the end
    of the segment."""
    num_blocks, least, most = _range_of(width, left)
    codes_nbytes = (num_blocks * _bit_length(most - least) + 7) // 8
    return 1 + codes_nbytes + tl.sum(_sizes(width, left), 0)


@triton.jit
def pack(to, words, widths, nbytes, left):
    """Write a group of nbytes to the pointer `to`. words: see `widths_of`.  widths: pointer to the
    blocks', uint8.  left: see `nbytes_of`."""
    num_blocks, least, most = _range_of(tl.load(widths + tl.arange(0, _BLOCKS)).to(tl.int32), left)
    bits = _bit_length(most - least)
    codes_nbytes = (num_blocks * bits + 7) // 8
    tl.store(to, (least | (bits << 5)).to(tl.uint8))
    if bits > 0:
        b = tl.reshape(tl.arange(0, _BLOCKS), (4, 8))
        codes = tl.where(b < num_blocks, tl.load(widths + b).to(tl.int32) - least, 0)
        eight = tl.arange(0, 4)
        _store_narrow(to + 1, codes, bits + eight * 0, eight * bits, codes_nbytes, bits)
    words, to = tl.reshape(words.to(tl.int32), (_EIGHTS, 8)), to + 1 + codes_nbytes
    width, begin = _load_eights(widths)
    if most <= 8:
        _store_narrow(to, words, width, begin, nbytes - 1 - codes_nbytes, most)
    else:
        _store_wide(to, words, width, begin, nbytes - 1 - codes_nbytes, most)


@triton.jit
def _load_eights(widths):
    """[128]: the width of each eight of a group, and its first byte, counted from the blocks'."""
    width = tl.load(widths + tl.arange(0, _EIGHTS) // 4).to(tl.int32)
    return width, tl.cumsum(width, 0) - width


@triton.jit
def _store_narrow(to, words, width, begin, end, most):
    """Write words [E, 8] of width [E] <= most <= 8 bits to bytes begin [E] .. end - 1 of `to`."""
    E: tl.constexpr = words.shape[0]
    shift = tl.arange(0, 4)[None, :] * width[:, None]
    four = tl.sum(tl.reshape(words, (E, 2, 4)) << shift[:, None, :], 2)
    four = four.to(tl.uint32, bitcast=True).to(tl.int64)
    eight = tl.sum(four << (tl.arange(0, 2)[None, :] * 4 * width[:, None]), 1)
    end = tl.minimum(begin + width, end)
    _store_bytes(to, eight.to(tl.int32), begin, end)
    if most > 4:
        _store_bytes(to, (eight >> 32).to(tl.int32), begin + 4, end)


@triton.jit
def _store_wide(to, words, width, begin, end, most):
    """`_store_narrow` of any width <= most: 4 bytes of each eight, then the next 4."""
    end, done = tl.minimum(begin + width, end), 0
    while done < most:
        shift = tl.arange(0, 8)[None, :] * width[:, None] - 8 * done
        left = tl.where(shift < 32, words << (shift & 31), 0)
        part = tl.where(shift < 0, words >> tl.minimum(-shift, 31), left)
        _store_bytes(to, tl.sum(part, 1), begin + done, end)
        done += 4


@triton.jit
def _store_bytes(to, four, begin, end):
    """Write the bytes of four [E] int32 to begin.., at most end - begin of them."""
    i = tl.arange(0, 4)[None, :]
    at = begin[:, None] + i
    byte = (four[:, None] >> (8 * i)).to(tl.uint8)
    tl.store(to + at, byte, mask=at < end[:, None])


@triton.jit
def unpack(payload32, num_words32, widths, place, left):
    """The inverse: indices [1024] int32. payload32: the bytes as int32, of which there are
    num_words32.  place: where the blocks begin. Of a group that `walk` has read."""
    width, begin = _load_eights(widths)
    i = tl.arange(0, 8)[None, :]
    bit = ((place % 4).to(tl.int32) + begin)[:, None] * 8 + i * width[:, None]
    words, word = payload32 + place // 4, bit // 32
    live = (tl.arange(0, _EIGHTS)[:, None] * 8 + i < left) & (width[:, None] > 0)
    low = tl.load(words + word, mask=live, other=0).to(tl.uint32, bitcast=True)
    last = tl.minimum(num_words32 - 1 - place // 4, 0x7FFFFFFF).to(tl.int32)
    high = tl.load(words + (word + 1), mask=live & (word < last), other=0)
    shift = (bit % 32).to(tl.uint32)
    bits = (low >> shift) | ((high.to(tl.uint32, bitcast=True) << 1) << (31 - shift))
    bits = bits.to(tl.int32, bitcast=True) & ((1 << width) - 1)[:, None]
    return tl.reshape((bits >> 1) ^ -(bits & 1), (_GROUP,))


@triton.jit
def walk(payload, payload32, begin, end, num_values, places, widths):
    """Read the headers of all groups of payload[begin:end], one after the other: a group's place
    depends on the sizes of those before it. Writes where their blocks begin to places, int64, and
    32 widths of each to widths, uint8. Returns whether the bytes are valid, and a number that the
    caller must store somewhere, or the compiler leaves out the loads that make it."""
    b = tl.arange(0, _BLOCKS)
    at, left, valid = begin, num_values, begin <= end
    # A header would be a round trip to memory away. So loads of what comes next, a word of every
    # 32 bytes, are begun while those before are in use: what matters is that it is cached then.
    ahead_at, ahead, used = begin, tl.zeros((_AHEAD,), tl.int32), 0
    while valid & (left > 0):
        if (at + 2 * 32 * _AHEAD > ahead_at) & (ahead_at < end):
            used = tl.maximum(used, tl.max(ahead, 0))
            word = ahead_at // 4 + tl.arange(0, _AHEAD) * 8
            ahead = tl.load(payload32 + word, mask=word < end // 4, other=0)
            ahead_at += 32 * _AHEAD
        num_blocks = tl.minimum((left + _BLOCK - 1) // _BLOCK, _BLOCKS)
        header = tl.load(payload + at, mask=at < end, other=0xFF).to(tl.int32)
        bits = header >> 5
        blocks_at = at + 1 + (num_blocks * bits + 7) // 8
        valid = (bits <= _MAX_CODE_BITS) & (blocks_at <= end)
        live = valid & (b < num_blocks)
        byte = at + 1 + b * bits // 8
        low = tl.load(payload + byte, mask=live & (byte < blocks_at), other=0).to(tl.int32)
        high = tl.load(payload + byte + 1, mask=live & (byte + 1 < blocks_at), other=0)
        code = ((low | (high.to(tl.int32) << 8)) >> (b * bits % 8)) & ((1 << bits) - 1)
        width = tl.where(live, (header & 31) + code, 0)
        tl.store(places, blocks_at)
        tl.store(widths + b, width.to(tl.uint8))
        at = blocks_at + tl.sum(_sizes(width, left), 0)
        valid = valid & (tl.max(width, 0) <= _MAX_WIDTH) & (at <= end)
        left -= _GROUP
        places += 1
        widths += _BLOCKS
    return valid & (at == end), tl.maximum(used, tl.max(ahead, 0))
