"""The bytes before the low bits, in numba: varints and the weights of the classes."""

# mypy: ignore-errors
import numpy as np

from trec_qcomm.jit import inner
from trec_qcomm.ops.rans.classes import bit_length, coarse

# Without reference counts: see ops.bitpack.cpu.
_inner = inner(_nrt=False)
_inline = inner(forceinline=True, _nrt=False)


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
    """Return (value, place after it), or (0, -1) if it has no end or takes over 5 bytes."""
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
