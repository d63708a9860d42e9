"""Cast op in Triton. Same bytes as reference.py; one launch to encode, one to decode.

A program takes BLOCK_ROWS whole rows of one segment, and handles values as bits (ops.value_bits).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.batch.rank_sum.gpu import plus
from trec_qcomm.ops.cast.reference import DTYPES
from trec_qcomm.ops.device import no_segment, words
from trec_qcomm.ops.frames.gpu import FramesOfSegments, terms, terms_of_bytes
from trec_qcomm.ops.row_blocks import (
    RowBlocks,
    check_rows,
    note_segment,
    place_of,
    rows_of_program,
    seal_rows,
    store_zeros,
)
from trec_qcomm.ops.value_bits import FP16, FP32, INF, KINDS, MAGNITUDE, as_bits, bits_of, word_of

# The smallest float32 magnitudes that round to inf.
_OVERFLOW_FP16 = tl.constexpr(0x477FF000)
_OVERFLOW_BF16 = tl.constexpr(0x7F7F8000)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    dtype: str,
    frames: FramesOfSegments | None = None,
) -> tuple[Tensor, None]:
    """Write the segments, and seal their frames if these are given.

    Returns: [1] int32, the first segment that overflows, or -1; and None, because flushed values
        are not counted.
    """
    overflow = no_segment(values.device)
    _launch(_encode, values, payload, segments, at, dtype, frames, overflow)
    return overflow, None


def decode(encoded: Encoded, segments: Segments, out: Tensor, *, dtype: str) -> None:
    """Write the rows back."""
    _launch(_decode, out, encoded.payload, segments, encoded.at, dtype, encoded.frames)


def decode_sum(
    encoded: Encoded, segments: Segments, out: Tensor, *, dtype: str, held_at: int
) -> None:
    """Write the sums."""
    num_terms = len(encoded.at) // max(segments.num_segments, 1) + (held_at >= 0)
    places = encoded.payload, segments, encoded.at
    _launch(_decode_sum, out, *places, dtype, encoded.frames, num_terms, held_at)


def _launch(kernel, values, payload, segments, at, dtype, frames, *args):
    blocks = RowBlocks.from_segments(segments, at, values.device, frames)
    bits, rows = as_bits(values)
    blocks.launch(
        kernel, bits, words(payload, torch.int32 if dtype == "fp32" else torch.int16), *args,
        ROWS=rows, KIND=KINDS[DTYPES[dtype]], PACKED=1 if segments.dim % 4 else 4, frames=frames,
    )  # fmt: skip


@triton.jit
def _words_of_rows(
    place, i, live, dim, KIND: tl.constexpr, PACKED: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Return where the words of a tile of rows begin, where each is from there, and which exist.

    Args: place: where the segment begins.  i, live: the tile's first row, and which rows it has.
        PACKED: divisor of dim.
    """
    row, d = tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_DIM)
    away = tl.multiple_of(row * dim, PACKED)[:, None] + d[None, :]
    # Segments begin at multiples of 8 bytes.
    ALIGNED: tl.constexpr = 2 if KIND == FP32 and PACKED == 4 else PACKED
    begin = tl.multiple_of(place // (4 if KIND == FP32 else 2) + i * dim, ALIGNED)
    return begin, away, live[:, None] & (d < dim)[None, :]


@triton.jit
def _sum_of_words(begin, word, there, dim, KIND: tl.constexpr, PACKED: tl.constexpr):
    """Return the sum of the terms of a tile's words.

    Args: begin: where they begin: bytes from the frame's begin.  there: which exist.
    """
    ROWS: tl.constexpr = word.shape[0]
    PER: tl.constexpr = 2 if KIND != FP32 and PACKED == 4 else 1  # words that fill 32 bits
    word, row = tl.where(there, word.to(tl.int32), 0), tl.arange(0, ROWS)[:, None]
    if PER == 2:
        halves = tl.reshape(word & 0xFFFF, (ROWS, word.shape[1] // 2, 2))
        word = tl.sum(halves << (tl.arange(0, 2) * 16)[None, None, :], 2)
    place = row * (dim // PER) + tl.arange(0, word.shape[1])[None, :]
    if KIND == FP32 or PER == 2:
        total = terms(begin, place, word)
    else:
        total = terms_of_bytes(begin, place * 2, word, 2)
    return tl.sum(total)


@triton.jit(do_not_specialize=["call"])
def _encode(
    values, payload, first_overflow, first, offsets, start, stride, at, num_segments, dim,
    headers, table, frame_of, flag, call,
    ROWS: tl.constexpr, KIND: tl.constexpr, PACKED: tl.constexpr, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    FRAMES: tl.constexpr,
):  # fmt: skip
    """Write the words, and zeros after the last one of a segment. values: bits of ROWS."""
    segment, n, i, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    place, origin = place_of(segment, at, frame_of, table, FRAMES)
    to, k, there = _words_of_rows(place, i, live, dim, KIND, PACKED, BLOCK_ROWS, BLOCK_DIM)
    source = values + begin + (away[:, None] + tl.arange(0, BLOCK_DIM)[None, :])
    word = tl.load(source, mask=there, other=0)
    if KIND != ROWS:
        bits = bits_of(word, ROWS)
        word = word_of(bits, KIND)
    tl.store(payload + to + k, word.to(payload.dtype.element_ty), mask=there)
    if KIND != FP32 and KIND != ROWS:
        LEAST: tl.constexpr = _OVERFLOW_FP16 if KIND == FP16 else _OVERFLOW_BF16
        magnitude = bits & MAGNITUDE
        overflows = (magnitude >= LEAST) & (magnitude < INF)
        note_segment(first_overflow, tl.max(overflows.to(tl.int32)) > 0, segment)
    end = place + n * dim * (4 if KIND == FP32 else 2)
    if i == 0:
        store_zeros(payload.to(tl.pointer_type(tl.uint8)), end)
    if FRAMES:
        SIZE: tl.constexpr = 4 if KIND == FP32 else 2
        total = _sum_of_words(to * SIZE - origin, word, there, dim, KIND, PACKED)
        seal_rows(payload, total, segment, n, i, headers, table, frame_of, call, BLOCK_ROWS)


@triton.jit
def _read_rows(
    payload, place, origin, i, live, dim, KIND: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, FRAMES: tl.constexpr,
):  # fmt: skip
    """Return the words of a tile of rows, and the sum of their terms if FRAMES.

    Args: place, origin: where the segment and its frame begin.
    """
    SIZE: tl.constexpr = 4 if KIND == FP32 else 2
    begin, k, there = _words_of_rows(place, i, live, dim, KIND, PACKED, BLOCK_ROWS, BLOCK_DIM)
    word = tl.load(payload + begin + k, mask=there, other=0)
    total = tl.cast(0, tl.uint64)
    if FRAMES:
        total = _sum_of_words(begin * SIZE - origin, word, there, dim, KIND, PACKED)
    return word, total


@triton.jit(do_not_specialize=["call"])
def _decode(
    values, payload, first, offsets, start, stride, at, num_segments, dim,
    headers, table, frame_of, flag, call,
    ROWS: tl.constexpr, KIND: tl.constexpr, PACKED: tl.constexpr, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    FRAMES: tl.constexpr,
):  # fmt: skip
    """Write the rows. values: bits of ROWS."""
    segment, n, i, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    place, origin = place_of(segment, at, frame_of, table, FRAMES)
    word, total = _read_rows(
        payload, place, origin, i, live, dim, KIND, PACKED, BLOCK_ROWS, BLOCK_DIM, FRAMES
    )
    if KIND != ROWS:
        word = word_of(bits_of(word, KIND), ROWS).to(values.dtype.element_ty)
    d = tl.arange(0, BLOCK_DIM)[None, :]
    to = values + begin + (away[:, None] + d)
    tl.store(to, word, mask=live[:, None] & (d < dim))
    if FRAMES:
        check_rows(
            payload, total, place + n * dim * (4 if KIND == FP32 else 2), origin, segment, n, i,
            headers, table, frame_of, flag, call, BLOCK_ROWS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_terms", "held_at", "call"])
def _decode_sum(
    values, payload, num_terms, held_at, first, offsets, start, stride, at, num_segments, dim,
    headers, table, frame_of, flag, call,
    ROWS: tl.constexpr, KIND: tl.constexpr, PACKED: tl.constexpr, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    FRAMES: tl.constexpr,
):  # fmt: skip
    """Write the sums of the rows of all parts. at: [number of parts, num_segments].

    values: bits of float32, which ROWS says.
    """
    segment, n, i, begin, live, away = rows_of_program(
        first, offsets, start, stride, num_segments, STEPS, VECTOR, WIDE, BLOCK_ROWS
    )
    d = tl.arange(0, BLOCK_DIM)[None, :]
    to, mask = values + begin + (away[:, None] + d), live[:, None] & (d < dim)
    total = tl.full([BLOCK_ROWS, BLOCK_DIM], 0.0, tl.float32)
    term, number = 0, segment
    while term < num_terms:
        if term == held_at:
            bits = tl.load(to, mask=mask, other=0)
        else:
            place, origin = place_of(number, at, frame_of, table, FRAMES)
            word, parts = _read_rows(
                payload, place, origin, i, live, dim, KIND, PACKED, BLOCK_ROWS, BLOCK_DIM, FRAMES,
            )  # fmt: skip
            bits = bits_of(word, KIND)
            if FRAMES:
                check_rows(
                    payload, parts, place + n * dim * (4 if KIND == FP32 else 2), origin, number, n,
                    i, headers, table, frame_of, flag, call, BLOCK_ROWS,
                )  # fmt: skip
            number += num_segments
        x = bits.to(tl.float32, bitcast=True)
        total = tl.where(term == 0, x, plus(total, x))  # 0 + -0 is not -0
        term += 1
    tl.store(to, total.to(tl.int32, bitcast=True), mask=mask)
