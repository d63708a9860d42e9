"""Codes of rows to bytes and back, in numba: the lowest bits first, each row in whole bytes."""
# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import inner

_1, _2 = np.uint64(1), np.uint64(2)


@inner(forceinline=True)
def pack(q, bits, packed, at, width):
    """Write a row's codes. q: codes, zero-padded to whole bytes."""
    if bits == 8:
        for j in range(width):
            packed[at + np.uint64(j)] = q[j]
    elif bits == 4:
        for j in range(width):
            packed[at + np.uint64(j)] = q[2 * j] | np.uint8(q[2 * j + 1] << np.uint8(4))
    elif bits == 3:
        _pack3(q, packed, at, width)
    else:
        for j in range(width):
            low = q[4 * j] | np.uint8(q[4 * j + 1] << np.uint8(2))
            high = q[4 * j + 2] | np.uint8(q[4 * j + 3] << np.uint8(2))
            packed[at + np.uint64(j)] = low | np.uint8(high << np.uint8(4))


@inner(forceinline=True)
def unpack(packed, at, width, bits, q):
    """Read a row's codes into q, which has room for a multiple of 8."""
    if bits == 8:
        for j in range(width):
            q[j] = packed[at + np.uint64(j)]
    elif bits == 4:
        for j in range(width):
            byte = packed[at + np.uint64(j)]
            q[2 * j] = byte & np.uint8(15)
            q[2 * j + 1] = byte >> np.uint8(4)
    elif bits == 3:
        _unpack3(packed, at, width, q)
    else:
        for j in range(width):
            byte = packed[at + np.uint64(j)]
            q[4 * j] = byte & np.uint8(3)
            q[4 * j + 1] = (byte >> np.uint8(2)) & np.uint8(3)
            q[4 * j + 2] = (byte >> np.uint8(4)) & np.uint8(3)
            q[4 * j + 3] = byte >> np.uint8(6)


@inner
def _pack3(q, packed, at, width):
    """Write a row's codes of 3 bits: 8 codes are 3 bytes, the last ones fewer."""
    for j in range((width + 2) // 3):
        word, place = np.uint32(0), at + np.uint64(3 * j)
        for d in range(8):
            word |= np.uint32(q[8 * j + d]) << np.uint32(3 * d)
        packed[place] = np.uint8(word)
        if 3 * j + 1 < width:
            packed[place + _1] = np.uint8(word >> np.uint32(8))
        if 3 * j + 2 < width:
            packed[place + _2] = np.uint8(word >> np.uint32(16))


@inner
def _unpack3(packed, at, width, q):
    """Read a row's codes of 3 bits. What is after the last column is anything."""
    for j in range((width + 2) // 3):
        place = at + np.uint64(3 * j)
        word = np.uint32(packed[place])
        if 3 * j + 1 < width:
            word |= np.uint32(packed[place + _1]) << np.uint32(8)
        if 3 * j + 2 < width:
            word |= np.uint32(packed[place + _2]) << np.uint32(16)
        for d in range(8):
            q[8 * j + d] = np.uint8((word >> np.uint32(3 * d)) & np.uint32(7))
