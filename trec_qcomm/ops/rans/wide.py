"""The coder of a stream of 16 or 32 states in vectors of 16 states, for CPUs with AVX-512.

What stream.py does, with the same words and states. The loops are written in LLVM's language,
because numba has no vectors: a table is looked up by a gather, and the words that enter or leave
the states are moved by an expansion or a compression. A vector waits for its gather, so decoding
two segments of 16 states at a time (`pop_two`) takes little longer than one.

Both loops stop where a step could need more indices or words than there are; stream.py codes the
rest. Tables have 2^12 slots, as all streams of 16 states and more.
"""

# mypy: ignore-errors
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from trec_qcomm.kernels import inner

LANES = 16
CURSOR = 6
LOG = 12
_BIAS = 1 - 2.0**-21.5  # of a reciprocal, so that a quotient in float32 is never too large
_FEATURES = numba.config.CPU_FEATURES
AVAILABLE = "+avx512f" in (get_host_cpu_features() if _FEATURES is None else _FEATURES).split(",")

_BIT, _I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
_BITS, _SHORTS, _INTS, _FLOATS = (
    ir.VectorType(kind, LANES) for kind in (_BIT, _I16, _I32, ir.FloatType())
)
_LONGS, _UNDEFINED = ir.VectorType(_I64, 8), ir.Constant(_INTS, ir.Undefined)
_REVERSED = ir.Constant(_INTS, list(range(LANES - 1, -1, -1)))


@inner
def fill_decoder_table(frequencies, table):
    """Fill table [2^12] uint32, an entry for each slot.

    From the highest bits: 8 of the symbol, 12 of the number of the slot within its symbol, 12 of
    the frequency.

    Returns: False where the entries have no room for so many symbols or such a frequency.
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


def _all(number, kind=_INTS):
    """Return a vector of one constant."""
    return ir.Constant(kind, [number] * LANES)


def _splat(builder, number, kind=_INTS):
    """Return a vector of one number that is known at run time."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), _all(0))


def _call(builder, name, result, *arguments):
    """Call a function of LLVM's."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _gather(builder, name, kind, table, places, scale):
    """Load a number from each place of a table, `scale` bytes apart."""
    name = f"llvm.x86.avx512.mask.gather.{name}.512"
    return _call(
        builder, name, kind, ir.Constant(kind, ir.Undefined), builder.bitcast(table, _POINTER),
        places, _all(1, _BITS), ir.Constant(_I32, scale),
    )  # fmt: skip


_POINTER = _I8.as_pointer()


def _load(builder, array, place, kind):
    """Load a vector from an array's elements from a place on."""
    where = builder.bitcast(builder.gep(array, [place]), kind.as_pointer())
    return builder.load(where, align=1)


def _fetch(builder, array, place):
    """Fetch a line of memory into the second cache; one that is not there does no harm."""
    kind = ir.FunctionType(ir.VoidType(), [_POINTER, _I32, _I32, _I32])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    where = builder.bitcast(builder.gep(array, [place]), _POINTER)
    builder.call(prefetch, [where, *(ir.Constant(_I32, n) for n in (0, 2, 1))])


def _store(builder, vector, array, place):
    where = builder.bitcast(builder.gep(array, [place]), vector.type.as_pointer())
    builder.store(vector, where, align=1)


def _reverse(builder, vector):
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _REVERSED)


def _count(builder, mask):
    """Return the number of 1s of a mask, as an int64."""
    return builder.zext(builder.ctpop(builder.bitcast(mask, _I16)), _I64)


