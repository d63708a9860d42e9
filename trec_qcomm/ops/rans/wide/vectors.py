"""Vectors of 16 lanes in LLVM's language: the parts of this folder's coders."""

# mypy: ignore-errors
from llvmlite import ir
from numba.core import cgutils

LANES = 16
LOG = 12  # log2 of the slots of a table
BIT, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
BITS, SHORTS, INTS, FLOATS = (
    ir.VectorType(kind, LANES) for kind in (BIT, I16, I32, ir.FloatType())
)
LONGS, UNDEFINED = ir.VectorType(I64, 8), ir.Constant(INTS, ir.Undefined)
POINTER = I8.as_pointer()
REVERSED = ir.Constant(INTS, list(range(LANES - 1, -1, -1)))


def all_of(number, kind=INTS):
    """Return a vector of one constant."""
    return ir.Constant(kind, [number] * LANES)


def splat(builder, number, kind=INTS):
    """Return a vector of one number that is known at run time."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), all_of(0))


def call(builder, name, result, *arguments):
    """Call a function of LLVM's."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def gather(builder, name, kind, table, places, scale):
    """Load a number from each place of a table, `scale` bytes apart."""
    name = f"llvm.x86.avx512.mask.gather.{name}.512"
    return call(
        builder, name, kind, ir.Constant(kind, ir.Undefined), builder.bitcast(table, POINTER),
        places, all_of(1, BITS), ir.Constant(I32, scale),
    )  # fmt: skip


def load(builder, array, place, kind):
    """Load a vector from an array, from a place on."""
    where = builder.bitcast(builder.gep(array, [place]), kind.as_pointer())
    return builder.load(where, align=1)


def fetch(builder, array, place):
    """Fetch a line of memory into the second cache; an invalid address does no harm."""
    kind = ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    where = builder.bitcast(builder.gep(array, [place]), POINTER)
    builder.call(prefetch, [where, *(ir.Constant(I32, n) for n in (0, 2, 1))])


def store(builder, vector, array, place):
    """Store a vector to an array, from a place on."""
    where = builder.bitcast(builder.gep(array, [place]), vector.type.as_pointer())
    builder.store(vector, where, align=1)


def reverse(builder, vector):
    """Return a vector whose first lane is the last of another."""
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), REVERSED)


def count(builder, mask):
    """Return the number of 1s of a mask, as an int64."""
    return builder.zext(builder.ctpop(builder.bitcast(mask, I16)), I64)


def int64(number):
    """Return a constant of 64 bits."""
    return ir.Constant(I64, number)


def deinterleave(builder, first, second):
    """Return the elements at even and at odd places of two vectors."""
    return [builder.shuffle_vector(first, second, places(range(k, 2 * LANES, 2))) for k in (0, 1)]


def places(numbers):
    """Return the constant that names lanes to a shuffle."""
    return ir.Constant(ir.VectorType(I32, len(numbers)), list(numbers))
