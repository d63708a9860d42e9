"""Search with many damaged frames in compiled code: unseal and the CPU decoders alone.

A case is a sound frame with damage to its payload, its header or its size, after which the checksum
is made right again in 15 of 16 cases, so that the damage reaches the decoder. It must decode or be
refused. Rows lie between guard values that no decoder may touch, and bytes follow the frame that
belong to nobody. Of a damaged frame without a new checksum the rest must be refused, too.
Raises nothing itself: a crash ends the process, and `python -m tests.fuzz` says which round it was.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit

from tests.fuzz.frames import CODECS
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.dual_level.vector_lz import segments as vector_lz
from trec_qcomm.ops.cast import cpu as cast
from trec_qcomm.ops.error_bound import cpu as error_bound
from trec_qcomm.ops.error_bound import rans_segments
from trec_qcomm.ops.float6 import cpu as float6
from trec_qcomm.ops.rowwise import cpu as rowwise
from trec_qcomm.testing import frame_of
from trec_qcomm.wire import cpu

# Small frames, of which a process decodes a million a second; one of two segments.
SHAPES = (([3], 8), ([2, 0, 9], 5), ([16], 4))
STREAMS = ([4096], 32)  # 2^17 values: rANS in two streams
GUARD, GUARD_VALUE, GUARD_BYTE = 64, np.float32(-7.0625), np.uint8(0x5A)
OUTCOMES = ("refused as a frame", "refused by the decoder", "decoded")
BROKEN_GUARD, UNSEEN_DAMAGE = 3, 4  # in place of an outcome
SIZE_CHANGE, HEADER_CHANGE = 0, 1  # kinds of damage, of NUM_KINDS; the others are in _damage
NUM_KINDS = 10


@dataclass(frozen=True, eq=False)
class Subject:
    """A sound frame to damage.

    Args:
        codec: the codec that made it.
        frame: [W] uint8.
        segments: what the receiver expects in it.
        decode: compiled function that decodes it; a result >= 0 means refused.
    """

    codec: Codec
    frame: torch.Tensor
    segments: Segments
    decode: Any


@njit
def _cast_fp32(payload, at, nbytes, offsets, start, stride, dim, out):
    cast.decode(payload, at, offsets, start, stride, dim, out, cast.FP32)
    return -1


@njit
def _cast_bf16(payload, at, nbytes, offsets, start, stride, dim, out):
    cast.decode(payload, at, offsets, start, stride, dim, out, cast.BF16)
    return -1


def _rowwise(num_bits: int) -> Any:
    @njit
    def decode(payload, at, nbytes, offsets, start, stride, dim, out):
        return rowwise.decode(payload, at, offsets, start, stride, dim, out, num_bits)

    return decode


@njit
def _error_bounded(payload, at, nbytes, offsets, start, stride, dim, out):
    bad, reason = error_bound.decode(payload, at, nbytes, offsets, start, stride, dim, out)
    if reason == error_bound.OTHER_ENCODER:
        bad, reason = rans_segments.decode(payload, at, nbytes, offsets, start, stride, dim, out)
    if reason == error_bound.OTHER_ENCODER:
        bad, reason = vector_lz.decode(payload, at, nbytes, offsets, start, stride, dim, out)
    return bad


@njit
def _float6(payload, at, nbytes, offsets, start, stride, dim, out):
    return float6.decode(payload, at, offsets, start, stride, dim, out, 4)


DECODERS = {
    1: _cast_fp32, 3: _cast_bf16, 4: _rowwise(2), 5: _rowwise(4), 6: _rowwise(8),
    7: _error_bounded, 12: _float6,
}  # fmt: skip


@njit
def _next(state):
    """Advance an xorshift generator, [1] uint64, and return its number."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return x


@njit
def _below(state, limit):
    return np.int64((_next(state) >> np.uint64(16)) % np.uint64(limit))


@njit
def _damage(data, overhead, state):
    """Damage a frame's bytes in place; return its new size. data: [W + GUARD] uint8."""
    size, kind = data.size - GUARD, _below(state, NUM_KINDS)
    payload = max(size - overhead, 1)
    if kind == SIZE_CHANGE:
        last = data[overhead - 16 : overhead].view(np.uint32)
        entry = 3 if (overhead // 4 - 8) % 3 == 0 else 2  # the last segment's nbytes
        change = 8 * (_below(state, 9) - 4)
        if size + change >= overhead and np.int64(last[entry]) + change >= 0:
            last[entry] = np.uint32(np.int64(last[entry]) + change)
            size += change
            data[16:24].view(np.int64)[0] = size
    elif kind == HEADER_CHANGE:
        data[_below(state, overhead)] = _below(state, 256)
    elif kind == 2:
        data[overhead + _below(state, payload)] ^= np.uint8(1) << np.uint8(_below(state, 8))
    elif kind == 3:  # an extreme number among the first words of the payload
        extremes = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000)
        value = np.int64(extremes[_below(state, 10)])
        at = overhead + _below(state, min(payload, 48))
        for b in range(1 << _below(state, 3)):
            data[min(at + b, size - 1)] = (value >> (8 * b)) & 0xFF
    elif kind == 4:
        words = data[:size].view(np.uint32)
        a = overhead // 4 + _below(state, max(payload // 4, 1))
        b = overhead // 4 + _below(state, max(payload // 4, 1))
        words[a], words[b] = words[b], words[a]
    elif kind == 5:  # noise from somewhere on
        for i in range(overhead + _below(state, payload), size):
            data[i] = _below(state, 256)
    elif kind == 6:  # noise in the first words
        for i in range(overhead, min(overhead + 1 + _below(state, 16), size)):
            data[i] = _below(state, 256)
    else:
        for _ in range(1 + _below(state, 4)):
            data[overhead + _below(state, payload)] = _below(state, 256)
    return size


