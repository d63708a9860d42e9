"""rANS in numba. Same bytes as reference.py, which says what they mean.

Here is the layout of a segment. classes.py chooses its classes, header.py codes numbers and
weights, stream.py is the coder of a stream. Shapes: N indices, C streams of K states, W bytes.
"""

import numpy as np

from trec_qcomm.kernels import inner, kernel
from trec_qcomm.ops.rans.classes import (
    MAX_SHIFT,
    choose_classes,
    frequencies_of,
    num_lanes,
    num_streams,
    table_log,
    table_nbits,
)
from trec_qcomm.ops.rans.header import (
    get_varint,
    get_weights,
    put_varint,
    put_weights,
    varint_nbytes,
)
from trec_qcomm.ops.rans.stream import (
    LOWER,
    fill_decoder_table,
    fill_encoder_table,
    pop_stream,
    push_stream,
)

_ANY_ESCAPE = np.int32(-1 << 30)  # stream.ESCAPED plus low bits is below this, every index above


@inner
def _put_low_bits(q, base, shift, out):
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


@inner
def _get_low_bits(data, shift, q):
    """Add the low bits of each index to q."""
    stride = (q.size + 7) // 8
    for plane in range(shift):
        bits = data[plane * stride : (plane + 1) * stride]
        for t in range(8):
            part = q[t * stride : min((t + 1) * stride, q.size)]
            one, place = np.uint8(1 << t), np.int32(1 << plane)
            for j in range(part.size):
                part[j] += place if bits[j] & one else np.int32(0)


@inner(forceinline=True)
def _put32(out, at, value):
    """Write value to out[at : at + 4], little-endian."""
    for k in range(4):
        out[at + k] = np.uint8((value >> (8 * k)) & 255)


@inner(forceinline=True)
def _get32(data, at):
    """Read a number from data[at : at + 4], little-endian."""
    value = np.int64(0)
    for k in range(4):
        value |= np.int64(data[at + k]) << (8 * k)
    return value


@inner
def _put_escapes(q, base, shift, num_classes, out, at):
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
                _put32(out, at, np.int64(block[i]))
                at += 4


@inner
def _get_escapes(data, q):
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
                block[i] = np.int32(_get32(data, at))
                at += 4
    return at == data.size


