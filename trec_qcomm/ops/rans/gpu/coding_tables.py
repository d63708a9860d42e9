"""Frequencies from weights, and tables of decoders and encoders, in Triton, as in reference.py.

A decoder has two tables: the symbol of each slot, int16, and an entry for each symbol, int32, with
its frequency and its first slot << 16. They take a third of the space of a table with an entry for
each slot. Space matters because all programs of a processor share its cache.

An encoder has an int64 entry for each symbol, from the lowest bit: 32 bits of a factor, 13 of the
first slot, 13 of the frequency f, 4 of places - 31. x // f is x * factor >> places for all
x < 2^31.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans import reference
from trec_qcomm.ops.rans.gpu.arithmetic import CLASSES, bit_length

_SLOTS_PER_STEP = tl.constexpr(512)


def max_slots(num_values: int) -> int:
    """Return the largest number of slots of segments with at most this many indices."""
    return 1 << reference.table_log(num_values, 257)


@triton.jit
def frequencies_of(weights, escape_weight, log):
    """Turn weights, not all 0, into frequencies of sum 2^log, as in reference.py.

    Args:    weights: [256] int64.  escape_weight: int64, weight of the escape symbol.
    Returns: ([256] int32, frequency of the escape symbol).
    """
    s = tl.arange(0, CLASSES)
    total = tl.sum(weights, 0) + escape_weight
    f = tl.maximum(((weights << log) + total // 2) // total, 1).to(tl.int32)
    f = tl.where(weights > 0, f, 0)
    escape_frequency = tl.maximum(((escape_weight << log) + total // 2) // total, 1).to(tl.int32)
    escape_frequency = tl.where(escape_weight > 0, escape_frequency, 0)
    excess = tl.sum(f, 0) + escape_frequency - (1 << log)
    while excess != 0:
        largest = tl.max(f, 0)
        change = tl.minimum(excess, tl.maximum(1, tl.maximum(largest, escape_frequency) >> 4))
        first = tl.min(tl.where(f == largest, s, CLASSES), 0)
        is_escape = escape_frequency > largest
        f = tl.where((s == first) & (is_escape == 0), f - change, f)
        escape_frequency = tl.where(is_escape, escape_frequency - change, escape_frequency)
        excess -= change
    return f, escape_frequency


@triton.jit
def fill_decoder_table(f, escape_frequency, num_classes, log, entries, slots):
    """Write entries [257], int32, and slots [M], int16, which the head of this file explains."""
    s = tl.arange(0, CLASSES)
    end = 1 << log
    entry = tl.where(s < num_classes, f | (tl.cumsum(f, 0) - f) << 16, end << 16)
    escape = escape_frequency | (end - escape_frequency) << 16
    tl.store(entries + s, tl.where(s == num_classes, escape, entry))
    tl.store(entries + CLASSES, tl.where(num_classes == CLASSES, escape, end << 16))
    tl.debug_barrier()  # until the entries are stored
    done = 0
    while done < end:
        slot = done + tl.arange(0, _SLOTS_PER_STEP)
        low = tl.zeros_like(slot)
        high = low + CLASSES
        for _ in tl.static_range(9):  # finds the last symbol that begins at or before the slot
            middle = (low + high + 1) // 2
            begins = (tl.load(entries + middle) >> 16) <= slot
            low = tl.where(begins, middle, low)
            high = tl.where(begins, high, middle - 1)
        tl.store(slots + slot, low.to(tl.int16), mask=slot < end)
        done += _SLOTS_PER_STEP


@triton.jit
def _encoder_entry(f, first):
    """Return an encoder's entry of symbols of frequency f and this first slot."""
    f = tl.maximum(f, 1).to(tl.int64)
    extra_places = bit_length(f - 1).to(tl.int64)
    factor = (((f * 0 + 1) << (31 + extra_places)) + f - 1) // f
    return factor | (first.to(tl.int64) << 32) | (f << 45) | (extra_places << 58)


@triton.jit
def fill_encoder_table(f, escape_frequency, num_classes, log, entries):
    """Write entries [257], int64, which the head of this file explains."""
    s = tl.arange(0, CLASSES)
    escape = _encoder_entry(escape_frequency, (1 << log) - escape_frequency)
    entry = tl.where(s == num_classes, escape, _encoder_entry(f, tl.cumsum(f, 0) - f))
    tl.store(entries + s, entry)
    tl.store(entries + CLASSES, escape)
