"""What comes before the low bits: numbers and weights, in Triton.

What it says is kept as *facts* of a segment, [8] int64: see the names below. An encoder makes it in
a place of its own, as it is not known yet whether there will be room for it in the payload: 16
bytes of numbers, then the weights.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans.gpu import classes
from trec_qcomm.ops.rans.gpu.numbers import (
    CLASSES,
    MAX_SHIFT,
    STREAM,
    bit_length,
    num_lanes,
    table_log,
    unzigzag,
)
from trec_qcomm.ops.rans.gpu.table import fill_dividers, fill_table, frequencies_of

FACTS, ENTRIES = 8, 264  # a segment's, of which 7 and 257 are used
HEADER = 512  # bytes of an encoder's header; 16 and 448 are used
# log 0: there is but one symbol.  LOW_AT: where in the payload the low bits are.
# NUMBERS: bytes before the weights, of an encoder only.
BASE, SHIFT, SIZE, LOG, ESCAPES, LOW_AT, NUMBERS = (tl.constexpr(n) for n in range(7))
_COUNTS, _WEIGHTS_AT, _HEADER = (tl.constexpr(n) for n in (256, 16, HEADER))


@triton.jit
def _varint(payload, at, end):
    """(value, place after it); the latter is `end` + 1 if there is none."""
    k = tl.arange(0, 8)
    byte = tl.load(payload + at + k, mask=(k < 5) & (at + k < end), other=0x80).to(tl.int64)
    last = tl.min(tl.where(byte < 0x80, k, 8), 0)
    value = tl.sum(tl.where(k <= last, (byte & 0x7F) << (7 * k), 0), 0)
    return value, tl.where(last < 8, at + last + 1, end + 1)


@triton.jit
def _weights(payload, at, end, num_classes, weights):
    """Write weights [A], int32. Returns the place after them, or end + 1 where they are invalid."""
    s, bit, length, valid = num_classes * 0, at * 8, num_classes * 0, at < end
    while valid & (s < num_classes):
        byte, bits = bit // 8, num_classes * 0
        for k in tl.static_range(3):
            part = tl.load(payload + byte + k, mask=byte + k < end, other=0).to(tl.int32)
            bits |= part << (8 * k)
        bits = bits >> (bit % 8).to(tl.int32)
        lowest = (bits & -bits).to(tl.float32).to(tl.int32, bitcast=True)
        zeros = tl.where(bits == 0, 6, tl.minimum((lowest >> 23) - 127, 6))
        code = ((bits >> (zeros + 1)) & ((1 << zeros) - 1)) + (1 << zeros) - 1
        length += unzigzag(code)
        valid = (zeros <= 5) & (length >= 0) & (length <= 31)
        length = tl.minimum(tl.maximum(length, 0), 31)
        sent = tl.minimum(3, tl.maximum(0, length - 1))
        weight = ((bits >> (2 * zeros + 1)) & ((1 << sent) - 1)) + (1 << sent)
        weight = weight << tl.maximum(0, length - 1 - sent)
        tl.store(weights + s, tl.where(length == 0, 0, weight))
        bit += 2 * zeros + 1 + sent
        s += 1
    return tl.where(valid, (bit + 7) // 8, end + 1)


@triton.jit
def places(facts, num_values):
    """Of sound facts: where escaped indices and states are, in units of 2 bytes."""
    escapes = tl.load(facts + ESCAPES)
    low_nbytes = tl.load(facts + SHIFT) * ((num_values + 7) // 8)
    escapes_at = (tl.load(facts + LOW_AT) + low_nbytes + 1) // 2
    return escapes_at, escapes_at + 2 * escapes


@triton.jit
def read_header(
    payload, payload16, begin, end, num_values, facts, entries, slots, word_places, word_counts
):
    """Write the facts, the table and, of each stream, int64, where its words begin, in units of 2
    bytes, and how many they are. Returns whether payload[begin:end], begin even, may be valid: all
    but states, words and the number of escapes was looked at. num_values: > 0, int64."""
    shift = tl.load(payload + begin, mask=begin < end, other=0xFF).to(tl.int32)
    size = tl.load(payload + begin + 1, mask=begin + 1 < end, other=0).to(tl.int32) + 1
    base, at = _varint(payload, begin + 2, end)
    escapes, at = _varint(payload, at, end)
    valid = (end - begin >= 4) & (at <= end) & (shift <= MAX_SHIFT)
    valid = valid & (base < (1 << 25)) & (escapes < num_values)
    num_symbols = size + (escapes > 0).to(tl.int32)
    log = num_symbols * 0
    if valid & (num_symbols > 1):
        at = _weights(payload, at, end, size, entries)
        tl.debug_barrier()  # the weights are stored
        s = tl.arange(0, CLASSES)
        weights = tl.load(entries + s, mask=s < size, other=0).to(tl.int64)
        valid = (at <= end) & (tl.sum(weights, 0) + escapes > 0)
        if valid:
            log = table_log(num_values, num_symbols)
            tl.debug_barrier()  # the weights are loaded: entries take their place
            f, of_escape = frequencies_of(weights, escapes, log)
            fill_table(f, of_escape, size, log, entries, slots)
    tl.store(facts + BASE, unzigzag(base))
    tl.store(facts + SHIFT, shift.to(tl.int64))
    tl.store(facts + SIZE, size.to(tl.int64))
    tl.store(facts + LOG, log.to(tl.int64))
    tl.store(facts + ESCAPES, escapes)
    tl.store(facts + LOW_AT, at)
    states_at = (at + shift * ((num_values + 7) // 8) + 1) // 2 * 2 + 4 * escapes
    if log == 0:
        valid = valid & (states_at == end)
    else:
        valid = valid & _read_counts(
            payload16, states_at, end, num_values, word_places, word_counts
        )
    return valid


@triton.jit
def _read_counts(payload16, states_at, end, num_values, word_places, word_counts):
    """See `read_header`."""
    num_streams = tl.maximum(1, num_values // STREAM)
    counts_at = states_at + 4 * num_lanes(num_values) * num_streams
    words_at = counts_at + 4 * (num_streams - 1)
    valid = (words_at <= end) & ((end - words_at) % 2 == 0)
    place, done = words_at // 2, num_streams * 0
    while valid & (done < num_streams):
        c = done + tl.arange(0, _COUNTS)
        at, live = counts_at // 2 + 2 * c, c < num_streams - 1
        low = tl.load(payload16 + at, mask=live, other=0).to(tl.int64) & 0xFFFF
        high = tl.load(payload16 + at + 1, mask=live, other=0).to(tl.int64) & 0xFFFF
        count = low | (high << 16)
        after = place + tl.cumsum(count, 0)
        tl.store(word_places + c, after - count, mask=c < num_streams)
        tl.store(word_counts + c, count, mask=live)
        place += tl.sum(count, 0)
        done += _COUNTS
    tl.store(word_counts + num_streams - 1, end // 2 - place)
    return valid & (place <= end // 2)


@triton.jit
def _varint_nbytes(n):
    return tl.maximum(1, (bit_length(n) + 6) // 7)


@triton.jit
def _varint_byte(n, nbytes, k):
    """Byte k of int64 n as a varint; 0 where k is none of its bytes."""
    inside = (k >= 0) & (k < nbytes)
    bits = (n >> (7 * tl.where(inside, k, 0))) & 0x7F
    return tl.where(inside, bits | tl.where(k < nbytes - 1, 0x80, 0), 0).to(tl.int32)


@triton.jit
def make_header(counts, sums, num_values, begin, facts, header, header32, entries):
    """Choose classes, beginning with BASE and SHIFT of the facts, which become all that there are
    of a segment whose indices will begin at `begin` of the payload. Write the header (header32:
    the same as int32, 0 before) and an encoder's table. counts, sums: see classes.fold."""
    start, shift = tl.load(facts + BASE), tl.load(facts + SHIFT).to(tl.int32)
    first, size, folds, escapes = classes.fold(counts, sums, num_values, shift)
    base, num_symbols = start + (first << shift), size + (escapes > 0).to(tl.int32)
    shift += folds
    zigzag = (base << 1) ^ (base >> 63)
    of_base, of_escapes = _varint_nbytes(zigzag), _varint_nbytes(escapes)
    k = tl.arange(0, _WEIGHTS_AT)
    byte = _varint_byte(zigzag, of_base, k - 2)
    byte += _varint_byte(escapes, of_escapes, k - 2 - of_base)
    byte = tl.where(k == 0, shift, tl.where(k == 1, size - 1, byte))
    tl.store(header + k, byte.to(tl.uint8))
    nbytes = 2 + of_base + of_escapes
    tl.store(facts + NUMBERS, nbytes.to(tl.int64))
    log = num_symbols * 0
    if num_symbols > 1:
        weights, bits, num_bits = classes.weights_of(sums, first, size, folds)
        nbytes += classes.put_weights(bits, num_bits, header32 + _WEIGHTS_AT // 4)
        log = table_log(num_values, num_symbols)
        f, of_escape = frequencies_of(weights, escapes, log)
        fill_dividers(f, of_escape, size, log, entries)
    tl.store(facts + BASE, base)
    tl.store(facts + SHIFT, shift.to(tl.int64))
    tl.store(facts + SIZE, size.to(tl.int64))
    tl.store(facts + LOG, log.to(tl.int64))
    tl.store(facts + ESCAPES, escapes)
    tl.store(facts + LOW_AT, begin + nbytes)


@triton.jit
def put_header(payload, begin, num_values, facts, header):
    """Copy it to the payload, and the byte 0 that may be before the escaped indices."""
    k, numbers = tl.arange(0, _HEADER), tl.load(facts + NUMBERS).to(tl.int32)
    low_at = tl.load(facts + LOW_AT)
    byte = tl.load(header + tl.where(k < numbers, k, k - numbers + _WEIGHTS_AT), mask=k < 480)
    tl.store(payload + begin + k, byte, mask=k < low_at - begin)
    end = low_at + tl.load(facts + SHIFT) * ((num_values + 7) // 8)
    tl.store(payload + end, (numbers * 0).to(tl.uint8), mask=end % 2 > 0)
