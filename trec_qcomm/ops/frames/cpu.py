"""Kernels of frame.py for the CPU, in numba.

They raise nothing; `unseal` returns the kind of error.
Shapes: P frames, S segments in all. The arguments are those of frame.py as numpy arrays.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops import numpy_decoders
from trec_qcomm.ops.copying import copy

OK, BAD_SIZE, BAD_MAGIC, BAD_VERSION, BAD_LAYOUT = 0, 1, 2, 3, 4
BAD_COUNT, BAD_CHECKSUM, BAD_ROWS, BAD_SEGMENT, BAD_CALL = 5, 6, 7, 8, 9

_MAGIC = np.uint32(0x4D435154)  # b"TQCM"
_VERSION = np.uint32(3)


@inner(plain=numpy_decoders.checksum)
def checksum(words):
    """Return the checksum, uint64, of one frame (frame.checksum). words: [..] uint64."""
    low, total = np.uint64(0xFFFFFFFF), np.uint64(0)
    for i in range(words.size):
        word = words[i] if i != 3 else np.uint64(0)  # the checksum is no term
        total += _key(2 * i) * (word & low) + _key(2 * i + 1) * (word >> np.uint64(32))
    return total


@inner(forceinline=True)
def _key(i):
    """Return the factor of 32-bit word number i of a frame, uint64 and odd."""
    k = (np.uint64(i) * np.uint64(0x9E3779B1)) & np.uint64(0xFFFFFFFF)
    k ^= k >> np.uint64(16)
    return (k * (k ^ np.uint64(0x85EBCA6B))) | np.uint64(1)


@kernel
def seal(buffer, frame_nbytes, counts, layouts, call, codecs, num_rows, nbytes, only_headers):
    """Write headers, segment tables and checksums, as frame.seal says.

    Args: only_headers: whether the buffer is for the headers alone; then the checksums are 0.
    """
    begin, first = 0, 0
    for p in range(counts.size):
        if counts[p] == 0:
            continue
        count, end = counts[p], first + counts[p]
        size = (32 + 12 * count + 7) // 8 * 8 if only_headers else frame_nbytes[p]
        words = buffer[begin : begin + size].view(np.uint64)
        fields = words.view(np.uint32)
        fields[0], fields[1] = _MAGIC, _VERSION | np.uint32(call << 16)
        fields[2], fields[3] = np.uint32(layouts[p]), np.uint32(count)
        words[2], words[3] = np.uint64(frame_nbytes[p]), np.uint64(0)
        kinds, rows, sizes = codecs[first:end], num_rows[first:end], nbytes[first:end]
        for j in range(count):
            fields[8 + 3 * j] = np.uint32(kinds[j])
            fields[9 + 3 * j] = np.uint32(rows[j])
            fields[10 + 3 * j] = np.uint32(sizes[j])
        if count % 2:
            fields[8 + 3 * count] = np.uint32(0)
        if not only_headers:
            words[3] = checksum(words)
        begin, first = begin + size, end


@inner
def _unseal_frame(frame, begin, count, layout, call, num_rows, codecs, at, nbytes):
    """Check one frame and fill codecs, at, nbytes. Return (reason, its segment or -1).

    Args: frame: the frame, and whatever lies behind it.
    """
    if frame.size < 32 or frame.size % 8:
        return BAD_SIZE, -1
    long_words = frame.view(np.uint64)
    words = long_words.view(np.uint32)
    if words[0] != _MAGIC:
        return BAD_MAGIC, -1
    if words[1] & np.uint32(0xFFFF) != _VERSION:
        return BAD_VERSION, -1
    size = np.int64(long_words[2])
    if not 32 <= size <= frame.size or size % 8:
        return BAD_SIZE, -1
    long_words = long_words[: size // 8]
    if np.int64(words[3]) != count:
        return BAD_COUNT, -1
    if np.int64(words[2]) != layout:
        return BAD_LAYOUT, -1
    place = (32 + 12 * count + 7) // 8 * 8
    if place > size:
        return BAD_SIZE, -1
    if checksum(long_words) != long_words[3]:
        return BAD_CHECKSUM, -1
    if np.int64(words[1] >> np.uint32(16)) != call:
        return BAD_CALL, -1
    for j in range(count):
        codecs[j] = words[8 + 3 * j]
        nbytes[j] = words[10 + 3 * j]
        at[j] = begin + place
        if np.int64(words[9 + 3 * j]) != num_rows[j]:
            return BAD_ROWS, j
        place += nbytes[j]
        if nbytes[j] % 8 or place > size:
            return BAD_SEGMENT, j
    if place != size:
        return BAD_SEGMENT, count - 1
    return OK, -1


@kernel
def unseal(buffer, frame_nbytes, counts, layouts, call, num_rows, codecs, at, nbytes):
    """Check P frames and fill codecs, at, nbytes. Return (reason, frame, segment or -1)."""
    begin, first = 0, 0
    for p in range(counts.size):
        if counts[p] == 0 and frame_nbytes[p] == 0:
            continue
        last = first + counts[p]
        reason, segment = _unseal_frame(
            buffer[begin : begin + frame_nbytes[p]],
            begin,
            counts[p],
            layouts[p],
            call,
            num_rows[first:last],
            codecs[first:last],
            at[first:last],
            nbytes[first:last],
        )
        if reason != OK:
            return reason, p, first + segment if segment >= 0 else -1
        begin += frame_nbytes[p]
        first = last
    return OK, -1, -1


@kernel
def compact(buffer, old, new, nbytes):
    """Move segment s from old[s] down to new[s] <= old[s], in order."""
    for s in range(old.size):
        if old[s] == new[s]:
            continue
        source = buffer[old[s] : old[s] + nbytes[s]].view(np.uint64)
        target = buffer[new[s] : new[s] + nbytes[s]].view(np.uint64)
        copy(source, target)
