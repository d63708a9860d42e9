"""rANS in numba. Same bytes as reference.py, which says what they mean.

plan.py chooses the classes, table.py writes the table, words.py is the coder of a stream; here is
the layout. N indices, C streams of K states, W bytes.
"""

import numpy as np
from numba import njit

from trec_qcomm.ops.rans.plan import (
    MAX_SHIFT,
    frequencies_of,
    lanes_of,
    num_streams,
    plan,
    table_log,
    table_nbits,
)
from trec_qcomm.ops.rans.table import (
    get_varint,
    get_weights,
    put_varint,
    put_weights,
    varint_nbytes,
)
from trec_qcomm.ops.rans.words import LOWER, decode_words, dividers, encode_words, fill_table

_ANY_ESCAPE = np.int32(-1 << 30)  # words.ESCAPED plus low bits lies below, every index above


@njit(nogil=True, cache=True)
def _put_planes(q, base, shift, out):
    """Low bits, a plane a bit: bit t of byte j is that of index t * stride + j."""
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


@njit(nogil=True, cache=True)
def _get_planes(data, shift, q):
    stride = (q.size + 7) // 8
    for plane in range(shift):
        bits = data[plane * stride : (plane + 1) * stride]
        for t in range(8):
            part = q[t * stride : min((t + 1) * stride, q.size)]
            one, place = np.uint8(1 << t), np.int32(1 << plane)
            for j in range(part.size):
                part[j] += place if bits[j] & one else np.int32(0)


@njit(forceinline=True)
def _put32(out, at, value):
    for k in range(4):
        out[at + k] = np.uint8((value >> (8 * k)) & 255)


@njit(forceinline=True)
def _get32(data, at):
    value = np.int64(0)
    for k in range(4):
        value |= np.int64(data[at + k]) << (8 * k)
    return value


@njit(nogil=True, cache=True)
def _put_escapes(q, base, shift, num_classes, out, at):
    base, shift, num_classes = np.int32(base), np.uint32(shift), np.uint32(num_classes)
    for begin in range(0, q.size, 64):
        block, most = q[begin : begin + 64], np.uint32(0)
        for i in range(block.size):
            most = max(most, np.uint32(block[i] - base))
        if most >> shift < num_classes:
            continue  # they are rare: most blocks end here, and this loop is vectorized
        for i in range(block.size):
            if np.uint32(block[i] - base) >> shift >= num_classes:
                _put32(out, at, np.int64(block[i]))
                at += 4


@njit(nogil=True, cache=True)
def _get_escapes(data, q):
    """False if there are fewer or more of them than slots of the escape symbol were used."""
    at = 0
    for begin in range(0, q.size, 64):
        block, least = q[begin : begin + 64], np.int32(0)
        for i in range(block.size):
            least = min(least, block[i])
        if least > _ANY_ESCAPE:
            continue
        for i in range(block.size):
            if block[i] < _ANY_ESCAPE:
                if at >= data.size:
                    return False
                block[i] = np.int32(_get32(data, at))
                at += 4
    return at == data.size


