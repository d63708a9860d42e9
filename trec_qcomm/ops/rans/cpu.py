"""rANS in numba. Same bytes as reference.py, which says what they mean.

Here is the layout of a segment. classes.py chooses its classes, header.py codes numbers and
weights, low_bits.py what is not entropy coded; stream.py is the coder of a stream, wide.py the one
of long streams. Shapes: N indices, C streams of K states, W bytes.
"""

import numpy as np

from trec_qcomm.kernels import inner, kernel
from trec_qcomm.ops.rans import wide
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
    get_varint,
    get_weights,
    put_varint,
    put_weights,
    varint_nbytes,
)
from trec_qcomm.ops.rans.low_bits import (
    get32,
    get_escapes,
    get_low_bits,
    put32,
    put_escapes,
    put_low_bits,
)
from trec_qcomm.ops.rans.stream import (
    LOWER,
    SPARE_WORDS,
    fill_decoder_table,
    fill_encoder_table,
    pop_rest,
    pop_stream,
    push_stream,
)

# Without reference counts: see ops.bitpack.cpu.
_inner = inner(_nrt=False)
_inline = inner(forceinline=True, _nrt=False)


@inner
def encoder_scratch(max_values):
    """Return what `encode` works in, for segments of at most so many indices."""
    most = min(max_values, 2 * 65536 - 1)  # the indices of a stream
    tables = (np.empty(257, np.uint64), np.empty((257, 4), np.uint16), np.empty(257, np.float32))
    words = np.empty(most + SPARE_WORDS, np.uint16)
    states = np.empty(32, np.uint32)
    return class_scratch(), tables, np.empty(most, np.uint16), words, states


@kernel
def encode_segment(q, dim, out):
    """Write the indices q [N] int32 to out [C] uint8, 2-byte aligned.

    `dim` is not used; encoders share one signature.

    Returns: the number of bytes used, or -1 where C is too small.
    """
    return encode(q, out, encoder_scratch(q.size))


@_inner
def encode(q, out, scratch):
    """Do what `encode_segment` does. Args: scratch: arrays of `encoder_scratch`."""
    if q.size == 0:
        return 0
    counts = scratch[0][0]
    base, shift, num_classes, num_escapes = choose_classes(q, scratch[0])
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
    fill_encoder_table(weights, log, tables[0], tables[1])
    if wide.takes(lanes):
        wide.fill_reciprocals(weights, tables[2])
    counts_at = at + 4 * lanes * streams
    words_at = counts_at + 4 * (streams - 1)
    states = all_states[:lanes]
    for stream in range(streams):
        end = q.size if stream == streams - 1 else (stream + 1) << 16
        states[:] = LOWER
        num_words = push_stream(
            q[stream << 16 : end],
            base,
            shift,
            weights.size - 1,
            tables,
            log,
            symbols,
            words,
            states,
        )
        if words_at + 2 * num_words > out.size:
            return -1
        for k in range(lanes):
            put32(out, at + 4 * (stream * lanes + k), np.int64(states[k]))
        if stream < streams - 1:
            put32(out, counts_at + 4 * stream, num_words)
        target = out[words_at : words_at + 2 * num_words].view(np.uint16)
        for k in range(num_words):
            target[k] = words[num_words - 1 - k]
        words_at += 2 * num_words
    return words_at


@kernel
def decode_segment(data, dim, q):
    """Fill q [N] int32 from data [W] uint8, 2-byte aligned. Return False where data is invalid.

    `dim` is not used; encoders share one signature.
    """
    return decode(data, q, decoder_scratch())


@inner
def decoder_scratch():
    """Return what `decode` works in: frequencies, two tables, states, a cursor and a layout."""
    return (
        np.empty(257, np.int64),
        np.empty(1 << MAX_LOG, np.uint64),
        np.empty(1 << MAX_LOG, np.uint32),
        np.empty(32, np.uint32),
        np.empty(5, np.int64),
        np.empty(8, np.int64),
    )


@_inner
def decode(data, q, scratch):
    """Do what `decode_segment` does. Args: scratch: arrays of `decoder_scratch`."""
    if q.size == 0 or data.size < 4:
        return q.size == data.size
    return _open(data, q.size, scratch) and _decode_all(data, q, scratch, False)


@_inline
def can_pair(num_values):
    """Return whether `decode_two` takes segments of so many indices: streams of 16 states."""
    return wide.takes(num_lanes(num_values)) and num_lanes(num_values) == wide.LANES


