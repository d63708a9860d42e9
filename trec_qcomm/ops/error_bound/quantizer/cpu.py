"""The quantizer of ops.error_bound in numba: rows of a segment <-> zigzagged indices.

Values are numbered row by row, and visited in groups of 1024 that stay in the first cache.

The check of a group in float32 is one-sided: rounding is monotone, so |x - decoded| < bound in
float32 holds in exact arithmetic, too. Only a group with a value at or beyond the bound is checked
again, value by value in float64, where the difference is exact whenever it matters.

Every expression is cast to 32 bits. Otherwise numba would widen integers, and halve the number of
values in a vector register.
"""

import numpy as np

from trec_qcomm.jit import inner
from trec_qcomm.ops.bitpack import cpu as bitpack
from trec_qcomm.ops.bitpack.cpu import GROUP, load_uint64
from trec_qcomm.ops.rowwise.cpu import key_range, value_of

_MAGIC = np.float32(1.5 * 2**23)  # adding it rounds |y| <= 2^22 to an integer, half to even
_MAGIC_BITS = np.int32(0x4B400000)
_MAX_WORD = np.uint32(2**23)  # zigzagged 2^22
_MAGNITUDE = np.int32(0x7FFFFFFF)
_KEY_INF, _KEY_NEG_INF = np.int32(0x7F800000), np.int32(-0x7F800001)
MIN_NORMAL, MAX = np.float32(2.0**-126), np.float32(3.4028234663852886e38)

# Without reference counts: see ops.bitpack.cpu.
_inner = inner(_nrt=False)


@_inner
def _copy(source, source_at, target, target_at, n):
    """Copy n values of source from source_at on to target from target_at on."""
    for i in range(n):
        target[np.uint64(target_at) + np.uint64(i)] = source[np.uint64(source_at) + np.uint64(i)]


@_inner
def gather(values, start, stride, dim, first, n, x):
    """Copy values first .. first + n - 1 of a segment, numbered row by row, to x[:n]."""
    row, d, k = first // dim, first % dim, 0
    while k < n:
        width = min(dim - d, n - k)
        _copy(values, start + row * stride + d, x, k, width)
        k, d, row = k + width, 0, row + 1


@_inner
def scatter(x, n, start, stride, dim, first, out):
    """Invert `gather`: copy x[:n] to values first .. first + n - 1 of a segment in out."""
    row, d, k = first // dim, first % dim, 0
    while k < n:
        width = min(dim - d, n - k)
        _copy(x, k, out, start + row * stride + d, width)
        k, d, row = k + width, 0, row + 1


