"""Read and write the bytes of a segment that are not entropy coded, in numba.

They are numbers and the weights of the classes, then low bits and escaped indices.
"""

# mypy: ignore-errors
import numpy as np

from trec_qcomm.jit import inner
from trec_qcomm.ops.rans.classes import bit_length, coarse

# Without reference counts: see ops.bitpack.cpu.
_inner = inner(_nrt=False)
_inline = inner(forceinline=True, _nrt=False)

_ANY_ESCAPE = np.int32(-1 << 30)  # stream.ESCAPED plus low bits is below this, every index above


@_inline
def varint_nbytes(n):
    """Return how many bytes `put_varint` writes."""
    return max(1, (bit_length(n) + 6) // 7)


@_inline
def _peek(data, at):
    """Return 24 bits or more of data from bit `at` on, lowest first; those behind its end are 0.

    The caller finds out by comparing `at` with the size of data.
    """
    value, byte = np.int64(0), at >> 3
    for k in range(min(4, data.size - byte)):
        value |= np.int64(data[byte + k]) << (8 * k)
    return value >> (at & 7)


@_inner
def put_varint(out, at, value):
    """Write value, seven bits a byte, to out[at:]. Return the place after it."""
    while value >= 128:
        out[at] = (value & 127) | 128
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@_inner
def get_varint(data, at):
    """Return (value, place after it), or (0, -1) if it has no end or takes more than 5 bytes."""
    value = np.int64(0)
    for k in range(5):
        if at < 0 or at + k >= data.size:
            break
        value |= np.int64(data[at + k] & 127) << (7 * k)
        if data[at + k] < 128:
            return value, at + k + 1
    return np.int64(0), -1


@_inner
def put_weights(counts, out, at):
    """Code the weights of `counts` from out[at] on, and replace the counts by these weights.

    Returns: the place after them.
    """
    before, held, num_held = 0, 0, 0
    for s in range(counts.size):
        weight = coarse(counts[s])
        length = bit_length(weight)
        delta = length - before
        code = (delta << 1 ^ delta >> 63) + 1
        num_low = bit_length(code) - 1
        sent = min(3, max(0, length - 1))
        low = code & ((1 << num_low) - 1)
        high = weight >> max(0, length - 1 - sent) & ((1 << sent) - 1)
        held |= ((1 << num_low) | low << (num_low + 1) | high << (2 * num_low + 1)) << num_held
        num_held += 2 * num_low + 1 + sent
        while num_held >= 8:
            out[at] = held & 255
            held, num_held, at = held >> 8, num_held - 8, at + 1
        counts[s], before = weight, length
    if num_held:
        out[at] = held
        at += 1
    return at


@_inner
def get_weights(data, at, weights):
    """Read the weights from data[at] on.

    Returns: the place after them, or -1: data ends, or a bit length is one that no encoder writes.
    """
    length, at = 0, 8 * at
    for s in range(weights.size):
        bits, num_low = _peek(data, at), 0
        while num_low < 6 and bits >> num_low & 1 == 0:
            num_low += 1
        code = (bits >> (num_low + 1) & ((1 << num_low) - 1)) + (1 << num_low) - 1
        length += (code >> 1) ^ -(code & 1)
        if num_low > 5 or length < 0 or length > 31:
            return -1
        sent = min(3, max(0, length - 1))
        high = bits >> (2 * num_low + 1) & ((1 << sent) - 1)
        weights[s] = (high + (1 << sent)) << max(0, length - 1 - sent) if length else 0
        at += 2 * num_low + 1 + sent
        if at > 8 * data.size:
            return -1
    return (at + 7) // 8


@_inner
def put_low_bits(q, base, shift, out):
    """Write the low bits to out, a plane for each bit.

    Bit t of byte j of a plane belongs to index t * stride + j.
    """
    stride = (q.size + 7) // 8
    base = np.int32(base)
    out[:] = 0
    for plane in range(shift):
        bits = out[plane * stride : (plane + 1) * stride]
        for t in range(8):
            part = q[t * stride : min((t + 1) * stride, q.size)]
            one, place = np.uint8(1 << t), np.int32(1 << plane)
            for j in range(part.size):
                bits[j] |= one if (part[j] - base) & place else np.uint8(0)


@_inner
def get_low_bits(data, shift, q):
    """Add the low bits of each index to q."""
    stride = (q.size + 7) // 8
    for plane in range(shift):
        bits = data[plane * stride : (plane + 1) * stride]
        for t in range(8):
            part = q[t * stride : min((t + 1) * stride, q.size)]
            one, place = np.uint8(1 << t), np.int32(1 << plane)
            for j in range(part.size):
                part[j] += place if bits[j] & one else np.int32(0)


@_inline
def put32(out, at, value):
    """Write value to out[at : at + 4], little-endian."""
    for k in range(4):
        out[at + k] = np.uint8((value >> (8 * k)) & 255)


@_inline
def get32(data, at):
    """Read a number from data[at : at + 4], little-endian."""
    value = np.int64(0)
    for k in range(4):
        value |= np.int64(data[at + k]) << (8 * k)
    return value


@_inner
def put_escapes(q, base, shift, num_classes, out, at):
    """Write the escaped indices of q to out[at:], in order, as int32."""
    base, shift, num_classes = np.int32(base), np.uint32(shift), np.uint32(num_classes)
    for begin in range(0, q.size, 64):
        block, largest = q[begin : begin + 64], np.uint32(0)
        for i in range(block.size):
            largest = max(largest, np.uint32(block[i] - base))
        if largest >> shift < num_classes:
            continue  # the usual case, as escapes are rare; the loop above is vectorized
        for i in range(block.size):
            if np.uint32(block[i] - base) >> shift >= num_classes:
                put32(out, at, np.int64(block[i]))
                at += 4


@_inner
def get_escapes(data, q):
    """Replace decoded escape symbols by the escaped indices in data.

    Returns: False if the numbers of escaped indices and escape symbols differ.
    """
    at = 0
    for begin in range(0, q.size, 64):
        block, smallest = q[begin : begin + 64], np.int32(0)
        for i in range(block.size):
            smallest = min(smallest, block[i])
        if smallest > _ANY_ESCAPE:
            continue
        for i in range(block.size):
            if block[i] < _ANY_ESCAPE:
                if at >= data.size:
                    return False
                block[i] = np.int32(get32(data, at))
                at += 4
    return at == data.size
