"""Vector-LZ in numba. FORMAT.md says what the bytes mean.

Shapes: n rows of dim indices, N = n dim, W bytes.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.bitpack.cpu import decode_segment as unpack_literals
from trec_qcomm.ops.bitpack.cpu import encode_segment as pack_literals
from trec_qcomm.ops.copying import copy

WINDOW = 255
SLOTS = 1024  # slots of the hash table: more than the window, so most chains have one row


@inner
def _equal(a, b):
    for d in range(a.size):
        if a[d] != b[d]:
            return False
    return True


@inner
def _find_copies(q, dim, distances):
    """Write each row's distance to the nearest equal row before it to distances [n] uint8; 0: none
    in the window. Return the number of copies.

    Rows of equal hash form a chain, the last row first. The window bounds the length of a search.
    """
    factors = np.empty(dim, np.uint32)
    factor = np.uint32(0x9E3779B1)
    for d in range(dim):
        factors[d] = factor
        factor = np.uint32(factor * np.uint32(0x85EBCA6B) + np.uint32(2))
    last, before = np.full(SLOTS, -1, np.int64), np.empty(WINDOW + 1, np.int64)
    num_copies = 0
    for i in range(distances.size):
        row = q[i * dim : (i + 1) * dim]
        mixed = np.uint32(0)
        for d in range(dim):
            mixed = np.uint32(mixed + np.uint32(np.uint32(row[d]) * factors[d]))
        slot = np.uint32(mixed * np.uint32(0x9E3779B1)) >> np.uint32(22)
        j = last[slot]
        while j >= 0 and i - j <= WINDOW and not _equal(row, q[j * dim : (j + 1) * dim]):
            j = before[j & WINDOW]
        distances[i] = i - j if j >= 0 and i - j <= WINDOW else 0
        num_copies += distances[i] > 0
        before[i & WINDOW] = last[slot]
        last[slot] = i
    return num_copies


@inner
def _put_copies(q, dim, distances, out, literals):
    """Write the flag, the bitmap and the distances to out, and gather the literals."""
    at, count = 1 + (distances.size + 7) // 8, 0
    out[:at] = 0
    out[0] = 1
    for i in range(distances.size):
        if distances[i]:
            out[1 + (i >> 3)] |= np.uint8(1 << (i & 7))
            out[at] = distances[i]
            at += 1
        else:
            for d in range(dim):
                literals[count + d] = q[i * dim + d]
            count += dim


@inner
def _encode_copies(q, dim, distances, num_copies, out):
    """Write a segment with copies to out. Return the bytes used; -1 where out is too small."""
    at = 1 + (distances.size + 7) // 8 + num_copies
    if at > out.size:
        return -1
    literals = np.empty(q.size - num_copies * dim, np.int32)
    _put_copies(q, dim, distances, out, literals)
    nbytes = pack_literals(literals, dim, out[at:])
    return at + nbytes if nbytes >= 0 else -1


@kernel
def encode_segment(q, dim, out):
    """Write the indices q [N] int32, N a multiple of dim, to out [C] uint8.

    Returns: the number of bytes used, or -1 if C is too small. Bytes after them may be written,
        too.
    """
    if q.size == 0:
        return 0
    distances = np.empty(q.size // dim, np.uint8)
    num_copies = _find_copies(q, dim, distances)
    if num_copies > 0:
        nbytes = _encode_copies(q, dim, distances, num_copies, out)
        if nbytes > 0:
            shorter = np.empty(nbytes - 2, np.uint8)
            packed = pack_literals(q, dim, shorter)
            if packed < 0:
                return nbytes
            out[0] = 0
            copy(shorter[:packed], out[1 : 1 + packed])
            return 1 + packed
    if out.size == 0:
        return -1
    out[0] = 0
    nbytes = pack_literals(q, dim, out[1:])
    return 1 + nbytes if nbytes >= 0 else -1


@inner
def _count_copies(bitmap, distances, num_rows):
    """Return the number of copies, or -1 where they are invalid.

    That is: padding is not 0, or a distance is 0 or points before row 0.

    Args: bitmap: the bits of num_rows rows.  distances: all bytes behind the bitmap.
    """
    if num_rows % 8 and bitmap[-1] >> (num_rows % 8):
        return -1
    num_copies = 0
    for i in range(num_rows):
        if (bitmap[i >> 3] >> (i & 7)) & 1:
            if num_copies == distances.size or not 1 <= distances[num_copies] <= i:
                return -1
            num_copies += 1
    return num_copies


@inner
def _spread(q, dim, bitmap, distances, literals_at):
    """Put rows in place, from the first on.

    The literals stand at the end of q, in order, from literals_at on. A row written never overtakes
    the literals that are still to be moved.
    """
    copy, source = 0, literals_at
    for i in range(q.size // dim):
        begin = i * dim
        if (bitmap[i >> 3] >> (i & 7)) & 1:
            back = np.int64(distances[copy]) * dim
            copy += 1
            for d in range(dim):
                q[begin + d] = q[begin + d - back]
        else:
            for d in range(dim):
                q[begin + d] = q[source + d]
            source += dim


@kernel
def decode_segment(data, dim, q):
    """Fill q [N] int32 from data [W] uint8. Return False if no encoder writes the data."""
    if q.size == 0 or data.size == 0:
        return q.size == data.size
    if data[0] == 0:
        return unpack_literals(data[1:], dim, q)
    num_rows = q.size // dim
    at = 1 + (num_rows + 7) // 8
    if data[0] > 1 or at > data.size:
        return False
    bitmap, distances = data[1:at], data[at:]
    num_copies = _count_copies(bitmap, distances, num_rows)
    if num_copies < 0:
        return False
    literals_at = num_copies * dim
    if not unpack_literals(distances[num_copies:], dim, q[literals_at:]):
        return False
    _spread(q, dim, bitmap, distances, literals_at)
    return True
