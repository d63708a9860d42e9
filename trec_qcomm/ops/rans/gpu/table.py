"""From weights to frequencies, and the table of a decoder, in Triton. What they mean: reference.py.

A decoder's table is two: the symbol of each slot, int16, and of each symbol an entry, int32, its
frequency and its first slot << 16. They take a third of what one of slots would, which matters as
all programs of a processor share its cache.

An encoder's is an entry, int64, of each symbol, from the lowest bit: 32 of a factor, with which
x // f is x * factor >> places for all x < 2^31, 13 of the first slot, 13 of f, 4 of places - 31.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans import reference
from trec_qcomm.ops.rans.gpu.numbers import CLASSES, bit_length

_AT_A_TIME = tl.constexpr(512)


def most_slots(num_values: int) -> int:
    """M, at most, of segments of at most so many indices."""
    return 1 << reference.table_log(num_values, 257)


@triton.jit
def frequencies_of(weights, escapes, log):
    """[256] int64 weights and that of the escape, not all 0 -> their frequencies, int32."""
    s = tl.arange(0, CLASSES)
    total = tl.sum(weights, 0) + escapes
    f = tl.maximum(((weights << log) + total // 2) // total, 1).to(tl.int32)
    f = tl.where(weights > 0, f, 0)
    of_escape = tl.maximum(((escapes << log) + total // 2) // total, 1).to(tl.int32)
    of_escape = tl.where(escapes > 0, of_escape, 0)
    excess = tl.sum(f, 0) + of_escape - (1 << log)
    while excess != 0:
        most = tl.max(f, 0)
        change = tl.minimum(excess, tl.maximum(1, tl.maximum(most, of_escape) >> 4))
        first = tl.min(tl.where(f == most, s, CLASSES), 0)
        is_escape = of_escape > most
        f = tl.where((s == first) & (is_escape == 0), f - change, f)
        of_escape = tl.where(is_escape, of_escape - change, of_escape)
        excess -= change
    return f, of_escape


@triton.jit
def fill_table(f, of_escape, num_classes, log, entries, slots):
    """Write entries [257], int32, and slots [M], int16: see the module."""
    s = tl.arange(0, CLASSES)
    end = 1 << log
    entry = tl.where(s < num_classes, f | (tl.cumsum(f, 0) - f) << 16, end << 16)
    escape = of_escape | (end - of_escape) << 16
    tl.store(entries + s, tl.where(s == num_classes, escape, entry))
    tl.store(entries + CLASSES, tl.where(num_classes == CLASSES, escape, end << 16))
    tl.debug_barrier()  # the entries are stored
    done = 0
    while done < end:
        slot = done + tl.arange(0, _AT_A_TIME)
        low = tl.zeros_like(slot)
        high = low + CLASSES
        for _ in tl.static_range(9):  # the last symbol that does not begin behind the slot
            middle = (low + high + 1) // 2
            begins = (tl.load(entries + middle) >> 16) <= slot
            low = tl.where(begins, middle, low)
            high = tl.where(begins, high, middle - 1)
        tl.store(slots + slot, low.to(tl.int16), mask=slot < end)
        done += _AT_A_TIME


@triton.jit
def _divider(f, first):
    """An encoder's entry of symbols of frequency f and this first slot."""
    f = tl.maximum(f, 1).to(tl.int64)
    more = bit_length(f - 1).to(tl.int64)
    factor = (((f * 0 + 1) << (31 + more)) + f - 1) // f
    return factor | (first.to(tl.int64) << 32) | (f << 45) | (more << 58)


@triton.jit
def fill_dividers(f, of_escape, num_classes, log, entries):
    """Write entries [257]: see the module."""
    s = tl.arange(0, CLASSES)
    escape = _divider(of_escape, (1 << log) - of_escape)
    entry = tl.where(s == num_classes, escape, _divider(f, tl.cumsum(f, 0) - f))
    tl.store(entries + s, entry)
    tl.store(entries + CLASSES, escape)