@_inner
def _finite_range_by_value(values, start, stride, dim, num_values):
    """Do what `finite_range` does where some values are not finite."""
    lo, hi = np.float32(np.inf), np.float32(-np.inf)
    for k in range(num_values):
        x = values[start + k // dim * stride + k % dim]
        if np.isfinite(x):
            lo, hi = min(lo, x), max(hi, x)
    return lo, hi


@_inner
def finite_range(values, start, stride, dim, num_values):
    """Return (lowest, highest) finite value of a segment, float32; (inf, -inf) if none is."""
    lo, hi, words = _KEY_INF, _KEY_NEG_INF, values.view(np.int32)
    if stride == dim:
        lo, hi = key_range(words, np.uint64(start), num_values)
    else:
        for row in range(num_values // dim):
            begin = start + row * stride
            row_lo, row_hi = key_range(words, np.uint64(begin), dim)
            lo, hi = min(lo, row_lo), max(hi, row_hi)
    if lo <= _KEY_NEG_INF or hi >= _KEY_INF:
        return _finite_range_by_value(values, start, stride, dim, num_values)
    return value_of(lo), value_of(hi)


@_inner
def choose_step(bound, width):
    """Return (bound, step, 1 / step), float32, of a float64 bound; all 0 if no step is usable.

    Args: width: max - min of the finite values; 0 means that no step is needed.
    """
    rounded = np.float32(min(bound, np.float64(MAX)))
    if np.float64(rounded) > bound:
        rounded = np.int32(np.float32(rounded).view(np.int32) - np.int32(1)).view(np.float32)
    step = np.float32(rounded * np.float32(2))
    if width == 0 or not MIN_NORMAL <= step <= MAX:
        return np.float32(0), np.float32(0), np.float32(0)
    inverse = np.float32(np.float32(1) / step)
    if inverse < MIN_NORMAL:
        return np.float32(0), np.float32(0), np.float32(0)
    return rounded, step, inverse


@_inner
def _quantize_unchecked(x, at, step, inverse, words):
    """Fill words with the zigzagged indices of x[at : at + 1024], float32.

    Returns: (all words or-ed, the bits of the largest |x - decoded|, NaN being the largest).
    """
    all_bits, max_error = np.uint32(0), np.int32(0)
    for k in range(GROUP):
        value = np.float32(x[np.uint64(at) + np.uint64(k)])
        t = np.float32(np.float32(value * inverse) + _MAGIC)
        q = np.int32(t.view(np.int32) - _MAGIC_BITS)
        error = np.float32(value - np.float32(np.float32(t - _MAGIC) * step))
        word = np.uint32(np.int32(q << np.int32(1)) ^ np.int32(q >> np.int32(31)))
        words[k] = word
        all_bits = np.uint32(all_bits | word)
        max_error = max(max_error, np.int32(error.view(np.int32) & _MAGNITUDE))
    return all_bits, max_error


@_inner
def _flag_verbatim(x, at, bound, step, words, flags):
    """Set flags [1024] uint8 to 1 where a value may not be sent as its index.

    Exact: see the head of this file.
    """
    for k in range(GROUP):
        decoded = np.float32(np.float32(bitpack.index_of(words[k])) * step)
        error = abs(np.float64(x[np.uint64(at) + np.uint64(k)]) - np.float64(decoded))
        flags[k] = np.uint8(words[k] > _MAX_WORD) | np.uint8(not error <= np.float64(bound))


@_inner
def _extract_verbatim(x, at, first, bound, step, words, flags, positions, num_verbatim):
    """Make the values that break the rule verbatim: their word becomes 0, their position is kept.

    Returns: (all words or-ed, the new num_verbatim, or -1 if positions has no room).
    """
    _flag_verbatim(x, at, bound, step, words, flags)
    for begin in range(0, GROUP, 8):
        if load_uint64(flags, begin):
            for k in range(begin, begin + 8):
                if flags[k]:
                    if num_verbatim == positions.size:
                        return np.uint32(0), np.int64(-1)
                    positions[num_verbatim] = first + k
                    num_verbatim += 1
                    words[k] = 0
    all_bits = np.uint32(0)
    for k in range(GROUP):
        all_bits = np.uint32(all_bits | words[k])
    return all_bits, num_verbatim


@_inner
def quantize_group(
    values, start, stride, dim, first, n, bound, step, inverse, x, words, flags,
    positions, num_verbatim,
):  # fmt: skip
    """Quantize n values of a segment, from number `first` on, and keep the verbatim positions.

    Args:    x, words, flags: [1024] scratch.  positions: uint32, num_verbatim of them in use.
    Returns: (all words or-ed, the new num_verbatim, or -1 if positions has no room).
    """
    if stride == dim and n == GROUP:
        return _quantize_contiguous(
            values, start + first, first, bound, step, inverse, words, flags, positions,
            num_verbatim,
        )  # fmt: skip
    gather(values, start, stride, dim, first, n, x)
    for k in range(n, GROUP):
        x[k] = 0
    return _quantize_contiguous(
        x, 0, first, bound, step, inverse, words, flags, positions, num_verbatim
    )


@_inner
def _quantize_contiguous(x, at, first, bound, step, inverse, words, flags, positions, num_verbatim):
    """Do what `quantize_group` does for a full group that lies at x[at : at + 1024]."""
    all_bits, max_error = _quantize_unchecked(x, at, step, inverse, words)
    if max_error >= np.float32(bound).view(np.int32) or all_bits > _MAX_WORD:
        return _extract_verbatim(x, at, first, bound, step, words, flags, positions, num_verbatim)
    return all_bits, num_verbatim


@_inner
def count_flushed(values, start, stride, dim, num_values, step):
    """Return the number of flushed values of a segment: not 0, and below 1/256 of the step.

    They count if there are at least 3, and if they are three quarters of the nonzero values. It
    looks at 16 values first, and at all values if these look flushed.
    """
    limit = np.float32(np.float32(step) * np.float32(1 / 256)).view(np.int32)
    stride_of_samples = max(num_values // 16, 1) | 1  # odd, so that all columns are seen
    rows, columns = stride_of_samples // dim, stride_of_samples % dim
    k, row, d = np.int64(0), np.int64(0), np.int64(0)
    num_small, num_other = np.int64(0), np.int64(0)
    while k < num_values:
        magnitude = np.float32(values[start + row * stride + d]).view(np.int32) & _MAGNITUDE
        num_small += (magnitude < limit) & (magnitude > 0)
        num_other += magnitude >= limit
        k, row, d = k + stride_of_samples, row + rows, d + columns
        if d >= dim:
            row, d = row + 1, d - dim
    if num_small == 0 or num_small < 3 * num_other:
        return np.int64(0)
    num_small, num_other = np.int64(0), np.int64(0)
    for row in range(num_values // dim):
        for d in range(dim):
            magnitude = np.float32(values[start + row * stride + d]).view(np.int32) & _MAGNITUDE
            num_small += (magnitude < limit) & (magnitude > 0)
            num_other += magnitude >= limit
    return num_small if num_small >= max(3, 3 * num_other) else np.int64(0)


@_inner
def dequantize(words, step, x, at, n):
    """Set x[at : at + n] to what the receiver decodes from n words, uint8 or uint32."""
    for k in range(n):
        value = np.float32(np.float32(bitpack.index_of(words[k])) * step)
        x[np.uint64(at) + np.uint64(k)] = value
