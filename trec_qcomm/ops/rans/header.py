"""The bytes before the low bits, in numba: varints and the weights of the classes."""

# mypy: ignore-errors
import numpy as np

from trec_qcomm.kernels import inner
from trec_qcomm.ops.rans.classes import bit_length, coarse


@inner(forceinline=True)
def varint_nbytes(n):
    """Return how many bytes `put_varint` writes."""
    return max(1, (bit_length(n) + 6) // 7)


@inner
def _put_bits(out, at, value, num_bits):
    """Write num_bits of value, lowest bit first, from bit `at` on, to bytes that were 0.

    Returns: the bit after them.
    """
    for k in range(num_bits):
        out[(at + k) >> 3] |= np.uint8(((value >> k) & 1) << ((at + k) & 7))
    return at + num_bits


@inner
def _get_bits(data, at, num_bits):
    """Read num_bits from bit `at` on; bits behind the end of data are 0.

    The caller finds out by comparing `at` with the size of data.
    """
    value = np.int64(0)
    for k in range(num_bits):
        if (at + k) >> 3 < data.size:
            value |= np.int64((data[(at + k) >> 3] >> ((at + k) & 7)) & 1) << k
    return value


@inner
def put_varint(out, at, value):
    """Write value, seven bits a byte, to out[at:]. Return the place after it."""
    while value >= 128:
        out[at] = (value & 127) | 128
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@inner
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


@inner
def put_weights(counts, out, at):
    """Code the weights of `counts` at bit `at` of out, and replace the counts by these weights.

    Returns: the bit after them.
    """
    before = 0
    for s in range(counts.size):
        weight = coarse(counts[s])
        length = bit_length(weight)
        delta = length - before
        code = (delta << 1 ^ delta >> 63) + 1
        num_low = bit_length(code) - 1
        at = _put_bits(out, at + num_low, 1, 1)
        at = _put_bits(out, at, code, num_low)
        sent = min(3, max(0, length - 1))
        at = _put_bits(out, at, weight >> max(0, length - 1 - sent), sent)
        counts[s], before = weight, length
    return at


@inner
def get_weights(data, at, weights):
    """Read the weights at bit `at` of data.

    Returns: the bit after them, or -1: data ends, or a bit length is one that no encoder writes.
    """
    length = 0
    for s in range(weights.size):
        num_low = 0
        while num_low < 7 and _get_bits(data, at + num_low, 1) == 0:
            num_low += 1
        code = _get_bits(data, at + num_low + 1, num_low) + (1 << num_low) - 1
        at += 2 * num_low + 1
        length += (code >> 1) ^ -(code & 1)
        if num_low > 5 or length < 0 or length > 31 or at > 8 * data.size:
            return -1
        sent = min(3, max(0, length - 1))
        weights[s] = (_get_bits(data, at, sent) + (1 << sent)) << max(0, length - 1 - sent)
        if length == 0:
            weights[s] = 0
        at += sent
    return at if at <= 8 * data.size else -1
