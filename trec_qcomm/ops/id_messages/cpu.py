"""Kernels of messages of ids for the CPU, in numba.

They raise nothing; `unseal` returns the kind of error. Shapes: P messages.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.frames.cpu import checksum

OK, BAD_SIZE, BAD_MAGIC, BAD_VERSION, BAD_CHECKSUM, BAD_COUNT, BAD_FLAGS = range(7)
HEADER_NBYTES = 32

MAGIC = np.uint32(0x44495154)  # b"TQID"
VERSION = np.uint32(3)


@kernel
def seal(buffer, nbytes, counts, num_bags, flags):
    """Write the headers of messages that lie one after the other.

    Args:
        nbytes, counts: [P] int64, sizes and numbers of segments; either both are 0 or neither is.
        num_bags: bags of every segment.  flags: bits of the header.
    """
    begin = 0
    for p in range(nbytes.size):
        if nbytes[p] == 0:
            continue
        words = buffer[begin : begin + nbytes[p]].view(np.uint64)
        fields = words.view(np.uint32)
        fields[0], fields[1] = MAGIC, VERSION | np.uint32(flags << 16)
        fields[2], fields[3] = np.uint32(counts[p]), np.uint32(num_bags)
        words[2], words[3] = np.uint64(nbytes[p]), np.uint64(0)
        words[3] = checksum(words)
        begin += nbytes[p]


@inner
def _unseal_message(data, count, flags):
    """Return (reason, size, bags of every segment) of the message that data begin with."""
    if data.size < HEADER_NBYTES:
        return BAD_SIZE, 0, 0
    fields = data[:HEADER_NBYTES].view(np.uint32)
    nbytes = np.int64(fields[4]) | (np.int64(fields[5]) << 32)
    if fields[0] != MAGIC:
        return BAD_MAGIC, 0, 0
    if fields[1] & np.uint32(0xFFFF) != VERSION:
        return BAD_VERSION, 0, 0
    if nbytes % 8 or not HEADER_NBYTES <= nbytes <= data.size:
        return BAD_SIZE, 0, 0
    words = data[:nbytes].view(np.uint64)
    if checksum(words) != words[3]:
        return BAD_CHECKSUM, 0, 0
    if np.int64(fields[1] >> np.uint32(16)) != flags:
        return BAD_FLAGS, 0, 0
    if np.int64(fields[2]) != count:
        return BAD_COUNT, 0, 0
    return OK, nbytes, np.int64(fields[3])


@kernel
def unseal(buffer, count, flags, begins, ends, num_bags):
    """Check P messages of `count` segments each, which fill the buffer; write their places.

    Args: flags: flags that each message must have.  begins, ends, num_bags: [P] int64, written; a
        message begins after its header.
    Returns: (OK or the kind of error, the message).
    """
    at = np.int64(0)
    for p in range(begins.size):
        reason, nbytes, num_bags[p] = _unseal_message(buffer[at:], count, flags)
        if reason != OK:
            return reason, p
        begins[p], ends[p] = at + HEADER_NBYTES, at + nbytes
        at += nbytes
    return (OK, -1) if at == buffer.size else (BAD_SIZE, begins.size - 1)