@inner
def decode_two(data, q, scratch, other_data, other_q, other_scratch):
    """Decode two segments that `can_pair` at a time. Return whether each of them is valid."""
    is_open = data.size >= 4 and _open(data, q.size, scratch)
    other_is_open = other_data.size >= 4 and _open(other_data, other_q.size, other_scratch)
    begun = (
        is_open and other_is_open and _begin(data, scratch) and _begin(other_data, other_scratch)
    )
    if begun:
        wide.pop_two(_job(data, q, scratch), _job(other_data, other_q, other_scratch))
    return (
        is_open and _decode_all(data, q, scratch, begun),
        other_is_open and _decode_all(other_data, other_q, other_scratch, begun),
    )


@_inner
def _open(data, num_values, scratch):
    """Read what is before the low bits, find the places of the rest, and make the tables.

    The layout becomes: shift, base, number of classes and of escapes, places of low bits, escapes
    and states (-1 if there is a single symbol), and whether there is a table for wide.py.

    Returns: False if no encoder writes this.
    """
    frequencies, table, layout = scratch[0], scratch[1], scratch[5]
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
    layout[4], layout[5], layout[6], layout[7] = at, escapes_at, states_at, 0
    if num_symbols == 1:
        layout[6] = -1
        return states_at == data.size
    log = table_log(num_values, num_symbols)
    frequencies_of(frequencies, log)
    fill_decoder_table(frequencies, base, shift, num_classes, table[: 1 << log])
    if wide.takes(num_lanes(num_values)):
        layout[7] = wide.fill_decoder_table(frequencies, scratch[2])
    words_at = states_at + 4 * num_lanes(num_values) * num_streams(num_values)
    words_at += 4 * (num_streams(num_values) - 1)
    return words_at <= data.size and (data.size - words_at) % 2 == 0


@_inner
def _all_zero(numbers):
    """Return whether no number is above 0."""
    for number in numbers:
        if number:
            return False
    return True


@_inner
def _begin(data, scratch):
    """Read the states of the first stream. Return whether they and the tables are for `_job`."""
    cursor, layout = scratch[4], scratch[5]
    cursor[0], cursor[1], cursor[2], cursor[3], cursor[4] = 0, 0, layout[1], layout[0], layout[2]
    return (
        layout[6] >= 0 and layout[7] > 0 and _get_states(data, layout[6], scratch[3][: wide.LANES])
    )


@inner
def _job(data, q, scratch):
    """Return the job, as wide.py has it, of a segment of 16 states."""
    words = data[scratch[5][6] + 4 * wide.LANES :].view(np.uint16)
    return words, scratch[2], scratch[3][: wide.LANES], q, scratch[4]


@_inner
def _decode_all(data, q, scratch, begun):
    """Decode a segment that is open. Return False if no encoder writes the data.

    Args: begun: whether the cursor says how far the first stream is decoded.
    """
    layout = scratch[5]
    shift, base, num_escapes = layout[0], layout[1], layout[3]
    if layout[6] < 0:
        q[:] = base
    elif not _decode_streams(data, q, scratch, begun):
        return False
    get_low_bits(data[layout[4] :], shift, q)
    escapes = data[layout[5] : layout[5] + 4 * num_escapes]
    return num_escapes == 0 or get_escapes(escapes, q)


@_inner
def _decode_streams(data, q, scratch, begun):
    """Decode the symbols of all streams into q: the first index of each class, or ESCAPED.

    Returns: False if no encoder writes the data.
    """
    _, table, wide_table, all_states, cursor, layout = scratch
    lanes, streams, at = num_lanes(q.size), num_streams(q.size), layout[6]
    log = table_log(q.size, layout[2] + (layout[3] > 0))
    counts_at = at + 4 * lanes * streams
    words = data[counts_at + 4 * (streams - 1) :].view(np.uint16)
    table, states = table[: 1 << log], all_states[:lanes]
    for stream in range(streams):
        num_words, end = words.size, q.size
        if stream < streams - 1:
            num_words, end = get32(data, counts_at + 4 * stream), (stream + 1) << 16
        if num_words > words.size:
            return False
        if not begun:
            if not _get_states(data, at + 4 * stream * lanes, states):
                return False
            cursor[0], cursor[1] = 0, 0
            cursor[2], cursor[3], cursor[4] = layout[1], layout[0], layout[2]
        part, stream_words = q[stream << 16 : end], words[:num_words]
        if layout[7]:
            wide.pop((stream_words, wide_table, states, part, cursor))
            if not pop_rest(stream_words, table, log, states, cursor[0], cursor[1], part):
                return False
        elif not pop_stream(stream_words, table, log, states, part):
            return False
        words = words[num_words:]
    return True


@_inner
def _get_states(data, at, states):
    """Read the states of a stream. Return False where one is out of range."""
    for k in range(states.size):
        states[k] = np.uint32(get32(data, at + 4 * k))
        if states[k] < LOWER or states[k] >= np.uint32(1 << 31):
            return False
    return True
