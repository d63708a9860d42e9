"""Encoder of streams of 16 or 32 states. __init__.py says how it works."""

# mypy: ignore-errors
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from trec_qcomm.jit import inner
from trec_qcomm.ops.rans.wide.vectors import (
    BIT,
    FLOATS,
    I32,
    INTS,
    LANES,
    LOG,
    LONGS,
    POINTER,
    SHORTS,
    UNDEFINED,
    all_of,
    call,
    count,
    deinterleave,
    fetch,
    int64,
    load,
    places,
    reverse,
    splat,
    store,
)

_BIAS = 1 - 2.0**-21.5  # of a reciprocal, so that a quotient in float32 is never too large


@inner
def fill_encoder_table(frequencies, table):
    """Fill table [257] uint64, an entry for each symbol.

    From the highest bits: 32 of 1 / f, a little less, as float32; 16 of the first slot; 16 of f.
    """
    start = 0
    for s in range(frequencies.size):
        f = frequencies[s]
        bits = np.int64(np.float32(_BIAS / max(f, 1)).view(np.int32))
        table[s] = np.uint64(bits << 32 | start << 16 | f)
        start += f


class _GatheredTable:
    """The encoder's table in memory, for any number of symbols."""

    def __init__(self, builder, table):
        self.table = table

    def entries(self, builder, symbol):
        """Return the low and the high halves of the entries of a vector of symbols."""
        halves = [
            call(
                builder, "llvm.x86.avx512.mask.gather.dpq.512", LONGS,
                ir.Constant(LONGS, ir.Undefined), builder.bitcast(self.table, POINTER),
                builder.shuffle_vector(symbol, UNDEFINED, places(range(k, k + 8))),
                ir.Constant(ir.VectorType(BIT, 8), [1] * 8), ir.Constant(I32, 8),
            )
            for k in (0, 8)
        ]  # fmt: skip
        return deinterleave(builder, *(builder.bitcast(half, INTS) for half in halves))


class _HeldTable:
    """The encoder's table in registers, for at most 64 symbols. What is not of one is not used."""

    def __init__(self, builder, table):
        table = builder.bitcast(table, I32.as_pointer())
        vectors = [load(builder, table, int64(LANES * k), INTS) for k in range(8)]
        pairs = [deinterleave(builder, *vectors[k : k + 2]) for k in range(0, 8, 2)]
        self.halves = list(zip(*pairs, strict=True))

    def entries(self, builder, symbol):
        """Return the low and the high halves of the entries of a vector of symbols."""
        is_high, halves = builder.icmp_unsigned(">=", symbol, all_of(32)), []
        for vectors in self.halves:
            low, high = (
                call(builder, "llvm.x86.avx512.vpermi2var.d.512", INTS, first, symbol, second)
                for first, second in (vectors[:2], vectors[2:])
            )
            halves.append(builder.select(is_high, high, low))
        return halves


def _push_vector(builder, x, indices, classes, table):
    """Encode an index with each state of a vector.

    x // f is a product in float32, which is right or 1 too small, as the remainder tells.

    Args:    classes: vectors of base, shift and the last symbol.
    Returns: (the states, the low 16 bits of those before, which of these leave).
    """
    base, shift, last = classes
    symbol = builder.lshr(builder.sub(indices, base), shift)
    symbol = call(builder, "llvm.umin.v16i32", INTS, symbol, last)
    update, reciprocal = table.entries(builder, symbol)
    reciprocal = builder.bitcast(reciprocal, FLOATS)
    frequency, start = builder.and_(update, all_of(0xFFFF)), builder.lshr(update, all_of(16))
    leaves = builder.icmp_unsigned(">=", builder.lshr(x, all_of(31 - LOG)), frequency)
    words = call(builder, "llvm.x86.avx512.mask.compress.v16i32", INTS, x, all_of(0), leaves)
    x = builder.select(leaves, builder.lshr(x, all_of(16)), x)
    quotient = builder.fmul(builder.sitofp(x, FLOATS), reciprocal)
    quotient = builder.fptosi(quotient, INTS)
    remainder = builder.sub(x, builder.mul(quotient, frequency))
    x = builder.add(builder.add(builder.shl(quotient, all_of(LOG)), remainder), start)
    one_more = builder.add(x, builder.sub(all_of(1 << LOG), frequency))
    is_small = builder.icmp_unsigned(">=", remainder, frequency)
    return builder.select(is_small, one_more, x), builder.trunc(words, SHORTS), leaves


def _push_all(context, builder, signature, arguments, num_vectors, kind_of_table):
    """Encode all indices, the last one first."""
    q, words, table, states = (
        context.make_array(kind)(context, builder, value).data
        for kind, value in zip(signature.args[:4], arguments[:4], strict=True)
    )
    table = kind_of_table(builder, table)
    classes = [splat(builder, builder.trunc(value, I32)) for value in arguments[4:7]]
    vectors = [
        cgutils.alloca_once_value(
            builder, reverse(builder, load(builder, states, int64(LANES * v), INTS))
        )
        for v in range(num_vectors)
    ]
    is_none = builder.icmp_unsigned("==", arguments[7], int64(0))
    ahead = builder.select(is_none, q, builder.inttoptr(arguments[7], q.type))
    num_used = cgutils.alloca_once_value(builder, int64(0))
    num_steps = builder.sdiv(arguments[8], int64(LANES * num_vectors))
    with cgutils.for_range(builder, num_steps) as loop:
        step = builder.sub(builder.sub(num_steps, loop.index), int64(1))
        first = builder.mul(step, int64(LANES * num_vectors))
        for v in reversed(range(num_vectors)):
            place = builder.add(first, int64(LANES * v))
            fetch(builder, ahead, place)
            indices = reverse(builder, load(builder, q, place, INTS))
            x, leaving, leaves = _push_vector(
                builder, builder.load(vectors[v]), indices, classes, table
            )
            used = builder.load(num_used)
            store(builder, leaving, words, used)
            builder.store(builder.add(used, count(builder, leaves)), num_used)
            builder.store(x, vectors[v])
    for v, vector in enumerate(vectors):
        store(builder, reverse(builder, builder.load(vector)), states, int64(LANES * v))
    return builder.load(num_used)


def _push_of(num_vectors, kind_of_table):
    def push(typing, q, words, table, states, base, shift, last, ahead, num_indices):
        """Encode indices q[:num_indices], a multiple of the number of states.

        Args:    words: uint16, with room for a word an index and 16 more; the last word is first.
                 table: [257] uint64 of `fill_encoder_table`.
                 states: [K] uint32.
                 ahead: address of four bytes an index, which are fetched into the cache, or 0.
        Returns: the number of words.
        """
        numbers = (types.int64,) * 5

        def codegen(context, builder, signature, arguments):
            return _push_all(context, builder, signature, arguments, num_vectors, kind_of_table)

        return types.int64(q, words, table, states, *numbers), codegen

    return intrinsic(push)


push_16, push_32 = _push_of(1, _GatheredTable), _push_of(2, _GatheredTable)
push_16_of_few, push_32_of_few = _push_of(1, _HeldTable), _push_of(2, _HeldTable)
