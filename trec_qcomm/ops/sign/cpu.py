"""Signs and a magnitude a row, in numba. Same bytes as reference.py."""

import numpy as np

from trec_qcomm.jit import inner, kernel

_FLT_MAX = np.float32(3.4028234663852886e38)
_NAN = np.int32(0x7FC00000)


@inner
def _special(row):
    """Return the bits of +inf or -inf where no other value of the row is not finite; else of
    NaN."""
    has_plus, has_minus, has_nan = False, False, False
    for d in range(row.size):
        has_nan |= row[d] != row[d]
        has_plus |= row[d] > _FLT_MAX
        has_minus |= row[d] < -_FLT_MAX
    if has_nan or (has_plus and has_minus):
        return _NAN
    return np.int32(0x7F800000) if has_plus else np.int32(-0x800000)


@kernel
def encode(values, offsets, start, stride, dim, payload, at, nbytes):
    """Write the segments. nbytes: [S] int64, the size of each."""
    words, width = values.view(np.int32), (dim + 7) // 8
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        data = payload[at[s] : at[s] + nbytes[s]]
        scales = data[: 4 * n].view(np.int32)
        data[4 * n :] = 0
        for i in range(n):
            begin = start[s] + i * stride[s]
            row, bits = values[begin : begin + dim], words[begin : begin + dim]
            total = np.float64(0)
            for d in range(dim):
                total += np.float64(abs(row[d]))
            finite = total <= np.float64(_FLT_MAX) * dim
            mean = np.float32(total / dim)
            scales[i] = mean.view(np.int32) if finite else _special(row)
            place = 4 * n + i * width
            for d in range(dim):
                flag = bits[d] < 0 if finite else not abs(row[d]) <= _FLT_MAX
                data[place + d // 8] |= np.uint8(np.uint8(flag) << np.uint8(d % 8))


@kernel
def decode(payload, at, offsets, start, stride, dim, out):
    """Write the rows; return the first segment with a magnitude below 0, or -1."""
    width = (dim + 7) // 8
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        data = payload[at[s] : at[s] + n * (4 + width)]
        scales = data[: 4 * n].view(np.float32)
        signs = data[: 4 * n].view(np.int32)
        for i in range(n):
            scale = scales[i]
            finite = abs(scale) <= _FLT_MAX
            if finite and signs[i] < 0:
                return s
            zero = scale if finite else np.float32(0)
            one = -scale if finite else scale
            begin, place = np.uint64(start[s] + i * stride[s]), np.uint64(at[s] + 4 * n + i * width)
            for b in range(width):
                byte = payload[place + np.uint64(b)]
                for d in range(8 * b, min(8 * b + 8, dim)):
                    bit = (byte >> np.uint8(d % 8)) & np.uint8(1)
                    out[begin + np.uint64(d)] = one if bit else zero
    return -1
