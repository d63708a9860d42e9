"""Cast op in Triton. Same bytes as reference.py; one launch to encode, one to decode.

A program takes adjacent values, whatever rows and segments they belong to, and handles them as bits
(ops.value_bits).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.batch.rank_sum.gpu import plus
from trec_qcomm.ops.cast.reference import DTYPES
from trec_qcomm.ops.device import launch, no_segment, note_first, words
from trec_qcomm.ops.value_bits import FP16, FP32, INF, KINDS, MAGNITUDE, as_bits, bits_of, word_of
from trec_qcomm.ops.value_tiles import lists_of_tile, row_and_column, tiles_of

# Registers that a thread may use; told no number, the compiler takes 32 and spills.
_REGISTERS, _REGISTERS_OF_SUMS = 64, 128
WIDE_REGISTERS = 128  # of all kernels, where numbers of values need 64 bits
# The smallest float32 magnitudes that round to inf.
_OVERFLOW_FP16 = tl.constexpr(0x477FF000)
_OVERFLOW_BF16 = tl.constexpr(0x7F7F8000)


def encode(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, *, dtype: str
) -> tuple[Tensor, None]:
    """Write the segments; return [1] int32, the first segment that overflows, or -1; and None."""
    places = words(payload, torch.int32 if dtype == "fp32" else torch.int16)
    overflow = no_segment(values.device)
    _launch(_encode, values, places, segments, at, dtype, overflow)
    return overflow, None


def decode(encoded: Encoded, segments: Segments, out: Tensor, *, dtype: str) -> None:
    """Write the rows back."""
    places = words(encoded.payload, torch.int32 if dtype == "fp32" else torch.int16)
    _launch(_decode, out, places, segments, encoded.at, dtype)


def decode_sum(
    encoded: Encoded, segments: Segments, out: Tensor, *, dtype: str, held_at: int
) -> None:
    """Write the sums."""
    places = words(encoded.payload, torch.int32 if dtype == "fp32" else torch.int16)
    num_terms = len(encoded.at) // max(segments.num_segments, 1) + (held_at >= 0)
    numbers = num_terms, held_at
    _launch(
        _decode_sum, out, places, segments, encoded.at, dtype, *numbers, maxnreg=_REGISTERS_OF_SUMS
    )  # fmt: skip


def _launch(kernel, values, places, segments, at, dtype, *flags, maxnreg=_REGISTERS):
    layout, programs, options = tiles_of(segments, at, values.device)
    maxnreg = WIDE_REGISTERS if options["WIDE"] else maxnreg
    bits, rows = as_bits(values)
    launch(
        kernel, programs, bits, places, *flags, *layout, segments.num_segments, segments.dim,
        ROWS=rows, KIND=KINDS[DTYPES[dtype]], maxnreg=maxnreg, **options,
    )  # fmt: skip


@triton.jit
def _places_of_tile(
    first, start, stride, at, num_segments, dim, KIND: tl.constexpr, STEPS: tl.constexpr,
    WIDE: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return for each VECTOR values of this program: whether there are any, their segment, where
    they lie in the buffer, where in the payload (in its words), and how many values the segment
    still has, counted from them."""
    live, segment, number = lists_of_tile(first, num_segments, STEPS, VECTOR, BLOCK)
    row, column = row_and_column(number, dim, WIDE)
    value = tl.load(start + segment) + row * tl.load(stride + segment) + column
    left = tl.load(first + segment + 1) - tl.load(first + segment) - number
    place = tl.load(at + segment) // (4 if KIND == FP32 else 2) + number
    # Segments of the payload begin at multiples of 8 bytes.
    ALIGNED: tl.constexpr = 2 if KIND == FP32 and VECTOR == 4 else VECTOR
    return live, segment, tl.multiple_of(value, VECTOR), tl.multiple_of(place, ALIGNED), left


