"""rANS in numba. Same bytes as reference.py, which says what they mean.

This file has the layout of a segment. classes.py chooses its classes. header.py writes and reads
the parts that are not entropy coded. stream.py is the coder of a stream, wide/ that of long
streams.
Shapes: N indices, C streams of K states, W bytes.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.bitpack.cpu import index_range
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
    """Return the scratch of `encode`, for segments of at most so many indices.

    The last array holds the address of what is read after the segment, or 0 (wide/).
    """
    most = min(max_values, 2 * 65536 - 1)  # the indices of a stream
    tables = (np.empty(257, np.uint64), np.empty((257, 4), np.uint16), np.empty(257, np.uint64))
    words = np.empty(most + SPARE_WORDS, np.uint16)
    states = np.empty(32, np.uint32)
    return class_scratch(), tables, np.empty(most, np.uint16), words, states, np.zeros(1, np.int64)


@kernel
def encode_segment(q, dim, out):
    """Write the indices q [N] int32 to out [C] uint8, 2-byte aligned.

    `dim` is not used; encoders share one signature.

    Returns: the number of bytes used, or -1 if C is too small.
    """
    low, high = index_range(q) if q.size else (np.int32(0), np.int32(0))
    return encode(q, low, high, out, encoder_scratch(q.size))


@_inner
def encode(q, low, high, out, scratch):
    """Encode as `encode_segment` does, with scratch.

    Args: low, high: the extremes of q.  scratch: arrays of `encoder_scratch`.
    """
    if q.size == 0:
        return 0
    counts = scratch[0][0]
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
    _, tables, symbols, words, all_states, ahead = scratch
    lanes, streams, log = num_lanes(q.size), num_streams(q.size), table_log(q.size, weights.size)
    frequencies_of(weights, log)
    fill_encoder_table(weights, log, tables[0], tables[1])
    if wide.takes(lanes):
        wide.fill_encoder_table(weights, tables[2])
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
            ahead[0] + (stream << 18 if ahead[0] else 0),
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


@kernel
def decode_segment(data, dim, q):
    """Fill q [N] int32 from data [W] uint8, 2-byte aligned. Return False if data is invalid.

    `dim` is not used; encoders share one signature.
    """
    return decode(data, q, np.float32(0), decoder_scratch())


@inner
def decoder_scratch():
    """Return the scratch of `decode`.

    It is frequencies, two tables, states and cursors of two streams, and a layout.
    """
    return (
        np.empty(257, np.int64),
        np.empty(1 << MAX_LOG, np.uint64),
        np.empty(1 << MAX_LOG, np.uint32),
        np.empty((2, 32), np.uint32),
        np.empty((2, wide.CURSOR), np.int64),
        np.empty(11, np.int64),
    )


@_inner
def decode(data, q, step, scratch):
    """Decode as `decode_segment` does, with scratch.

    Args: step: float32 > 0 to make q the bits of float32(index) * step, or 0 for the indices.
          scratch: arrays of `decoder_scratch`.
    """
    if q.size == 0 or data.size < 4:
        return q.size == 0 and data.size == 0
    return _open(data, q.size, step, scratch) and _decode_all(data, q, step, scratch, False)


@_inline
def can_pair(num_values):
    """Return whether `decode_two` takes segments of so many indices: one stream in vectors."""
    return wide.takes(num_lanes(num_values)) and num_streams(num_values) == 1


@_inline
def can_pair_with(num_values, other_num_values):
    """Return whether `decode_two` takes both of two segments that `can_pair`."""
    return num_lanes(num_values) == num_lanes(other_num_values)


@inner
def decode_two(data, q, step, scratch, other_data, other_q, other_step, other_scratch):
    """Decode two segments at a time, which can pair. Return whether each of them is valid."""
    is_open = data.size >= 4 and _open(data, q.size, step, scratch)
    other_is_open = other_data.size >= 4 and _open(
        other_data, other_q.size, other_step, other_scratch
    )
    begun = is_open and other_is_open and scratch[5][8] > 0 and other_scratch[5][8] > 0
    if begun:
        job, at = _job(data, q, scratch, 0, scratch[5][7], False)
        other_job, other_at = _job(
            other_data, other_q, other_scratch, 0, other_scratch[5][7], False
        )
        begun = at >= 0 and other_at >= 0
        if begun:
            wide.pop_two(job, other_job)
    return (
        is_open and _decode_all(data, q, step, scratch, begun),
        other_is_open and _decode_all(other_data, other_q, other_step, other_scratch, begun),
    )


@_inner
def _open(data, num_values, step, scratch):
    """Read what is before the low bits, find the places of the rest, and make the tables.

    The layout becomes: shift, base, number of classes and of escapes, places of low bits, escapes,
    states (-1 if there is a single symbol) and words, whether there is a table for wide/, the
    bits of the step that it multiplies by, or 0, and log2 of the size of the tables.

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
    layout[4], layout[5], layout[6], layout[8], layout[9] = at, escapes_at, states_at, 0, 0
    if num_symbols == 1:
        layout[6] = -1
        return states_at == data.size
    log = table_log(num_values, num_symbols)
    layout[10] = log
    frequencies_of(frequencies, log)
    fill_decoder_table(frequencies, base, shift, num_classes, table[: 1 << log])
    if wide.takes(num_lanes(num_values)):
        layout[8] = wide.fill_decoder_table(frequencies, scratch[2])
        if layout[8] and shift == 0 and num_escapes == 0:
            layout[9] = np.float32(step).view(np.int32)
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
def _decode_all(data, q, step, scratch, begun):
    """Decode a segment that is open. Return False if no encoder writes the data.

    Args: begun: whether the first cursor says how far the first stream is decoded.
    """
    layout = scratch[5]
    shift, base, num_escapes = layout[0], layout[1], layout[3]
    if layout[6] < 0:
        q[:] = base
    elif not _decode_streams(data, q, scratch, begun):
        return False
    get_low_bits(data[layout[4] :], shift, q)
    escapes = data[layout[5] : layout[5] + 4 * num_escapes]
    if num_escapes and not get_escapes(escapes, q):
        return False
    if step and not layout[9]:
        dequantize(q, step)
    return True