@kernel
def encode_segment(q, dim, out):
    """Write the indices q [N] int32 to out [C] uint8, 2-byte aligned.

    `dim` is not used; encoders share one signature.

    Returns: the number of bytes used, or -1 where C is too small.
    """
    if q.size == 0:
        return 0
    counts = np.zeros(257, np.int64)
    base, shift, num_classes, num_escapes, _ = choose_classes(q, counts)
    zigzag = base << 1 ^ base >> 63
    weights_at = 2 + varint_nbytes(zigzag) + varint_nbytes(num_escapes)
    num_symbols = num_classes + (num_escapes > 0)
    low_bits_at = weights_at
    if num_symbols > 1:
        low_bits_at += (table_nbits(counts[:num_classes]) + 7) // 8
    lanes, streams = num_lanes(q.size), num_streams(q.size)
    escapes_at = low_bits_at + shift * ((q.size + 7) // 8)
    escapes_at += escapes_at & 1
    states_at = escapes_at + 4 * num_escapes
    words_at = states_at
    if num_symbols > 1:
        words_at += 4 * (lanes * streams + streams - 1)
    if words_at > out.size:
        return -1
    out[:escapes_at] = 0
    out[0], out[1] = shift, num_classes - 1
    put_varint(out, put_varint(out, 2, zigzag), num_escapes)
    _put_low_bits(q, base, shift, out[low_bits_at : low_bits_at + shift * ((q.size + 7) // 8)])
    if num_symbols == 1:
        return words_at
    put_weights(counts[:num_classes], out, 8 * weights_at)
    counts[num_classes] = num_escapes
    log = table_log(q.size, num_symbols)
    frequencies = counts[:num_symbols]
    frequencies_of(frequencies, log)
    inverses, updates = np.empty(257, np.uint64), np.empty(257, np.uint64)
    fill_encoder_table(frequencies, log, inverses, updates)
    if num_escapes:
        _put_escapes(q, base, shift, num_classes, out, escapes_at)
    words = out[words_at : out.size - (out.size & 1)].view(np.uint16)
    first_word, counts_at = words.size, states_at + 4 * lanes * streams
    for stream in range(streams - 1, -1, -1):
        states = np.full(lanes, LOWER, np.uint64)
        stream_indices = q[stream << 16 : q.size if stream == streams - 1 else (stream + 1) << 16]
        end = first_word
        first_word = push_stream(
            stream_indices, base, shift, num_symbols - 1, inverses, updates, words[:end], states
        )
        if first_word < 0:
            return -1
        for k in range(lanes):
            _put32(out, states_at + 4 * (stream * lanes + k), np.int64(states[k]))
        if stream < streams - 1:
            _put32(out, counts_at + 4 * stream, end - first_word)
    num_words = words.size - first_word
    for k in range(num_words):  # forwards, as source and target may overlap
        words[k] = words[first_word + k]
    return words_at + 2 * num_words


@inner
def _decode_symbols(data, at, num_symbols, log, frequencies, base, shift, num_classes, q):
    """Decode the symbols of all streams into q: the first index of each class, or ESCAPED.

    Args:    at: place in data where the states begin.
    Returns: False if no encoder writes the data.
    """
    lanes, streams = num_lanes(q.size), num_streams(q.size)
    counts_at = at + 4 * lanes * streams
    words_at = counts_at + 4 * (streams - 1)
    if words_at > data.size or (data.size - words_at) % 2:
        return False
    table, states = np.empty(1 << log, np.uint64), np.empty(lanes, np.uint64)
    fill_decoder_table(frequencies[:num_symbols], log, base, shift, num_classes, table)
    words = data[words_at:].view(np.uint16)
    for stream in range(streams):
        for k in range(lanes):
            states[k] = np.uint64(_get32(data, at + 4 * (stream * lanes + k)))
            if states[k] < LOWER or states[k] >= np.uint64(1 << 31):
                return False
        num_words, end = words.size, q.size
        if stream < streams - 1:
            num_words, end = _get32(data, counts_at + 4 * stream), (stream + 1) << 16
        if num_words > words.size:
            return False
        if not pop_stream(words[:num_words], table, log, states, q[stream << 16 : end]):
            return False
        words = words[num_words:]
    return True


@kernel
def decode_segment(data, dim, q):
    """Fill q [N] int32 from data [W] uint8, 2-byte aligned. Return False where data is invalid.

    `dim` is not used; encoders share one signature.
    """
    if q.size == 0 or data.size < 4:
        return q.size == data.size
    shift, num_classes = np.int64(data[0]), np.int64(data[1]) + 1
    zigzag, at = get_varint(data, 2)
    num_escapes, at = get_varint(data, at)
    if shift > MAX_SHIFT or at < 0 or zigzag >= 1 << 25:
        return False
    if num_escapes >= q.size:
        return False
    base = zigzag >> 1 ^ -(zigzag & 1)
    num_symbols = num_classes + (num_escapes > 0)
    log = table_log(q.size, num_symbols)
    frequencies = np.zeros(257, np.int64)
    if num_symbols > 1:
        end = get_weights(data, 8 * at, frequencies[:num_classes])
        if end < 0 or (frequencies.sum() == 0 and num_escapes == 0):
            return False
        at = (end + 7) // 8
        if num_escapes:
            frequencies[num_classes] = num_escapes
        frequencies_of(frequencies[:num_symbols], log)
    low_bits_at, at = at, at + shift * ((q.size + 7) // 8)
    escapes_at = at + (at & 1)
    at = escapes_at + 4 * num_escapes
    if at > data.size:
        return False
    if num_symbols == 1:
        q[:] = base
        if at != data.size:
            return False
    elif not _decode_symbols(data, at, num_symbols, log, frequencies, base, shift, num_classes, q):
        return False
    _get_low_bits(data[low_bits_at:], shift, q)
    return num_escapes == 0 or _get_escapes(data[escapes_at : escapes_at + 4 * num_escapes], q)
