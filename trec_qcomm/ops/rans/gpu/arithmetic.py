"""Constants and integer functions of the format, and counting within a warp, in Triton."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans import reference

GROUP, STREAM, LANES = (tl.constexpr(n) for n in (1024, reference.STREAM, 32))
GROUPS_PER_STREAM = tl.constexpr(STREAM.value // GROUP.value)
CLASSES = tl.constexpr(256)  # largest number of classes
LOWER, MAX_LOG = tl.constexpr(reference.LOWER), tl.constexpr(reference.MAX_LOG)
MAX_SHIFT = tl.constexpr(reference.MAX_SHIFT)


@triton.jit
def bit_length(n):
    """Return the bits up to the highest 1 of 0 <= n < 2^53, int32."""
    bits = n.to(tl.float64).to(tl.int64, bitcast=True)
    return tl.maximum((bits >> 52).to(tl.int32) - 1022, 0)


@triton.jit
def num_lanes(num_values):
    """Return how many states of a stream take turns, as reference.py defines it."""
    length = bit_length(num_values)
    few = tl.minimum(2, tl.maximum(0, (length - 7) // 2))
    return 1 << tl.minimum(5, tl.maximum(few, length - 12))


@triton.jit
def end_of_stream(stream, num_values):
    """Return where the indices of a segment's stream end, int32."""
    last = stream + 1 >= num_values // STREAM
    return tl.where(last, num_values, (stream + 1) * STREAM).to(tl.int32)


@triton.jit
def table_log(num_values, num_symbols):
    """Return log2 of the number of slots, as reference.py defines it."""
    log = tl.minimum(MAX_LOG, bit_length(num_values) // 2 + 4)
    return tl.maximum(bit_length(num_symbols) + 1, log)


@triton.jit
def unzigzag(n):
    """Map 0, 1, 2, 3 to 0, -1, 1, -2."""
    return (n >> 1) ^ -(n & 1)


@triton.jit
def votes(flag):
    """Return the flags [32] of all lanes as bits of a uint32, bit i for lane i.

    It is written as a sum, for which a warp has an instruction.
    """
    return tl.sum(flag.to(tl.uint32) << tl.arange(0, LANES).to(tl.uint32), 0).to(tl.uint32)


@triton.jit
def bit_count(word):
    """Count the 1s of a uint32, as int32.

    The compiler recognizes this expression and makes one instruction of it.
    """
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)
