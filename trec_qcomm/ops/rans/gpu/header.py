"""Read and write the bytes before the low bits, in Triton: numbers and weights.

Their content is kept as the *fields* of a segment, [NUM_FIELDS] int64, whose names are below. An
encoder makes its header in a separate buffer, because it does not know yet whether the payload has
room for the segment. The header is 16 bytes for the numbers, then the weights.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans.gpu import merged_classes
from trec_qcomm.ops.rans.gpu.arithmetic import (
    CLASSES,
    MAX_SHIFT,
    STREAM,
    bit_length,
    num_lanes,
    table_log,
    unzigzag,
)
from trec_qcomm.ops.rans.gpu.coding_tables import (
    fill_decoder_table,
    fill_encoder_table,
    frequencies_of,
)

NUM_FIELDS, NUM_ENTRIES = 8, 264  # of each segment; 7 and 257 are used
HEADER_NBYTES = 512  # of an encoder's header; 16 + 448 are used
# Names of the fields. LOG is 0 where there is only one symbol. LOW_BITS_AT is a place in the
# payload. NUMBERS_NBYTES, the bytes before the weights, is set by encoders only.
BASE, SHIFT, NUM_CLASSES, LOG, NUM_ESCAPES, LOW_BITS_AT, NUMBERS_NBYTES = (
    tl.constexpr(n) for n in range(7)
)
_COUNTS_PER_LOAD, _WEIGHTS_AT, _HEADER_NBYTES = (tl.constexpr(n) for n in (256, 16, HEADER_NBYTES))


@triton.jit
def _read_varint(payload, at, end):
    """Return (value, place after it); the place is `end` + 1 if the number has no end."""
    k = tl.arange(0, 8)
    byte = tl.load(payload + at + k, mask=(k < 5) & (at + k < end), other=0x80).to(tl.int64)
    last = tl.min(tl.where(byte < 0x80, k, 8), 0)
    value = tl.sum(tl.where(k <= last, (byte & 0x7F) << (7 * k), 0), 0)
    return value, tl.where(last < 8, at + last + 1, end + 1)


@triton.jit
def _read_weights(payload, at, end, num_classes, weights):
    """Write weights [A], int32. Return the place after them, or end + 1 if they are invalid."""
    s, bit, length, valid = num_classes * 0, at * 8, num_classes * 0, at < end
    while valid & (s < num_classes):
        byte, bits = bit // 8, num_classes * 0
        for k in tl.static_range(3):
            part = tl.load(payload + byte + k, mask=byte + k < end, other=0).to(tl.int32)
            bits |= part << (8 * k)
        bits = bits >> (bit % 8).to(tl.int32)
        lowest = (bits & -bits).to(tl.float32).to(tl.int32, bitcast=True)
        num_low = tl.where(bits == 0, 6, tl.minimum((lowest >> 23) - 127, 6))
        code = ((bits >> (num_low + 1)) & ((1 << num_low) - 1)) + (1 << num_low) - 1
        length += unzigzag(code)
        valid = (num_low <= 5) & (length >= 0) & (length <= 31)
        length = tl.minimum(tl.maximum(length, 0), 31)
        sent = tl.minimum(3, tl.maximum(0, length - 1))
        weight = ((bits >> (2 * num_low + 1)) & ((1 << sent) - 1)) + (1 << sent)
        weight = weight << tl.maximum(0, length - 1 - sent)
        tl.store(weights + s, tl.where(length == 0, 0, weight))
        bit += 2 * num_low + 1 + sent
        s += 1
    return tl.where(valid, (bit + 7) // 8, end + 1)


@triton.jit
def escapes_and_states_at(fields, num_values):
    """Return where escaped indices and states begin in the payload, in units of 2 bytes.

    Args: fields: pointer to the fields of a valid segment.
    """
    num_escapes = tl.load(fields + NUM_ESCAPES)
    low_nbytes = tl.load(fields + SHIFT) * ((num_values + 7) // 8)
    escapes_at = (tl.load(fields + LOW_BITS_AT) + low_nbytes + 1) // 2
    return escapes_at, escapes_at + 2 * num_escapes


@triton.jit
def read_header(
    payload, payload16, begin, end, num_values, fields, entries, slots, word_places, word_counts
):
    """Write the fields, the decoder's table, and the words of each stream.

    Args:    begin, end: places of the segment's bytes in the payload; begin is even.
             num_values: int64, > 0.
             fields: pointer to write [NUM_FIELDS] int64.
             entries, slots: pointers to write a decoder's table, see coding_tables.py.
             word_places: pointer, int64, to write where words begin, in units of 2 bytes.
             word_counts: pointer, int64, to write how many words there are.
    Returns: whether the bytes may be valid. Not checked yet: states, words, and whether there are
             as many escape symbols as escaped indices.
    """
    shift = tl.load(payload + begin, mask=begin < end, other=0xFF).to(tl.int32)
    num_classes = tl.load(payload + begin + 1, mask=begin + 1 < end, other=0).to(tl.int32) + 1
    base, at = _read_varint(payload, begin + 2, end)
    num_escapes, at = _read_varint(payload, at, end)
    valid = (end - begin >= 4) & (at <= end) & (shift <= MAX_SHIFT)
    valid = valid & (base < (1 << 25)) & (num_escapes < num_values)
    num_symbols = num_classes + (num_escapes > 0).to(tl.int32)
    log = num_symbols * 0
    if valid & (num_symbols > 1):
        at = _read_weights(payload, at, end, num_classes, entries)
        tl.debug_barrier()  # until the weights are stored
        s = tl.arange(0, CLASSES)
        weights = tl.load(entries + s, mask=s < num_classes, other=0).to(tl.int64)
        valid = (at <= end) & (tl.sum(weights, 0) + num_escapes > 0)
        if valid:
            log = table_log(num_values, num_symbols)
            tl.debug_barrier()  # until the weights are loaded, which the entries overwrite
            f, escape_frequency = frequencies_of(weights, num_escapes, log)
            fill_decoder_table(f, escape_frequency, num_classes, log, entries, slots)
    tl.store(fields + BASE, unzigzag(base))
    tl.store(fields + SHIFT, shift.to(tl.int64))
    tl.store(fields + NUM_CLASSES, num_classes.to(tl.int64))
    tl.store(fields + LOG, log.to(tl.int64))
    tl.store(fields + NUM_ESCAPES, num_escapes)
    tl.store(fields + LOW_BITS_AT, at)
    states_at = (at + shift * ((num_values + 7) // 8) + 1) // 2 * 2 + 4 * num_escapes
    if log == 0:
        valid = valid & (states_at == end)
    else:
        valid = valid & _read_word_counts(
            payload16, states_at, end, num_values, word_places, word_counts
        )
    return valid


@triton.jit
def _read_word_counts(payload16, states_at, end, num_values, word_places, word_counts):
    """Write word_places and word_counts of `read_header`. Return whether they may be valid."""
    num_streams = tl.maximum(1, num_values // STREAM)
    counts_at = states_at + 4 * num_lanes(num_values) * num_streams
    words_at = counts_at + 4 * (num_streams - 1)
    valid = (words_at <= end) & ((end - words_at) % 2 == 0)
    place, done = words_at // 2, num_streams * 0
    while valid & (done < num_streams):
        c = done + tl.arange(0, _COUNTS_PER_LOAD)
        at, live = counts_at // 2 + 2 * c, c < num_streams - 1
        low = tl.load(payload16 + at, mask=live, other=0).to(tl.int64) & 0xFFFF
        high = tl.load(payload16 + at + 1, mask=live, other=0).to(tl.int64) & 0xFFFF
        count = low | (high << 16)
        after = place + tl.cumsum(count, 0)
        tl.store(word_places + c, after - count, mask=c < num_streams)
        tl.store(word_counts + c, count, mask=live)
        place += tl.sum(count, 0)
        done += _COUNTS_PER_LOAD
    tl.store(word_counts + num_streams - 1, end // 2 - place)
    return valid & (place <= end // 2)


@triton.jit
def _varint_nbytes(n):
    """Return how many bytes n takes as a varint."""
    return tl.maximum(1, (bit_length(n) + 6) // 7)


@triton.jit
def _varint_byte(n, nbytes, k):
    """Return byte k of int64 n as a varint; 0 where k is none of its bytes."""
    inside = (k >= 0) & (k < nbytes)
    bits = (n >> (7 * tl.where(inside, k, 0))) & 0x7F
    return tl.where(inside, bits | tl.where(k < nbytes - 1, 0x80, 0), 0).to(tl.int32)


@triton.jit
def make_header(counts, sums, num_values, begin, fields, header, header32, entries):
    """Choose the classes of a segment and write its fields, its header and an encoder's table.

    Args: counts, sums: pointers, as in merged_classes.merge_classes.
          begin: place in the payload where the segment's indices will begin.
          fields: pointer to [NUM_FIELDS] int64, all of which are written. Before, BASE and SHIFT
              are those of the initial classes.
          header: pointer to [HEADER_NBYTES] uint8 of 0, to write.  header32: that memory as int32.
          entries: pointer to write an encoder's table, see coding_tables.py.
    """
    start, shift = tl.load(fields + BASE), tl.load(fields + SHIFT).to(tl.int32)
    first, num_classes, num_merges, num_escapes = merged_classes.merge_classes(
        counts, sums, num_values, shift
    )
    base, num_symbols = start + (first << shift), num_classes + (num_escapes > 0).to(tl.int32)
    shift += num_merges
    zigzag = (base << 1) ^ (base >> 63)
    base_nbytes, escapes_nbytes = _varint_nbytes(zigzag), _varint_nbytes(num_escapes)
    k = tl.arange(0, _WEIGHTS_AT)
    byte = _varint_byte(zigzag, base_nbytes, k - 2)
    byte += _varint_byte(num_escapes, escapes_nbytes, k - 2 - base_nbytes)
    byte = tl.where(k == 0, shift, tl.where(k == 1, num_classes - 1, byte))
    tl.store(header + k, byte.to(tl.uint8))
    nbytes = 2 + base_nbytes + escapes_nbytes
    tl.store(fields + NUMBERS_NBYTES, nbytes.to(tl.int64))
    log = num_symbols * 0
    if num_symbols > 1:
        weights, bits, num_bits = merged_classes.weights_of(sums, first, num_classes, num_merges)
        nbytes += merged_classes.put_weights(bits, num_bits, header32 + _WEIGHTS_AT // 4)
        log = table_log(num_values, num_symbols)
        f, escape_frequency = frequencies_of(weights, num_escapes, log)
        fill_encoder_table(f, escape_frequency, num_classes, log, entries)
    tl.store(fields + BASE, base)
    tl.store(fields + SHIFT, shift.to(tl.int64))
    tl.store(fields + NUM_CLASSES, num_classes.to(tl.int64))
    tl.store(fields + LOG, log.to(tl.int64))
    tl.store(fields + NUM_ESCAPES, num_escapes)
    tl.store(fields + LOW_BITS_AT, begin + nbytes)


@triton.jit
def put_header(payload, begin, num_values, fields, header):
    """Copy a header to the payload, and write the byte 0 that may precede escaped indices."""
    k, numbers_nbytes = tl.arange(0, _HEADER_NBYTES), tl.load(fields + NUMBERS_NBYTES).to(tl.int32)
    low_bits_at = tl.load(fields + LOW_BITS_AT)
    byte = tl.load(
        header + tl.where(k < numbers_nbytes, k, k - numbers_nbytes + _WEIGHTS_AT), mask=k < 480
    )
    tl.store(payload + begin + k, byte, mask=k < low_bits_at - begin)
    end = low_bits_at + tl.load(fields + SHIFT) * ((num_values + 7) // 8)
    tl.store(payload + end, (numbers_nbytes * 0).to(tl.uint8), mask=end % 2 > 0)
