"""Decoder of streams of 16 or 32 states. __init__.py says how it works."""

# mypy: ignore-errors
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from trec_qcomm.jit import inner
from trec_qcomm.ops.rans.wide.vectors import (
    FLOATS,
    I32,
    INTS,
    LANES,
    LOG,
    SHORTS,
    all_of,
    call,
    count,
    gather,
    int64,
    load,
    splat,
    store,
)

CURSOR = 6  # numbers of a cursor: see `pop_16`


@inner
def fill_decoder_table(frequencies, table):
    """Fill table [2^12] uint32, an entry for each slot.

    From the highest bits: 8 of the symbol, 12 of the number of the slot within its symbol, 12 of
    the frequency.

    Returns: False if the entries have no room for so many symbols or such a frequency.
    """
    slot = 0
    for s in range(frequencies.size):
        f = frequencies[s]
        if s > 255 or f >> LOG:
            return False
        entry = np.uint32(s << 24 | f)
        for k in range(f):
            table[slot + k] = entry | np.uint32(k << LOG)
        slot += f
    return True


class _Job:
    """A stream that is decoded: its arrays, and what changes from step to step.

    Args:
        kind, value: type and value of the job that `pop_16` describes.
        num_vectors: number of vectors of states.
    """

    def __init__(self, context, builder, kind, value, num_vectors):
        arrays = [
            context.make_array(array)(context, builder, item)
            for array, item in zip(kind.types, cgutils.unpack_tuple(builder, value), strict=True)
        ]
        self.words, self.table, self.states, self.q, self.cursor = (a.data for a in arrays)
        self.num_words = builder.extract_value(arrays[0].shape, 0)
        self.num_indices = builder.extract_value(arrays[3].shape, 0)
        at = [builder.load(builder.gep(self.cursor, [int64(k)])) for k in range(CURSOR)]
        self.i, self.at = (cgutils.alloca_once_value(builder, number) for number in at[:2])
        self.base, self.shift, self.escape, step = (
            splat(builder, builder.trunc(number, I32)) for number in at[2:]
        )
        self.factor = builder.bitcast(step, FLOATS)
        self.has_factor = builder.icmp_unsigned("!=", step, all_of(0))
        self.vectors = [
            cgutils.alloca_once_value(builder, load(builder, self.states, int64(LANES * v), INTS))
            for v in range(num_vectors)
        ]
        self.lanes = int64(LANES * num_vectors)

    def can_go_on(self, builder):
        """Return whether there are indices and words for another step."""
        i, at = (builder.add(builder.load(x), self.lanes) for x in (self.i, self.at))
        return builder.and_(
            builder.icmp_signed("<=", i, self.num_indices),
            builder.icmp_signed("<=", at, self.num_words),
        )

    def step(self, builder, v):
        """Decode an index of each state of vector v."""
        x, at, i = (builder.load(place) for place in (self.vectors[v], self.at, self.i))
        slot = builder.and_(x, all_of(4095))
        entry = gather(builder, "dpi", INTS, self.table, slot, 4)
        symbol = builder.lshr(entry, all_of(24))
        frequency = builder.and_(entry, all_of(4095))
        number = builder.and_(builder.lshr(entry, all_of(LOG)), all_of(4095))
        x = builder.add(builder.mul(frequency, builder.lshr(x, all_of(LOG))), number)
        is_short = builder.icmp_unsigned("<", x, all_of(1 << 15))
        next_words = builder.zext(load(builder, self.words, at, SHORTS), INTS)
        entering = call(
            builder, "llvm.x86.avx512.mask.expand.v16i32", INTS, next_words, all_of(0), is_short
        )
        full = builder.or_(builder.shl(x, all_of(16)), entering)
        builder.store(builder.select(is_short, full, x), self.vectors[v])
        builder.store(builder.add(at, count(builder, is_short)), self.at)
        index = builder.add(self.base, builder.shl(symbol, self.shift))
        is_escape = builder.icmp_unsigned("==", symbol, self.escape)
        index = builder.select(is_escape, all_of(-(1 << 31)), index)
        product = builder.fmul(builder.sitofp(index, FLOATS), self.factor)
        index = builder.select(self.has_factor, builder.bitcast(product, INTS), index)
        store(builder, index, self.q, builder.add(i, int64(LANES * v)))

    def advance(self, builder):
        builder.store(builder.add(builder.load(self.i), self.lanes), self.i)

    def finish(self, builder):
        """Write back what changed."""
        for v, vector in enumerate(self.vectors):
            store(builder, builder.load(vector), self.states, int64(LANES * v))
        for k, number in enumerate((self.i, self.at)):
            builder.store(builder.load(number), builder.gep(self.cursor, [int64(k)]))


def _pop_all(context, builder, signature, arguments, num_vectors):
    """Decode one or more jobs, a step of each in turn, while all can go on."""
    jobs = [
        _Job(context, builder, kind, value, num_vectors)
        for kind, value in zip(signature.args, arguments, strict=True)
    ]
    test, body, end = (builder.append_basic_block(name) for name in ("test", "body", "end"))
    builder.branch(test)
    builder.position_at_end(test)
    can_go_on = [job.can_go_on(builder) for job in jobs]
    all_can = can_go_on[0] if len(jobs) == 1 else builder.and_(*can_go_on)
    builder.cbranch(all_can, body, end)
    builder.position_at_end(body)
    for v in range(num_vectors):
        for job in jobs:
            job.step(builder, v)
    for job in jobs:
        job.advance(builder)
    builder.branch(test)
    builder.position_at_end(end)
    for job in jobs:
        job.finish(builder)
    return context.get_dummy_value()


@intrinsic
def pop_16(typing, job):
    """Decode a stream of 16 states as far as possible.

    Args: job: (words [W] uint16, table of `fill_decoder_table`, states [K] uint32, q [N] int32,
               cursor [CURSOR] int64: index, word, base, shift, the escape symbol or 256, and the
               bits of the float32 that indices are multiplied by, or 0: indices stay as they are).
    """

    def codegen(context, builder, signature, arguments):
        return _pop_all(context, builder, signature, arguments, 1)

    return types.void(job), codegen


@intrinsic
def pop_32(typing, job):
    """Decode a stream of 32 states as `pop_16` does."""

    def codegen(context, builder, signature, arguments):
        return _pop_all(context, builder, signature, arguments, 2)

    return types.void(job), codegen


@intrinsic
def pop_16_and_16(typing, job, other):
    """Decode two streams of 16 states at a time as `pop_16` does, until one of them stops."""

    def codegen(context, builder, signature, arguments):
        return _pop_all(context, builder, signature, arguments, 1)

    return types.void(job, other), codegen


@intrinsic
def pop_32_and_32(typing, job, other):
    """Decode two streams of 32 states at a time as `pop_16_and_16` does."""

    def codegen(context, builder, signature, arguments):
        return _pop_all(context, builder, signature, arguments, 2)

    return types.void(job, other), codegen