def _int64(number):
    return ir.Constant(_I64, number)


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
        at = [builder.load(builder.gep(self.cursor, [_int64(k)])) for k in range(CURSOR)]
        self.i, self.at = (cgutils.alloca_once_value(builder, number) for number in at[:2])
        self.base, self.shift, self.escape, step = (
            _splat(builder, builder.trunc(number, _I32)) for number in at[2:]
        )
        self.factor = builder.bitcast(step, _FLOATS)
        self.has_factor = builder.icmp_unsigned("!=", step, _all(0))
        self.vectors = [
            cgutils.alloca_once_value(
                builder, _load(builder, self.states, _int64(LANES * v), _INTS)
            )
            for v in range(num_vectors)
        ]
        self.lanes = _int64(LANES * num_vectors)

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
        slot = builder.and_(x, _all(4095))
        entry = _gather(builder, "dpi", _INTS, self.table, slot, 4)
        symbol = builder.lshr(entry, _all(24))
        frequency = builder.and_(entry, _all(4095))
        number = builder.and_(builder.lshr(entry, _all(LOG)), _all(4095))
        x = builder.add(builder.mul(frequency, builder.lshr(x, _all(LOG))), number)
        is_short = builder.icmp_unsigned("<", x, _all(1 << 15))
        next_words = builder.zext(_load(builder, self.words, at, _SHORTS), _INTS)
        entering = _call(
            builder, "llvm.x86.avx512.mask.expand.v16i32", _INTS, next_words, _all(0), is_short
        )
        full = builder.or_(builder.shl(x, _all(16)), entering)
        builder.store(builder.select(is_short, full, x), self.vectors[v])
        builder.store(builder.add(at, _count(builder, is_short)), self.at)
        index = builder.add(self.base, builder.shl(symbol, self.shift))
        is_escape = builder.icmp_unsigned("==", symbol, self.escape)
        index = builder.select(is_escape, _all(-(1 << 31)), index)
        product = builder.fmul(builder.sitofp(index, _FLOATS), self.factor)
        index = builder.select(self.has_factor, builder.bitcast(product, _INTS), index)
        _store(builder, index, self.q, builder.add(i, _int64(LANES * v)))

    def advance(self, builder):
        builder.store(builder.add(builder.load(self.i), self.lanes), self.i)

    def finish(self, builder):
        """Write back what changed."""
        for v, vector in enumerate(self.vectors):
            _store(builder, builder.load(vector), self.states, _int64(LANES * v))
        for k, number in enumerate((self.i, self.at)):
            builder.store(builder.load(number), builder.gep(self.cursor, [_int64(k)]))


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
    """Do what `pop_16` does with 32 states."""

    def codegen(context, builder, signature, arguments):
        return _pop_all(context, builder, signature, arguments, 2)

    return types.void(job), codegen


@intrinsic
def pop_16_and_16(typing, job, other):
    """Do what `pop_16` does with two streams at a time, until one of them stops."""

    def codegen(context, builder, signature, arguments):
        return _pop_all(context, builder, signature, arguments, 1)

    return types.void(job, other), codegen


@intrinsic
def pop_32_and_32(typing, job, other):
    """Do what `pop_16_and_16` does with 32 states each."""

    def codegen(context, builder, signature, arguments):
        return _pop_all(context, builder, signature, arguments, 2)

    return types.void(job, other), codegen


class _GatheredTable:
    """The encoder's table in memory, for any number of symbols."""

    def __init__(self, builder, table):
        self.table = table

    def entries(self, builder, symbol):
        """Return the low and the high halves of the entries of a vector of symbols."""
        halves = [
            _call(
                builder, "llvm.x86.avx512.mask.gather.dpq.512", _LONGS,
                ir.Constant(_LONGS, ir.Undefined), builder.bitcast(self.table, _POINTER),
                builder.shuffle_vector(symbol, _UNDEFINED, _places(range(k, k + 8))),
                ir.Constant(ir.VectorType(_BIT, 8), [1] * 8), ir.Constant(_I32, 8),
            )
            for k in (0, 8)
        ]  # fmt: skip
        return _deinterleave(builder, *(builder.bitcast(half, _INTS) for half in halves))


class _HeldTable:
    """The encoder's table in registers, for at most 64 symbols. What is not of one is not used."""

    def __init__(self, builder, table):
        table = builder.bitcast(table, _I32.as_pointer())
        vectors = [_load(builder, table, _int64(LANES * k), _INTS) for k in range(8)]
        pairs = [_deinterleave(builder, *vectors[k : k + 2]) for k in range(0, 8, 2)]
        self.halves = list(zip(*pairs, strict=True))

    def entries(self, builder, symbol):
        """Return the low and the high halves of the entries of a vector of symbols."""
        is_high, halves = builder.icmp_unsigned(">=", symbol, _all(32)), []
        for vectors in self.halves:
            low, high = (
                _call(builder, "llvm.x86.avx512.vpermi2var.d.512", _INTS, first, symbol, second)
                for first, second in (vectors[:2], vectors[2:])
            )
            halves.append(builder.select(is_high, high, low))
        return halves


def _deinterleave(builder, first, second):
    """Return the elements at even and at odd places of two vectors."""
    return [builder.shuffle_vector(first, second, _places(range(k, 2 * LANES, 2))) for k in (0, 1)]


def _places(numbers):
    return ir.Constant(ir.VectorType(_I32, len(numbers)), list(numbers))