@triton.jit
def _encode(
    values, payload, first_overflow, first, start, stride, at, num_segments, dim,
    ROWS: tl.constexpr, KIND: tl.constexpr, STEPS: tl.constexpr, WIDE: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the words, and zeros after the last one of a segment. values: bits of ROWS."""
    live, segment, value, place, left = _places_of_tile(
        first, start, stride, at, num_segments, dim, KIND, STEPS, WIDE, VECTOR, BLOCK
    )
    v = tl.arange(0, VECTOR)[None, :]
    word = tl.load(values + value[:, None] + v, mask=live[:, None], other=0)
    if KIND != ROWS:
        bits = bits_of(word, ROWS)
        word = word_of(bits, KIND)
    tl.store(payload + place[:, None] + v, word.to(payload.dtype.element_ty), mask=live[:, None])
    if KIND != FP32 and KIND != ROWS:
        LEAST: tl.constexpr = _OVERFLOW_FP16 if KIND == FP16 else _OVERFLOW_BF16
        magnitude = bits & MAGNITUDE
        overflows = (magnitude >= LEAST) & (magnitude < INF)
        note_first(first_overflow, tl.max(overflows.to(tl.int32), 1) > 0, segment)
    if VECTOR == 1:  # else segments fill their bytes
        PER: tl.constexpr = 2 if KIND == FP32 else 4
        size = tl.load(first + segment + 1) - tl.load(first + segment)
        for t in tl.static_range(1, PER):
            beyond = live & (left == 1) & (size % PER != 0) & (size % PER + t <= PER)
            zero = tl.zeros_like(place).to(payload.dtype.element_ty)
            tl.store(payload + place + t, zero, mask=beyond)


@triton.jit
def _decode(
    values, payload, first, start, stride, at, num_segments, dim,
    ROWS: tl.constexpr, KIND: tl.constexpr, STEPS: tl.constexpr, WIDE: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the rows. values: bits of ROWS."""
    live, _, value, place, _ = _places_of_tile(
        first, start, stride, at, num_segments, dim, KIND, STEPS, WIDE, VECTOR, BLOCK
    )
    v = tl.arange(0, VECTOR)[None, :]
    word = tl.load(payload + place[:, None] + v, mask=live[:, None], other=0)
    if KIND != ROWS:
        word = word_of(bits_of(word, KIND), ROWS).to(values.dtype.element_ty)
    tl.store(values + value[:, None] + v, word, mask=live[:, None])


@triton.jit(do_not_specialize=["num_terms", "held_at"])
def _decode_sum(
    values, payload, num_terms, held_at, first, start, stride, at, num_segments, dim,
    ROWS: tl.constexpr, KIND: tl.constexpr, STEPS: tl.constexpr, WIDE: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the sums of the rows of all parts. at: [number of parts, num_segments].

    values: bits of float32, which ROWS says.
    """
    live, segment, value, place, _ = _places_of_tile(
        first, start, stride, at, num_segments, dim, KIND, STEPS, WIDE, VECTOR, BLOCK
    )
    v = tl.arange(0, VECTOR)[None, :]
    to = values + value[:, None] + v
    begin, number = tl.load(at + segment), segment
    ALIGNED: tl.constexpr = 2 if KIND == FP32 and VECTOR == 4 else VECTOR
    total = tl.full([BLOCK // VECTOR, VECTOR], 0.0, tl.float32)
    term = 0
    while term < num_terms:
        if term == held_at:
            bits = tl.load(to, mask=live[:, None], other=0)
        else:
            away = (tl.load(at + number) - begin) // (4 if KIND == FP32 else 2)
            source = tl.multiple_of(place + away, ALIGNED)[:, None] + v
            bits = bits_of(tl.load(payload + source, mask=live[:, None], other=0), KIND)
            number += num_segments
        x = bits.to(tl.float32, bitcast=True)
        total = tl.where(term == 0, x, plus(total, x))  # 0 + -0 is not -0
        term += 1
    tl.store(to, total.to(tl.int32, bitcast=True), mask=live[:, None])
