"""Decoders of rows and ids in plain numpy, for readers without torch. FORMAT.md is their source.

They give the values that the codecs of trec_qcomm decode to, bit for bit.

Shapes: n rows of D values; W bytes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from trec_qcomm.core.errors import CorruptFrameError

Array = Any  # numpy's own type says neither shape nor dtype
_TINY, _FLT_MAX = np.finfo(np.float32).tiny, np.finfo(np.float32).max


def numbers(data: Array, width: int, count: int) -> Array:
    """Return [.., count], the numbers of `width` <= 64 bits that are packed in [.., W] uint8.

    They are unsigned, of the smallest dtype that holds `width` bits.
    """
    if width in (1, 2, 4, 8):
        parts = data[..., None] >> np.arange(0, 8, width, dtype=np.uint8)
        return (parts & np.uint8(2**width - 1)).reshape(*data.shape[:-1], -1)[..., :count]
    bits = np.unpackbits(data, axis=-1, count=count * width, bitorder="little")
    room = next(room for room in (8, 16, 32, 64) if room >= width)
    padded = np.zeros((*data.shape[:-1], count, room), np.uint8)
    padded[..., :width] = bits.reshape(*data.shape[:-1], count, width)
    packed = np.packbits(padded, axis=-1, bitorder="little")
    return packed.view(f"<u{room // 8}")[..., 0]


def checksum(words: Array) -> int:
    """Return the checksum of a frame. Args: words: [W / 8] uint64, at least 4."""
    parts = words.view(np.uint32).astype(np.uint64)
    parts[6:8] = 0
    k = np.arange(len(parts), dtype=np.uint32) * np.uint32(0x9E3779B1)
    k ^= k >> np.uint32(16)
    return int(((k.astype(np.uint64) * (k ^ np.uint32(0x85EBCA6B)) | np.uint64(1)) * parts).sum())


def decode_ids(data: Array, count: int) -> Array:
    """Return [count] int64, the ids of a message of one segment with one id a bag.

    Args: data: [W] uint8, what follows the message's header.  count: at least 1.
    Raises: CorruptFrameError: bytes that are no such message.
    """
    head: list[int] = []
    at = 0
    for name in ("L", "runs", "length", "kind", "k", "base", "high"):
        if name == "high" and not head[3] & 4:
            break
        number, at = _varint(data, at)
        head.append(number)
    _, runs, length, kind, width, zigzag = head[:6]
    order, num_words = kind & 3, count - (kind & 3 > 0)
    end = at + (num_words * width + 7) // 8
    num_high = head[6] if kind & 4 else 0
    if (head[0], runs, length) != (0, 1, 1) or width > 64 or end + num_high > len(data):
        raise CorruptFrameError("ids: not a message of one id a bag")
    words = numbers(data[at:end], width, num_words).astype(np.uint64)
    if kind & 4:
        ones = np.flatnonzero(np.unpackbits(data[end : end + num_high], bitorder="little"))
        if len(ones) != num_words:
            raise CorruptFrameError("ids: the numbers of high parts and of ids differ")
        high = np.diff(ones, prepend=-1).astype(np.uint64) - np.uint64(1)
        words += high << np.uint64(width)
    base = np.uint64((zigzag >> 1) ^ (-(zigzag & 1) % 2**64))
    if order == 0:
        return (words + base).view(np.int64)
    steps = np.concatenate([[base], words + np.uint64(order - 1)])
    return steps.cumsum(dtype=np.uint64).view(np.int64)


def _varint(data: Array, at: int) -> tuple[int, int]:
    """Return a varint, and where it ends."""
    number = 0
    for place, byte in enumerate(data[at : at + 10].tolist()):
        number |= (byte & 127) << (7 * place)
        if byte < 128:
            return number, at + place + 1
    raise CorruptFrameError("ids: a number without an end")


def _floats(dtype: str, data: Array, n: int, dim: int) -> Array:
    return data.view(dtype)[: n * dim].reshape(n, dim).astype(np.float32)


def _bfloats(data: Array, n: int, dim: int) -> Array:
    words = data.view("<u2")[: n * dim].astype(np.uint32) << 16
    return words.view(np.float32).reshape(n, dim)


def _times_power_of_two(y: Array, exponent: Array | int) -> Array:
    """Return finite y times 2^exponent, [n, D] float32; the largest float32 where that is more."""
    with np.errstate(over="ignore", under="ignore"):
        return np.clip(np.ldexp(y, exponent), -_FLT_MAX, _FLT_MAX)


def _rowwise(bits: int, data: Array, n: int, dim: int) -> Array:
    header = data[: 4 * n].view("<i4").reshape(n, 1)
    e = (header >> 24 & 255) - 127
    if bool((e < -100).any()):
        raise CorruptFrameError("rowwise: an exponent below 27; allowed: 27 to 255")
    step, low = header & 2047, (header << 8) >> 20
    scale = np.ldexp((128 + (step & 127)).astype(np.float32), (step >> 7) - 21 - bits)
    width, top = (bits * dim + 7) // 8, 2**bits - 1
    q = numbers(data[4 * n : 4 * n + n * width].reshape(n, width), bits, dim)
    y = q.astype(np.float32) * scale + np.ldexp(low.astype(np.float32), -11)
    x = _times_power_of_two(y, e)
    for code, value in ((top - 2, np.inf), (top - 1, -np.inf), (top, np.nan)):
        x[(header & 2048 != 0) & (q == code)] = value
    return x


def _minifloat(bits: int, exponent_bits: int, data: Array, n: int, dim: int) -> Array:
    mantissa_bits, largest_f = bits - 1 - exponent_bits, 2**exponent_bits - 1
    width, sign = (bits * dim + 7) // 8, 1 << (bits - 1)
    if not data[:n].all():
        raise CorruptFrameError("float6, float8: an exponent of 0; allowed: 1 to 255")
    q = numbers(data[n : n + n * width].reshape(n, width), bits, dim)
    code = (q & (sign - 1)).astype(np.int32)
    f, k = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    steps = np.where(f > 0, k + (1 << mantissa_bits), k).astype(np.float32)
    e = data[:n, None].astype(np.int32) - 127
    x = _times_power_of_two(steps, e - largest_f + np.maximum(f, 1) - mantissa_bits)
    largest = largest_f << mantissa_bits
    x[code == largest + 1] = np.inf
    x = np.where(q >= sign, -x, x)
    x[(code > largest + 1) | (q == sign)] = np.nan
    return x


def _error_bounded(data: Array, n: int, dim: int) -> Array:
    num_values, (bits, word) = n * dim, data[:8].view("<u4").tolist()
    encoder, num_verbatim = word & 15, word >> 7
    end = len(data) - 8 * num_verbatim
    size = end - 8 - (word >> 4 & 7)
    if size < 0:
        raise CorruptFrameError("error_bounded: more verbatim values than bytes")
    body = data[8 : 8 + size]
    step = data[:4].view("<f4")
    if encoder == 0 and size == 4 * num_values and not num_verbatim:
        x = body.view("<f4").astype(np.float32)
    elif encoder == 1 and _TINY <= step[0] <= _FLT_MAX:
        q = _bitpacked(body, num_values)
        if np.abs(q).max() > 2**22:
            raise CorruptFrameError("error_bounded: an index out of range")
        x = q.astype(np.float32) * step
    elif encoder == 4 and size == 0:
        x = np.full(num_values, bits, np.uint32).view(np.float32)
    else:
        raise CorruptFrameError(f"error_bounded: encoder {encoder} of {size} bytes is not decoded")
    positions, values = data[end:].view("<u4").reshape(2, num_verbatim)
    if (np.diff(positions.astype(np.int64)) <= 0).any() or (positions >= num_values).any():
        raise CorruptFrameError("error_bounded: positions out of order")
    x.view(np.uint32)[positions] = values
    return x.reshape(n, dim)


def _bitpacked(data: Array, count: int) -> Array:
    """Return [count] int64 indices. Blocks of one width are unpacked together."""
    widths, begins, at = np.empty(-(-count // 32), np.int64), [], 0
    for first in range(0, len(widths), 32):
        num_blocks = min(32, len(widths) - first)
        if at >= len(data):
            raise CorruptFrameError("bitpack: the bytes end early")
        least, code_bits = int(data[at]) & 31, int(data[at]) >> 5
        codes_end = at + 1 + (code_bits * num_blocks + 7) // 8
        codes = numbers(data[at + 1 : codes_end], code_bits, num_blocks)
        group = widths[first : first + num_blocks] = least + codes.astype(np.int64)
        begins.append(codes_end + 4 * (group.cumsum() - group))
        at = codes_end + 4 * int(group.sum())
    at -= (32 - count % 32) % 32 * int(widths[-1]) // 8  # the last block has fewer words
    if at != len(data) or widths.max() > 24:
        raise CorruptFrameError("bitpack: the number of bytes is not what the widths say")
    padded, starts = np.concatenate([data, np.zeros(96, np.uint8)]), np.concatenate(begins)
    words = np.empty((len(widths), 32), np.int64)
    for width in np.unique(widths).tolist():
        places = starts[widths == width][:, None] + np.arange(4 * width)
        words[widths == width] = numbers(padded[places], width, 32)
    z = words.reshape(-1)[:count]
    return (z >> 1) ^ -(z & 1)


_FIXED: dict[int, tuple[Callable[[Array, int, int], Array], int, int]] = {
    1: (partial(_floats, "<f4"), 0, 32),
    2: (partial(_floats, "<f2"), 0, 16),
    3: (_bfloats, 0, 16),
    4: (partial(_rowwise, 2), 4, 2),
    5: (partial(_rowwise, 4), 4, 4),
    6: (partial(_rowwise, 8), 4, 8),
    12: (partial(_minifloat, 6, 4), 1, 6),
    13: (partial(_minifloat, 6, 3), 1, 6),
    24: (partial(_minifloat, 8, 4), 1, 8),
    25: (partial(_minifloat, 8, 5), 1, 8),
}
"""Decoder by wire id, bytes of a row, and bits of a value."""
_ERROR_BOUNDED = 7
DECODED = (*_FIXED, _ERROR_BOUNDED)  # wire ids


def decode_rows(codec: int, data: Array, n: int, dim: int) -> Array:
    """Return [n, dim] float32, the rows of a segment, n > 0.

    Args: codec: wire id.  data: [W] uint8, the segment's bytes.
    Raises: CorruptFrameError: bytes that no encoder writes, or a codec that is not in DECODED.
    """
    if codec == _ERROR_BOUNDED:
        return _error_bounded(data, n, dim)
    if codec not in _FIXED:
        raise CorruptFrameError(f"codec {codec}: numpy has no decoder; allowed: {DECODED}")
    decode, of_row, bits = _FIXED[codec]
    expected = (n * (of_row + (bits * dim + 7) // 8) + 7) // 8 * 8
    if len(data) != expected:
        raise CorruptFrameError(f"{len(data)} bytes where its format has {expected}")
    return decode(data, n, dim)
