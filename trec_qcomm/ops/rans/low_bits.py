"""What is stored beside the symbols, in numba: low bits, escaped indices and 32-bit numbers."""

# mypy: ignore-errors
import numpy as np

from trec_qcomm.jit import inner

# Without reference counts: see ops.bitpack.cpu.
_inner = inner(_nrt=False)
_inline = inner(forceinline=True, _nrt=False)

_ANY_ESCAPE = np.int32(-1 << 30)  # stream.ESCAPED plus low bits is below this, every index above


@_inner
def put_low_bits(q, base, shift, out):
    """Write the low bits to out, a plane for each bit.

    Bit t of byte j of a plane is that of index t * stride + j.
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
    """Replace what the escape symbol decoded to by the escaped indices in data.

    Returns: False if their number is not that of the escape symbols.
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
