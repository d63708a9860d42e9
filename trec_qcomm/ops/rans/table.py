"""The bytes before the states: varints and the weights of the classes. In numba."""

# mypy: ignore-errors
import numpy as np
from numba import njit

from trec_qcomm.ops.rans.plan import bit_length, coarse


@njit(forceinline=True)
def varint_nbytes(n):
    """How many bytes `put_varint` writes."""
    return max(1, (bit_length(n) + 6) // 7)


@njit(nogil=True, cache=True)
def _put_bits(out, at, value, num_bits):
    """Lowest bit first; `at` counts bits, and the bytes were 0."""
    for k in range(num_bits):
        out[(at + k) >> 3] |= np.uint8(((value >> k) & 1) << ((at + k) & 7))
    return at + num_bits


@njit(nogil=True, cache=True)
def _get_bits(data, at, num_bits):
    """Bits beyond the end are 0; the caller sees `at` beyond it."""
    value = np.int64(0)
    for k in range(num_bits):
        if (at + k) >> 3 < data.size:
            value |= np.int64((data[(at + k) >> 3] >> ((at + k) & 7)) & 1) << k
    return value


@njit(nogil=True, cache=True)
def put_varint(out, at, value):
    """Seven bits a byte. Returns the place after it."""
    while value >= 128:
        out[at] = (value & 127) | 128
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@njit(nogil=True, cache=True)
def get_varint(data, at):
    """(value, place after it), or (0, -1) if it does not end, or is longer than 32 bits need."""
    value = np.int64(0)
    for k in range(5):
        if at < 0 or at + k >= data.size:
            break
        value |= np.int64(data[at + k] & 127) << (7 * k)
        if data[at + k] < 128:
            return value, at + k + 1
    return np.int64(0), -1


@njit(nogil=True, cache=True)
def put_weights(counts, out, at):
    """Counts become the weights that the decoder reads. Returns the bit after them."""
    before = 0
    for s in range(counts.size):
        weight = coarse(counts[s])
        length = bit_length(weight)
        delta = length - before
        code = (delta << 1 ^ delta >> 63) + 1
        zeros = bit_length(code) - 1
        at = _put_bits(out, at + zeros, 1, 1)
        at = _put_bits(out, at, code, zeros)
        sent = min(3, max(0, length - 1))
        at = _put_bits(out, at, weight >> max(0, length - 1 - sent), sent)
        counts[s], before = weight, length
    return at


@njit(nogil=True, cache=True)
def get_weights(data, at, weights):
    """Returns the bit after them, or -1: a length that no encoder writes, or the end of data."""
    length = 0
    for s in range(weights.size):
        zeros = 0
        while zeros < 7 and _get_bits(data, at + zeros, 1) == 0:
            zeros += 1
        code = _get_bits(data, at + zeros + 1, zeros) + (1 << zeros) - 1
        at += 2 * zeros + 1
        length += (code >> 1) ^ -(code & 1)
        if zeros > 5 or length < 0 or length > 31 or at > 8 * data.size:
            return -1
        sent = min(3, max(0, length - 1))
        weights[s] = (_get_bits(data, at, sent) + (1 << sent)) << max(0, length - 1 - sent)
        if length == 0:
            weights[s] = 0
        at += sent
    return at if at <= 8 * data.size else -1