@_inner
def dequantize(q, step):
    """Replace each index by the bits of float32(index) * step."""
    for i in range(q.size):
        q[i] = np.float32(np.float32(q[i]) * step).view(np.int32)


@_inner
def _decode_streams(data, q, scratch, begun):
    """Decode the symbols of all streams into q: the first index of each class, or ESCAPED.

    Two streams at a time, where wide/ takes them: a vector waits for its table.

    Returns: False if no encoder writes the data.
    """
    streams, layout = num_streams(q.size), scratch[5]
    at = layout[7]
    for stream in range(0, streams, 2):
        job, at = _job(data, q, scratch, stream, at, begun)
        if at < 0:
            return False
        if stream + 1 < streams:
            other, at = _job(data, q, scratch, stream + 1, at, False)
            if at < 0:
                return False
            if layout[8]:
                wide.pop_two(job, other)
            if not _finish(other, scratch):
                return False
        if not _finish(job, scratch):
            return False
    return at == data.size


@inner
def _job(data, q, scratch, stream, words_at, begun):
    """Return a stream as a job for wide/, and the place after its words.

    The place is -1 where no encoder writes its states or the number of its words.

    Args: begun: whether states and cursor are in use already.
    """
    lanes, streams, layout = num_lanes(q.size), num_streams(q.size), scratch[5]
    end, words_end = q.size, data.size
    if stream < streams - 1:
        end = (stream + 1) << 16
        counts_at = layout[6] + 4 * lanes * streams
        words_end = words_at + 2 * get32(data, counts_at + 4 * stream)
    cursor, states = scratch[4][stream & 1], scratch[3][stream & 1, :lanes]
    if words_end > data.size:
        words_end = np.int64(-1)
    elif not begun:
        if not _get_states(data, layout[6] + 4 * stream * lanes, states):
            words_end = np.int64(-1)
        cursor[0], cursor[1], cursor[2], cursor[3] = 0, 0, layout[1], layout[0]
        cursor[4], cursor[5] = layout[2], layout[9]
    words = data[words_at : max(words_at, words_end)].view(np.uint16)
    return (words, scratch[2], states, q[stream << 16 : end], cursor), words_end


@_inner
def _finish(job, scratch):
    """Decode what is left of a stream. Return False if no encoder writes its words."""
    words, _, states, q, cursor = job
    layout = scratch[5]
    table = scratch[1][: 1 << layout[10]]
    if not layout[8]:
        return pop_stream(words, table, layout[10], states, q)
    wide.pop(job)
    if not pop_rest(words, table, layout[10], states, cursor[0], cursor[1], q):
        return False
    if layout[9]:
        dequantize(q[cursor[0] :], np.int32(layout[9]).view(np.float32))
    return True


@_inner
def _get_states(data, at, states):
    """Read the states of a stream. Return False where one is out of range."""
    for k in range(states.size):
        states[k] = np.uint32(get32(data, at + 4 * k))
        if states[k] < LOWER or states[k] >= np.uint32(1 << 31):
            return False
    return True
