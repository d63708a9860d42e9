"""rANS in numba. Same bytes as reference.py, which says what they mean.

This file has the layout of a segment. classes.py chooses its classes. header.py writes and reads
the parts that are not entropy coded. stream.py is the coder of a stream.
Shapes: N indices, C streams of K states, W bytes.
"""

import numpy as np

from trec_qcomm.jit import inner
from trec_qcomm.ops.bitpack.cpu import index_range
from trec_qcomm.ops.rans.classes import (
    MAX_LOG,
    MAX_SHIFT,
    choose_classes,
    class_scratch,
    frequencies_of,
    num_lanes,
    num_streams,
    table_log,
    table_nbits,
)
from trec_qcomm.ops.rans.header import (
    get32,
    get_escapes,
    get_low_bits,
    get_varint,
    get_weights,
    put32,
    put_escapes,
    put_low_bits,
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

# Without reference counts: see ops.bitpack.cpu.
_inner = inner(_nrt=False)
_inline = inner(forceinline=True, _nrt=False)


@inner
def encoder_scratch(max_values):
    """Return the scratch of `encode`, for segments of at most so many indices."""
    most = min(max_values, 2 * 65536 - 1)  # the indices of a stream
    tables = np.empty(257, np.uint64), np.empty((257, 4), np.uint16)
    words = np.empty(most, np.uint16)
    return class_scratch(), tables, np.empty(most, np.uint16), words, np.empty(32, np.uint32)


@_inner
def encode(q, out, scratch):
    """Write the indices q [N] int32 to out [C] uint8, 2-byte aligned.

    Args:    scratch: arrays of `encoder_scratch`.
    Returns: the number of bytes used, or -1 if C is too small.
    """
    if q.size == 0:
        return 0
    counts, (low, high) = scratch[0][0], index_range(q)
    base, shift, num_classes, num_escapes = choose_classes(
        q, np.int64(low), np.int64(high), scratch[0]
    )
    num_symbols = num_classes + (num_escapes > 0)
    zigzag, low_nbytes = base << 1 ^ base >> 63, shift * ((q.size + 7) // 8)
    low_bits_at = 2 + varint_nbytes(zigzag) + varint_nbytes(num_escapes)
    if num_symbols > 1:
        low_bits_at += (table_nbits(counts[:num_classes]) + 7) // 8
    escapes_at = (low_bits_at + low_nbytes + 1) // 2 * 2
    streams_at = escapes_at + 4 * num_escapes
    if streams_at > out.size:
        return -1
    out[escapes_at - 1] = 0  # padding, where it is no part of what follows
    out[0], out[1] = shift, num_classes - 1
    weights_at = put_varint(out, put_varint(out, 2, zigzag), num_escapes)
    put_low_bits(q, base, shift, out[low_bits_at : low_bits_at + low_nbytes])
    if num_symbols == 1:
        return streams_at
    put_weights(counts[:num_classes], out, weights_at)
    counts[num_classes] = num_escapes
    if num_escapes:
        put_escapes(q, base, shift, num_classes, out, escapes_at)
    return _encode_streams(q, base, shift, counts[:num_symbols], scratch, out, streams_at)


@_inner
def _encode_streams(q, base, shift, weights, scratch, out, at):
    """Write the states, word counts and words of all streams to out[at:].

    Args:    weights: weights of all symbols; they become frequencies.
    Returns: the place after them, or -1 where out is too small.
    """
    _, tables, symbols, words, all_states = scratch
    lanes, streams, log = num_lanes(q.size), num_streams(q.size), table_log(q.size, weights.size)
    frequencies_of(weights, log)
    fill_encoder_table(weights, log, *tables)
    counts_at = at + 4 * lanes * streams
    words_at = counts_at + 4 * (streams - 1)
    states = all_states[:lanes]
    for stream in range(streams):
        end = q.size if stream == streams - 1 else (stream + 1) << 16
        states[:] = LOWER
        part = q[stream << 16 : end]
        num_words = push_stream(
            part, base, shift, weights.size - 1, tables, log, symbols, words, states
        )
        if words_at + 2 * num_words > out.size:
            return -1
        for k in range(lanes):
            put32(out, at + 4 * (stream * lanes + k), np.int64(states[k]))
        if stream < streams - 1:
            put32(out, counts_at + 4 * stream, num_words)
        target = out[words_at : words_at + 2 * num_words].view(np.uint16)
        last_word = np.uint64(num_words - 1)
        for k in range(num_words):  # unsigned, which numba needs not test: vectorized
            target[k] = words[last_word - np.uint64(k)]
        words_at += 2 * num_words
    return words_at


@inner
def decoder_scratch():
    """Return the scratch of `decode`: frequencies, a table, states, and a layout."""
    table = np.empty(1 << MAX_LOG, np.uint64)
    return np.empty(257, np.int64), table, np.empty(32, np.uint32), np.empty(9, np.int64)


@_inner
def decode(data, q, step, scratch):
    """Fill q [N] int32 from data [W] uint8, 2-byte aligned. Return False if data is invalid.

    Args: step: float32 > 0 to make q the bits of float32(index) * step, or 0 for the indices.
          scratch: arrays of `decoder_scratch`.
    """
    if q.size == 0 or data.size < 4:
        return q.size == 0 and data.size == 0
    return _open(data, q.size, scratch) and _decode_all(data, q, step, scratch)


@_inner
def _open(data, num_values, scratch):
    """Read what is before the low bits, find the places of the rest, and make the table.

    The layout becomes: shift, base, number of classes and of escapes, places of low bits, escapes,
    states (-1 if there is a single symbol) and words, and log2 of the size of the table.

    Returns: False if no encoder writes this.
    """
    frequencies, table, _, layout = scratch
    shift, num_classes = np.int64(data[0]), np.int64(data[1]) + 1
    zigzag, at = get_varint(data, 2)
    num_escapes, at = get_varint(data, at)
    num_symbols, base = num_classes + (num_escapes > 0), zigzag >> 1 ^ -(zigzag & 1)
    if shift > MAX_SHIFT or at < 0 or zigzag >= 1 << 25 or num_escapes >= num_values:
        return False
    frequencies = frequencies[:num_symbols]
    if num_symbols > 1:
        at = get_weights(data, at, frequencies[:num_classes])
        if num_escapes:
            frequencies[num_classes] = num_escapes
        if at < 0 or _all_zero(frequencies):
            return False
    escapes_at = (at + shift * ((num_values + 7) // 8) + 1) // 2 * 2
    states_at = escapes_at + 4 * num_escapes
    layout[0], layout[1], layout[2], layout[3] = shift, base, num_classes, num_escapes
    layout[4], layout[5], layout[6] = at, escapes_at, states_at
    if num_symbols == 1:
        layout[6] = -1
        return states_at == data.size
    log = table_log(num_values, num_symbols)
    layout[8] = log
    frequencies_of(frequencies, log)
    fill_decoder_table(frequencies, base, shift, num_classes, table[: 1 << log])
    words_at = states_at + 4 * num_lanes(num_values) * num_streams(num_values)
    words_at += 4 * (num_streams(num_values) - 1)
    layout[7] = words_at
    return words_at <= data.size and (data.size - words_at) % 2 == 0


@_inner
def _all_zero(numbers):
    """Return whether no number is above 0."""
    for number in numbers:
        if number:
            return False
    return True


@_inner
def _decode_all(data, q, step, scratch):
    """Decode a segment that is open. Return False if no encoder writes the data."""
    layout = scratch[3]
    shift, base, num_escapes = layout[0], layout[1], layout[3]
    if layout[6] < 0:
        q[:] = base
    elif not _decode_streams(data, q, scratch):
        return False
    get_low_bits(data[layout[4] :], shift, q)
    escapes = data[layout[5] : layout[5] + 4 * num_escapes]
    if num_escapes and not get_escapes(escapes, q):
        return False
    if step:
        dequantize(q, step)
    return True


@_inner
def dequantize(q, step):
    """Replace each index by the bits of float32(index) * step."""
    for i in range(q.size):
        q[i] = np.float32(np.float32(q[i]) * step).view(np.int32)


@_inner
def _decode_streams(data, q, scratch):
    """Decode the symbols of all streams into q: the first index of each class, or ESCAPED.

    Returns: False if no encoder writes the data.
    """
    lanes, streams, layout = num_lanes(q.size), num_streams(q.size), scratch[3]
    table, states, at = scratch[1][: 1 << layout[8]], scratch[2][:lanes], layout[7]
    for stream in range(streams):
        end, words_end = q.size, data.size
        if stream < streams - 1:
            end = (stream + 1) << 16
            words_end = at + 2 * get32(data, layout[6] + 4 * (lanes * streams + stream))
        if words_end > data.size or not _get_states(data, layout[6] + 4 * stream * lanes, states):
            return False
        words = data[at:words_end].view(np.uint16)
        if not pop_stream(words, table, layout[8], states, q[stream << 16 : end]):
            return False
        at = words_end
    return True


@_inner
def _get_states(data, at, states):
    """Read the states of a stream. Return False where one is out of range."""
    for k in range(states.size):
        states[k] = np.uint32(get32(data, at + 4 * k))
        if states[k] < LOWER or states[k] >= np.uint32(1 << 31):
            return False
    return True