def _push_vector(builder, x, indices, classes, table):
    """Encode an index with each state of a vector.

    x // f is a product in float32, which is right or 1 too small, as the remainder tells.

    Args:    classes: vectors of base, shift and the last symbol.
    Returns: (the states, the low 16 bits of those before, which of these leave).
    """
    base, shift, last = classes
    symbol = builder.lshr(builder.sub(indices, base), shift)
    symbol = _call(builder, "llvm.umin.v16i32", _INTS, symbol, last)
    update, reciprocal = table.entries(builder, symbol)
    reciprocal = builder.bitcast(reciprocal, _FLOATS)
    frequency, start = builder.and_(update, _all(0xFFFF)), builder.lshr(update, _all(16))
    leaves = builder.icmp_unsigned(">=", builder.lshr(x, _all(31 - LOG)), frequency)
    words = _call(builder, "llvm.x86.avx512.mask.compress.v16i32", _INTS, x, _all(0), leaves)
    x = builder.select(leaves, builder.lshr(x, _all(16)), x)
    quotient = builder.fmul(builder.sitofp(x, _FLOATS), reciprocal)
    quotient = builder.fptosi(quotient, _INTS)
    remainder = builder.sub(x, builder.mul(quotient, frequency))
    x = builder.add(builder.add(builder.shl(quotient, _all(LOG)), remainder), start)
    one_more = builder.add(x, builder.sub(_all(1 << LOG), frequency))
    is_small = builder.icmp_unsigned(">=", remainder, frequency)
    return builder.select(is_small, one_more, x), builder.trunc(words, _SHORTS), leaves


def _push_all(context, builder, signature, arguments, num_vectors, kind_of_table):
    """Encode all indices, the last one first."""
    q, words, table, states = (
        context.make_array(kind)(context, builder, value).data
        for kind, value in zip(signature.args[:4], arguments[:4], strict=True)
    )
    table = kind_of_table(builder, table)
    classes = [_splat(builder, builder.trunc(value, _I32)) for value in arguments[4:7]]
    vectors = [
        cgutils.alloca_once_value(
            builder, _reverse(builder, _load(builder, states, _int64(LANES * v), _INTS))
        )
        for v in range(num_vectors)
    ]
    is_none = builder.icmp_unsigned("==", arguments[7], _int64(0))
    ahead = builder.select(is_none, q, builder.inttoptr(arguments[7], q.type))
    num_used = cgutils.alloca_once_value(builder, _int64(0))
    num_steps = builder.sdiv(arguments[8], _int64(LANES * num_vectors))
    with cgutils.for_range(builder, num_steps) as loop:
        step = builder.sub(builder.sub(num_steps, loop.index), _int64(1))
        first = builder.mul(step, _int64(LANES * num_vectors))
        for v in reversed(range(num_vectors)):
            place = builder.add(first, _int64(LANES * v))
            _fetch(builder, ahead, place)
            indices = _reverse(builder, _load(builder, q, place, _INTS))
            x, leaving, leaves = _push_vector(
                builder, builder.load(vectors[v]), indices, classes, table
            )
            used = builder.load(num_used)
            _store(builder, leaving, words, used)
            builder.store(builder.add(used, _count(builder, leaves)), num_used)
            builder.store(x, vectors[v])
    for v, vector in enumerate(vectors):
        _store(builder, _reverse(builder, builder.load(vector)), states, _int64(LANES * v))
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
_FEW = 64


@inner
def takes(lanes):
    """Return whether streams of so many states are coded here."""
    return AVAILABLE and lanes >= LANES


if AVAILABLE:

    @inner
    def push(q, words, table, states, base, shift, last, ahead):
        """Encode all indices q of a stream: see `push_16`."""
        if states.size == LANES:
            if last < _FEW:
                return push_16_of_few(q, words, table, states, base, shift, last, ahead, q.size)
            return push_16(q, words, table, states, base, shift, last, ahead, q.size)
        if last < _FEW:
            return push_32_of_few(q, words, table, states, base, shift, last, ahead, q.size)
        return push_32(q, words, table, states, base, shift, last, ahead, q.size)

    @inner
    def pop(job):
        """Decode a stream as far as possible: see `pop_16`."""
        if job[2].size == LANES:
            pop_16(job)
        else:
            pop_32(job)

    @inner
    def pop_two(job, other):
        """Decode two streams of as many states as far as both can go on: see `pop_16`."""
        if job[2].size == LANES:
            pop_16_and_16(job, other)
        else:
            pop_32_and_32(job, other)

else:

    @inner
    def push(q, words, table, states, base, shift, last, ahead):
        """Encode nothing: `takes` no stream."""
        return 0

    @inner
    def pop(job):
        """Decode nothing: `takes` no stream."""

    @inner
    def pop_two(job, other):
        """Decode nothing: `takes` no stream."""