@njit(nogil=True, cache=True)
def encode_segment(q, dim, out):
    """Write the indices q [N] int32 to out [C] uint8, 2-byte aligned. Returns the bytes used, or
    -1 where they are more than C. `dim` is the other encoders'."""
    if q.size == 0:
        return 0
    counts = np.zeros(257, np.int64)
    base, shift, size, escapes, _ = plan(q, counts)
    zigzag = base << 1 ^ base >> 63
    head = 2 + varint_nbytes(zigzag) + varint_nbytes(escapes)
    num_symbols = size + (escapes > 0)
    planes_at = head
    if num_symbols > 1:
        planes_at += (table_nbits(counts[:size]) + 7) // 8
    lanes, streams = lanes_of(q.size), num_streams(q.size)
    escapes_at = planes_at + shift * ((q.size + 7) // 8)
    escapes_at += escapes_at & 1
    states_at = escapes_at + 4 * escapes
    words_at = states_at
    if num_symbols > 1:
        words_at += 4 * (lanes * streams + streams - 1)
    if words_at > out.size:
        return -1
    out[:escapes_at] = 0
    out[0], out[1] = shift, size - 1
    put_varint(out, put_varint(out, 2, zigzag), escapes)
    _put_planes(q, base, shift, out[planes_at : planes_at + shift * ((q.size + 7) // 8)])
    if num_symbols == 1:
        return words_at
    put_weights(counts[:size], out, 8 * head)
    counts[size] = escapes
    log = table_log(q.size, num_symbols)
    frequencies = counts[:num_symbols]
    frequencies_of(frequencies, log)
    divide, step = np.empty(257, np.uint64), np.empty(257, np.uint64)
    dividers(frequencies, log, divide, step)
    if escapes:
        _put_escapes(q, base, shift, size, out, escapes_at)
    words = out[words_at : out.size - (out.size & 1)].view(np.uint16)
    first, counts_at = words.size, states_at + 4 * lanes * streams
    for c in range(streams - 1, -1, -1):
        states = np.full(lanes, LOWER, np.uint64)
        own = q[c << 16 : q.size if c == streams - 1 else (c + 1) << 16]
        end = first
        first = encode_words(own, base, shift, num_symbols - 1, divide, step, words[:end], states)
        if first < 0:
            return -1
        for k in range(lanes):
            _put32(out, states_at + 4 * (c * lanes + k), np.int64(states[k]))
        if c < streams - 1:
            _put32(out, counts_at + 4 * c, end - first)
    num_words = words.size - first
    for k in range(num_words):  # forwards: the places may overlap
        words[k] = words[first + k]
    return words_at + 2 * num_words


@njit(nogil=True, cache=True)
def _decode_symbols(data, at, num_symbols, log, frequencies, base, shift, num_classes, q):
    """`data` from the states on, at `at`."""
    lanes, streams = lanes_of(q.size), num_streams(q.size)
    counts_at = at + 4 * lanes * streams
    words_at = counts_at + 4 * (streams - 1)
    if words_at > data.size or (data.size - words_at) % 2:
        return False
    table, states = np.empty(1 << log, np.uint64), np.empty(lanes, np.uint64)
    fill_table(frequencies[:num_symbols], log, base, shift, num_classes, table)
    words = data[words_at:].view(np.uint16)
    for c in range(streams):
        for k in range(lanes):
            states[k] = np.uint64(_get32(data, at + 4 * (c * lanes + k)))
            if states[k] < LOWER or states[k] >= np.uint64(1 << 31):
                return False
        num_words, end = words.size, q.size
        if c < streams - 1:
            num_words, end = _get32(data, counts_at + 4 * c), (c + 1) << 16
        if num_words > words.size:
            return False
        if not decode_words(words[:num_words], table, log, states, q[c << 16 : end]):
            return False
        words = words[num_words:]
    return True


@njit(nogil=True, cache=True)
def decode_segment(data, dim, q):
    """Fill q [N] int32 from data [W] uint8, 2-byte aligned. False if no encoder writes the data."""
    if q.size == 0 or data.size < 4:
        return q.size == data.size
    shift, size = np.int64(data[0]), np.int64(data[1]) + 1
    zigzag, at = get_varint(data, 2)
    escapes, at = get_varint(data, at)
    if shift > MAX_SHIFT or at < 0 or zigzag >= 1 << 25:
        return False
    if escapes >= q.size:
        return False
    base = zigzag >> 1 ^ -(zigzag & 1)
    num_symbols = size + (escapes > 0)
    log = table_log(q.size, num_symbols)
    frequencies = np.zeros(257, np.int64)
    if num_symbols > 1:
        end = get_weights(data, 8 * at, frequencies[:size])
        if end < 0 or (frequencies.sum() == 0 and escapes == 0):
            return False
        at = (end + 7) // 8
        if escapes:
            frequencies[size] = escapes
        frequencies_of(frequencies[:num_symbols], log)
    planes_at, at = at, at + shift * ((q.size + 7) // 8)
    escapes_at = at + (at & 1)
    at = escapes_at + 4 * escapes
    if at > data.size:
        return False
    if num_symbols == 1:
        q[:] = base
        if at != data.size:
            return False
    elif not _decode_symbols(data, at, num_symbols, log, frequencies, base, shift, size, q):
        return False
    _get_planes(data[planes_at:], shift, q)
    return escapes == 0 or _get_escapes(data[escapes_at : escapes_at + 4 * escapes], q)