@njit
def _is_whole(values, wanted):
    """Return whether no guard value was touched. wanted: [..] uint8, 1 where rows may lie."""
    broken = False
    for i in range(values.size):
        broken |= wanted[i] == 0 and values[i] != GUARD_VALUE
    return not broken


@njit
def _search(num_cases, state, sound, wire_id, fixed_nbytes, num_rows, layout, wanted, decode):
    """Return how often each outcome came, and the state of the case that broke a promise, or 0."""
    outcomes, count = np.zeros(5, np.int64), num_rows.size
    codecs, at = np.empty(count, np.int64), np.empty(count, np.int64)
    nbytes, one = np.empty(count, np.int64), np.empty(1, np.int64)
    counts, layouts = np.full(1, count), np.full(1, 0x1234)
    overhead = (32 + 12 * count + 7) // 8 * 8
    offsets, start, stride, dim = layout
    data = np.full(sound.size + GUARD, GUARD_BYTE)
    values = np.full(wanted.size, GUARD_VALUE)
    for _ in range(num_cases):
        before = state[0]
        data[: sound.size] = sound
        data[sound.size :] = GUARD_BYTE
        one[0] = _damage(data, overhead, state)
        same = one[0] == sound.size and np.array_equal(data[: sound.size], sound)
        frame = data[: one[0]]
        resealed = _below(state, 16) > 0
        if resealed:
            frame[24:32].view(np.uint64)[0] = cpu.checksum(frame.view(np.uint64))
        reason = cpu.unseal(frame, one, counts, layouts, 0, num_rows, codecs, at, nbytes)[0]
        if reason != cpu.OK:
            outcomes[0] += 1
            continue
        if not (resealed or same):
            outcomes[UNSEEN_DAMAGE] += 1
            return outcomes, before
        refused = False
        for s in range(count):
            refused |= codecs[s] != wire_id
            refused |= fixed_nbytes[s] >= 0 and nbytes[s] != fixed_nbytes[s]
        if not refused:
            refused = decode(frame, at, nbytes, offsets, start, stride, dim, values) >= 0
        outcomes[1 if refused else 2] += 1
        if not _is_whole(values, wanted):
            outcomes[BROKEN_GUARD] += 1
            return outcomes, before
    return outcomes, np.uint64(0)


def subjects() -> Iterator[Subject]:
    """Yield sound frames: each codec and shape, with repeated rows and a NaN; rANS in two streams
    last."""
    for codec in (codec for codec in CODECS if codec.wire_id in DECODERS):
        for num_rows, dim in SHAPES:
            yield _subject(codec, num_rows, dim)
    yield _subject(next(c for c in CODECS if getattr(c, "encoder", "") == "rans"), *STREAMS)


def _subject(codec: Codec, num_rows: list[int], dim: int) -> Subject:
    generator = torch.Generator().manual_seed(dim)
    rows = torch.randn(sum(num_rows), dim, generator=generator)
    rows[len(rows) // 2 :] = rows[: len(rows) - len(rows) // 2].round()
    rows[-1, 0] = torch.nan
    # Rows lie behind the guard, with a gap after each.
    packed = Segments.packed(num_rows, dim)
    shape = packed.offsets, dim, GUARD + packed.offsets[:-1] * (dim + 3), packed.stride + 3
    segments = Segments(*shape)
    data = frame_of(codec, rows, num_rows)[0]
    return Subject(codec, data, segments, DECODERS[codec.wire_id])


def search_subject(subject: Subject, num_cases: int, seed: int) -> np.ndarray:
    """Return [3] how often each of OUTCOMES came among `num_cases` damaged copies of a frame.

    Raises: AssertionError: a decoder wrote where no row is, or damage was not seen.
    """
    segments = subject.segments
    layout = segments.offsets, segments.start, segments.stride
    offsets, start, stride = (tensor.numpy() for tensor in layout)
    wanted = np.zeros(int(segments.extent) + GUARD, np.uint8)
    for s, num_rows in enumerate(segments.num_rows.tolist()):
        for i in range(num_rows):
            begin = int(start[s] + i * stride[s])
            wanted[begin : begin + segments.dim] = 1
    fixed = torch.full_like(segments.start, -1)
    if subject.codec.fixed_size:
        fixed = subject.codec.max_nbytes(segments)
    state = np.array([0x9E3779B97F4A7C15 * (seed + 1) % 2**64 or 1], np.uint64)
    outcomes, broken = _search(
        num_cases, state, subject.frame.numpy(), subject.codec.wire_id, fixed.numpy(),
        segments.num_rows.numpy(), (offsets, start, stride, segments.dim),
        wanted, subject.decode,
    )  # fmt: skip
    kind = "wrote where no row is" if outcomes[BROKEN_GUARD] else "damage was not seen"
    assert not broken, f"{subject.codec}: {kind}; state {int(broken):#x}, seed {seed}"
    return outcomes[:3]


def search(
    num_cases: int, seed: int, progress: Callable[[int], object] = lambda _: None
) -> np.ndarray:
    """Search with at least `num_cases` damaged frames; return [3] how often each outcome came.

    All subjects have equally many cases but the last, whose frame is some 300 times larger and
    has one for a hundred of theirs. Rounds have seeds of their own, from `seed` on.
    """
    frames, outcomes, round_ = list(subjects()), np.zeros(3, np.int64), 0
    cases = max(1, min(100_000, -(-num_cases // len(frames))))
    while outcomes.sum() < num_cases:
        for number, subject in enumerate(frames):
            large = number == len(frames) - 1
            n = -(-cases // 100) if large else cases
            outcomes += search_subject(subject, n, (seed + round_) * 100 + number)
            progress(n)
        round_ += 1
    return outcomes
