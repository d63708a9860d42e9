"""Bitpack in Triton: functions for the kernels of ops.error_bound, in programs of one warp.

Eight words of w bits are w bytes: an *eight*. A group has 128 eights. Each eight begins at a byte,
so it is assembled separately and stored byte by byte.
"""

import triton
import triton.language as tl

from trec_qcomm.ops.bitpack.reference import MAX_CODE_BITS, MAX_WIDTH

_BLOCK, _BLOCKS, _EIGHTS, _GROUP = (tl.constexpr(n) for n in (32, 32, 128, 1024))
_NUM_PREFETCHED = tl.constexpr(128)
_MAX_WIDTH, _MAX_CODE_BITS = tl.constexpr(MAX_WIDTH), tl.constexpr(MAX_CODE_BITS)


@triton.jit
def _bit_length(word):
    """Return the bits up to the highest 1 of 0 <= word < 2^24, int32."""
    bits = word.to(tl.int32).to(tl.float32).to(tl.int32, bitcast=True)
    return tl.maximum((bits >> 23) - 126, 0)


@triton.jit
def _width_range(width, num_left):
    """Return (number of blocks, smallest width, largest width) of a group.

    Args: width: [32] int32, 0 for blocks that do not exist.
          num_left: number of words from this group to the end of the segment.
    """
    live = tl.arange(0, _BLOCKS) * _BLOCK < num_left
    min_width = tl.min(tl.where(live, width, _MAX_WIDTH), 0)
    return tl.minimum((num_left + _BLOCK - 1) // _BLOCK, _BLOCKS), min_width, tl.max(width, 0)


@triton.jit
def _block_nbytes(width, num_left):
    """Return [32] bytes of the blocks of these widths [32]; num_left: as in `_width_range`."""
    num_words = tl.minimum(tl.maximum(num_left - tl.arange(0, _BLOCKS) * _BLOCK, 0), _BLOCK)
    return (num_words * width + 7) // 8


@triton.jit
def block_widths(words):
    """Return the widths [32] of the blocks of words [1024]; words after the last are 0."""
    return _bit_length(tl.max(tl.reshape(words, (_BLOCKS, _BLOCK)), 1))


@triton.jit
def group_nbytes(width, num_left):
    """Return the bytes of a group whose blocks have these widths [32].

    Args: num_left: number of words from this group to the end of the segment.
    """
    num_blocks, min_width, max_width = _width_range(width, num_left)
    codes_nbytes = (num_blocks * _bit_length(max_width - min_width) + 7) // 8
    return 1 + codes_nbytes + tl.sum(_block_nbytes(width, num_left), 0)


@triton.jit
def pack_group(target, words, widths, nbytes, num_left):
    """Write a group.

    Args: target: pointer to its first byte.
          words: [1024], 0 after the last one.
          widths: pointer to the widths of its blocks, uint8.
          nbytes: result of `group_nbytes`.
          num_left: number of words from this group to the end of the segment.
    """
    num_blocks, min_width, max_width = _width_range(
        tl.load(widths + tl.arange(0, _BLOCKS)).to(tl.int32), num_left
    )
    code_bits = _bit_length(max_width - min_width)
    codes_nbytes = (num_blocks * code_bits + 7) // 8
    tl.store(target, (min_width | (code_bits << 5)).to(tl.uint8))
    if code_bits > 0:
        b = tl.reshape(tl.arange(0, _BLOCKS), (4, 8))
        codes = tl.where(b < num_blocks, tl.load(widths + b).to(tl.int32) - min_width, 0)
        eight = tl.arange(0, 4)
        _store_narrow(
            target + 1, codes, code_bits + eight * 0, eight * code_bits, codes_nbytes, code_bits
        )
    words, target = tl.reshape(words.to(tl.int32), (_EIGHTS, 8)), target + 1 + codes_nbytes
    width, begin = _load_eights(widths)
    if max_width <= 8:
        _store_narrow(target, words, width, begin, nbytes - 1 - codes_nbytes, max_width)
    else:
        _store_wide(target, words, width, begin, nbytes - 1 - codes_nbytes, max_width)


@triton.jit
def _load_eights(widths):
    """Return [128] the width of each eight of a group, and its first byte within the blocks."""
    width = tl.load(widths + tl.arange(0, _EIGHTS) // 4).to(tl.int32)
    return width, tl.cumsum(width, 0) - width


@triton.jit
def _store_narrow(target, words, width, begin, end, max_width):
    """Write words [E, 8], at most 8 bits each.

    Args: target: pointer to the blocks.  width: [E] bits of a word, at most max_width <= 8.
          begin: [E] first byte of each eight.  end: number of bytes of all blocks.
    """
    E: tl.constexpr = words.shape[0]
    shift = tl.arange(0, 4)[None, :] * width[:, None]
    four = tl.sum(tl.reshape(words, (E, 2, 4)) << shift[:, None, :], 2)
    four = four.to(tl.uint32, bitcast=True).to(tl.int64)
    eight = tl.sum(four << (tl.arange(0, 2)[None, :] * 4 * width[:, None]), 1)
    end = tl.minimum(begin + width, end)
    _store_bytes(target, eight.to(tl.int32), begin, end)
    if max_width > 4:
        _store_bytes(target, (eight >> 32).to(tl.int32), begin + 4, end)


@triton.jit
def _store_wide(target, words, width, begin, end, max_width):
    """Do what `_store_narrow` does for any width: 4 bytes of each eight, then the next 4."""
    end, done = tl.minimum(begin + width, end), 0
    while done < max_width:
        shift = tl.arange(0, 8)[None, :] * width[:, None] - 8 * done
        left = tl.where(shift < 32, words << (shift & 31), 0)
        part = tl.where(shift < 0, words >> tl.minimum(-shift, 31), left)
        _store_bytes(target, tl.sum(part, 1), begin + done, end)
        done += 4


@triton.jit
def _store_bytes(target, four, begin, end):
    """Write the bytes of four [E] int32 from byte begin [E] on, and none from end [E] on."""
    i = tl.arange(0, 4)[None, :]
    at = begin[:, None] + i
    byte = (four[:, None] >> (8 * i)).to(tl.uint8)
    tl.store(target + at, byte, mask=at < end[:, None])


@triton.jit
def unpack_group(payload32, num_words32, widths, place, num_left):
    """Return the indices [1024] int32 of a group whose headers `read_group_headers` has read.

    Args: payload32: the bytes as int32.  num_words32: how many there are.
          widths: pointer to the widths of the blocks, uint8.
          place: byte of the payload where the blocks begin.
          num_left: number of words from this group to the end of the segment.
    """
    width, begin = _load_eights(widths)
    i = tl.arange(0, 8)[None, :]
    bit = ((place % 4).to(tl.int32) + begin)[:, None] * 8 + i * width[:, None]
    words, word = payload32 + place // 4, bit // 32
    live = (tl.arange(0, _EIGHTS)[:, None] * 8 + i < num_left) & (width[:, None] > 0)
    low = tl.load(words + word, mask=live, other=0).to(tl.uint32, bitcast=True)
    last = tl.minimum(num_words32 - 1 - place // 4, 0x7FFFFFFF).to(tl.int32)
    high = tl.load(words + (word + 1), mask=live & (word < last), other=0)
    shift = (bit % 32).to(tl.uint32)
    bits = (low >> shift) | ((high.to(tl.uint32, bitcast=True) << 1) << (31 - shift))
    bits = bits.to(tl.int32, bitcast=True) & ((1 << width) - 1)[:, None]
    return tl.reshape((bits >> 1) ^ -(bits & 1), (_GROUP,))


@triton.jit
def read_group_headers(payload, payload32, begin, end, num_values, places, widths):
    """Read the headers of all groups of payload[begin:end], one by one.

    They cannot be read side by side: the place of a group depends on the sizes of earlier groups.

    Args:    num_values: number of indices, int32.
             places: pointer, int64, to write where the blocks of each group begin.
             widths: pointer, uint8, to write 32 widths of each group.
    Returns: (whether the bytes are valid; a number that the caller must store somewhere. It is made
             of prefetching loads, which the compiler otherwise removes).
    """
    b = tl.arange(0, _BLOCKS)
    at, num_left, valid = begin, num_values, begin <= end
    # Each header would wait for memory. So bytes ahead are loaded, a word of every 32, while the
    # headers before them are in use. Only that brings them into the cache; the words do not matter.
    prefetch_at, prefetched, sink = begin, tl.zeros((_NUM_PREFETCHED,), tl.int32), 0
    while valid & (num_left > 0):
        if (at + 2 * 32 * _NUM_PREFETCHED > prefetch_at) & (prefetch_at < end):
            sink = tl.maximum(sink, tl.max(prefetched, 0))
            word = prefetch_at // 4 + tl.arange(0, _NUM_PREFETCHED) * 8
            prefetched = tl.load(payload32 + word, mask=word < end // 4, other=0)
            prefetch_at += 32 * _NUM_PREFETCHED
        num_blocks = tl.minimum((num_left + _BLOCK - 1) // _BLOCK, _BLOCKS)
        header = tl.load(payload + at, mask=at < end, other=0xFF).to(tl.int32)
        code_bits = header >> 5
        blocks_at = at + 1 + (num_blocks * code_bits + 7) // 8
        valid = (code_bits <= _MAX_CODE_BITS) & (blocks_at <= end)
        live = valid & (b < num_blocks)
        byte = at + 1 + b * code_bits // 8
        low = tl.load(payload + byte, mask=live & (byte < blocks_at), other=0).to(tl.int32)
        high = tl.load(payload + byte + 1, mask=live & (byte + 1 < blocks_at), other=0)
        code = ((low | (high.to(tl.int32) << 8)) >> (b * code_bits % 8)) & ((1 << code_bits) - 1)
        width = tl.where(live, (header & 31) + code, 0)
        tl.store(places, blocks_at)
        tl.store(widths + b, width.to(tl.uint8))
        at = blocks_at + tl.sum(_block_nbytes(width, num_left), 0)
        valid = valid & (tl.max(width, 0) <= _MAX_WIDTH) & (at <= end)
        num_left -= _GROUP
        places += 1
        widths += _BLOCKS
    return valid & (at == end), tl.maximum(sink, tl.max(prefetched, 0))
