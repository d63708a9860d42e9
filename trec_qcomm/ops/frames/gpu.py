"""Kernels of frame.py for the GPU. They write the same bytes as cpu.py, and the host never waits.

The host knows what each header must say. It writes the headers (cpu.seal) once for all calls that
differ only in their number. A checksum is a sum, so programs add up parts of it in any order, and
the program that adds the last part of a frame writes the header and the checksum, or compares them
with those that came. The parts are blocks of a frame in the kernels of this file. Kernels of codecs
take tiles of rows in their place, so that nothing is read again (`FramesOfSegments`).
Shapes: P frames, S segments, W bytes; H words of 8 bytes of headers in all, B blocks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.checks import new_flag
from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.core.transfer import upload
from trec_qcomm.ops.device import segment_of

BLOCK = 1024  # words that one program adds up
_CHUNK = 2048  # words that one program copies
# Columns of FramesOnDevice.table.
_BEGIN, _SIZE, _HEADER, _HEADER_SIZE, ITEMS, _SUM, _ARRIVED = map(tl.constexpr, range(7))
_LANES = tl.constexpr(128)  # words of a header that are moved at a time


@dataclass(frozen=True, eq=False)
class FramesOnDevice:
    """Headers of frames on the device, and where the frames lie.

    One object serves any number of calls, one after the other on one stream, because kernels leave
    the table as it was.

    Args:
        at: [S] int64 on CPU, where each segment begins.
        headers: [H] int64, the words that the host wrote, with 0 as number of the call.
        table: [8 P] int64. For each frame: place and size in words, without its padding; the index
            of its first word among `headers`, and their number; the number of its rows and
            segments; memory, 0, for the checksum and for what has arrived; and nothing.
        first_block: [P + 1] int64, index of each frame's first block.
        num_blocks: B.
    """

    at: Tensor
    headers: Tensor
    table: Tensor
    first_block: Tensor
    num_blocks: int

    @classmethod
    def from_host(
        cls,
        device: torch.device,
        at: Tensor,
        headers: Tensor,
        header_nbytes: Any,
        begin: Any,
        frame_nbytes: Any,
        items: Any = 0,
    ) -> "FramesOnDevice":
        """Copy headers to the device.

        Args:
            at: [S] int64 on CPU, where each segment begins.
            headers: [8 H] uint8 on CPU.
            header_nbytes, begin, frame_nbytes: [P] int64 arrays, multiples of 8: size of each
                header, and place and size of each frame.
            items: [P] int64 array, the number of each frame's rows and segments.
        """
        sizes, table = header_nbytes // 8, np.zeros((len(begin), 8), np.int64)
        first = sizes.cumsum() - sizes
        table[:, :4] = np.stack([begin // 8, frame_nbytes // 8, first, sizes], 1)
        table[:, 4] = items
        first_block = exclusive_cumsum(torch.from_numpy(-(-frame_nbytes // (8 * BLOCK))))
        vectors = headers.view(torch.int64), torch.from_numpy(table.reshape(-1)), first_block
        return cls(at, *upload(device, *vectors), int(first_block.numpy()[-1]))

    def launch(self, kernel: Any, buffer: Tensor, call: int, *flags: Tensor) -> None:
        """Run a kernel, one program a block, on the frames in the buffer."""
        if self.num_blocks:
            num_frames = self.first_block.numel() - 1
            kernel[(self.num_blocks,)](
                _words(buffer), self.headers, self.table, self.first_block, *flags, call,
                num_frames, STEPS=num_frames.bit_length(), BLOCK=BLOCK,
            )  # fmt: skip


@dataclass(frozen=True, eq=False)
class FramesOfSegments:
    """Frames that the kernels of codecs seal, or check, while they code the segments.

    Each program adds up `terms` of all that it writes or reads, and calls `seal_part` or
    `check_part`. Its items are its rows, and 1 more if it has the first rows of a segment.

    Args:
        frames: the frames.
        call: number of the exchange, 16 bits.
        first: flag that becomes what `first_difference` returns; None to seal.
        frame: [S] int64 on CPU, the index of each segment's frame.
    """

    frames: FramesOnDevice
    call: int
    first: Tensor | None = None
    frame: Tensor | None = None

    def of_segments(self, frame: Tensor) -> "FramesOfSegments":
        """Return the same for some segments. Args: frame: [S] int64, the frame of each."""
        return FramesOfSegments(self.frames, self.call, self.first, frame)


def seal(buffer: Tensor, frames: FramesOnDevice, call: int) -> None:
    """Put each header before its payload, the checksum into it, and zeros after the frame.

    Args: buffer: [W] uint8 on the device.  call: 16 bits.
    """
    frames.launch(_seal, buffer, call)


def first_difference(buffer: Tensor, frames: FramesOnDevice, call: int) -> Tensor:
    """Compare the headers in the buffer, and the checksums in them, with the expected ones.

    Args: buffer: [W] uint8 on the device.  call: 16 bits.
    Returns: [1] int32, the index, among the H words of all headers, of the first word that differs,
        or -1.
    """
    first = new_flag(buffer.device)
    frames.launch(_compare, buffer, call, first)
    return first


def compact(payload: Tensor, old: Tensor, new: Tensor, nbytes: Tensor, out: Tensor) -> None:
    """Copy nbytes[s] bytes of segment s from payload[old[s]:] to out[new[s]:].

    Args: payload, out: uint8 on the device.  old, new, nbytes: [S] int64 on CPU, multiples of 8.
    """
    size = nbytes.numpy() // 8
    num_chunks = -(-size // _CHUNK)
    segment = np.arange(len(size)).repeat(num_chunks)
    first = (np.arange(len(segment)) - (num_chunks.cumsum() - num_chunks)[segment]) * _CHUNK
    if len(segment):
        places = (vector.numpy()[segment] // 8 + first for vector in (old, new))
        where = map(torch.from_numpy, (*places, size[segment] - first))
        _copy[(len(segment),)](
            _words(payload), _words(out), *upload(payload.device, *where), BLOCK=_CHUNK
        )


def _words(buffer: Tensor) -> Tensor:
    return buffer[: buffer.numel() // 8 * 8].view(torch.int64)


@triton.jit
def terms(begin, place, word):
    """Return what words of 32 bits add to the checksum of their frame (frame.checksum), uint64.

    A word of 0 adds nothing.

    Args:
        begin: where they begin: bytes from the frame's begin, a scalar and a multiple of 4.
        place: place of each word from there, in words.  word: int32.
    """
    word = word.to(tl.uint32, bitcast=True).to(tl.uint64)
    return _key((begin >> 2).to(tl.uint32) + place.to(tl.uint32)) * word


@triton.jit
def terms_of_bytes(begin, place, value, SIZE: tl.constexpr):
    """Return what bytes add to the checksum of their frame, uint64. Bytes of 0 add nothing.

    Args:
        begin: where they begin: bytes from the frame's begin, a scalar.
        place: the byte from there at which each value's bytes are, a multiple of 2 if SIZE is 2.
        value: integers whose lowest SIZE bytes count.
    """
    MASK: tl.constexpr = (1 << (8 * SIZE)) - 1
    byte, word = (begin & 3).to(tl.int32) + place, value.to(tl.uint32) & MASK
    index, shift = (begin >> 2).to(tl.uint32) + (byte >> 2).to(tl.uint32), (byte & 3) * 8
    shift = shift.to(tl.uint32)
    total = _key(index) * (word << shift).to(tl.uint64)
    if SIZE > 2:  # they may end in the next word
        total += _key(index + 1) * ((word >> 1) >> (31 - shift)).to(tl.uint64)
    return total


@triton.jit
def _key(index):
    """Return the factor of 32-bit words in the checksum of their frame, uint64."""
    k = index * 0x9E3779B1
    k = k ^ (k >> 16)
    return k.to(tl.uint64) * (k ^ 0x85EBCA6B).to(tl.uint64) | 1


@triton.jit
def terms_of_words(place, word, live):
    """Return what words of 8 bytes, int64, add to the checksum of their frame, uint64.

    Args: place: place of each word in the frame.  live: which of them count.
    """
    index, word = (place * 2).to(tl.uint32), word.to(tl.uint64, bitcast=True)
    return tl.where(live, _key(index) * (word & 0xFFFFFFFF) + _key(index + 1) * (word >> 32), 0)


@triton.jit
def _arrive(row, total, items, due):
    """Add a program's part to a frame. Return whether it was the last part, and the sum if so.

    Args: row: the frame's row of the table.  total: uint64, the sum of the part's terms.
        items: what the part has of all that is due in the frame.
    """
    tl.atomic_add(row + _SUM, total.to(tl.int64, bitcast=True))
    before = tl.atomic_add(row + _ARRIVED, items)
    is_last, parts = before + items == due, before * 0
    if is_last:  # the next call begins with zeros again
        parts = tl.atomic_xchg(row + _SUM, parts)
        tl.atomic_xchg(row + _ARRIVED, before * 0)
    return is_last, parts.to(tl.uint64, bitcast=True)


@triton.jit
def _header(headers, row, begin, call):
    """Return _LANES words of a frame's header as they must be, where they are in the frame, and
    which exist. Args: begin: number of the first."""
    place = begin + tl.arange(0, _LANES)
    there = place < tl.load(row + _HEADER_SIZE)
    word = tl.load(headers + tl.load(row + _HEADER) + place, mask=there, other=0)
    return tl.where(place == 0, word | (call.to(tl.int64) << 48), word), place, there


@triton.jit
def seal_part(words, headers, row, total, items, due, call):
    """Add a program's part to a frame. With the last part the frame is complete: write its header,
    its checksum, and zeros up to the next multiple of 128 bytes.

    The arguments are those of `_arrive`.
    """
    is_last, checksum = _arrive(row, total, items, due)
    if is_last:
        to, size, lane = words + tl.load(row + _BEGIN), tl.load(row + _SIZE), tl.arange(0, _LANES)
        tl.store(to + size + lane, lane.to(tl.int64) * 0, mask=lane < ((-size) & 15))
        begin = size * 0
        while begin < tl.load(row + _HEADER_SIZE):
            word, place, there = _header(headers, row, begin, call)
            there = there & (place != 3)
            tl.store(to + place, word, mask=there)
            checksum += tl.sum(terms_of_words(place, word, there))
            begin += _LANES
        tl.store(to + 3, checksum.to(tl.int64, bitcast=True))


@triton.jit
def check_part(words, headers, row, total, items, due, first, call):
    """Add a program's part to a frame. With the last part lower `first` [1], -1 before, which is
    the largest uint32, to the first word of the header that is not as expected.

    The arguments are those of `_arrive`.
    """
    is_last, checksum = _arrive(row, total, items, due)
    if is_last:
        source, number = words + tl.load(row + _BEGIN), tl.load(row + _HEADER)
        begin, lowest = number * 0, number * 0 + 0x7FFFFFFF
        while begin < tl.load(row + _HEADER_SIZE):
            expected, place, there = _header(headers, row, begin, call)
            there = there & (place != 3)
            word = tl.load(source + place, mask=there, other=0)
            checksum += tl.sum(terms_of_words(place, word, there))
            differs = there & (word != expected)
            lowest = tl.minimum(lowest, tl.min(tl.where(differs, number + place, 0x7FFFFFFF)))
            begin += _LANES
        if tl.load(source + 3) != checksum.to(tl.int64, bitcast=True):
            lowest = tl.minimum(lowest, number + 3)
        if lowest < 0x7FFFFFFF:
            tl.atomic_min(first.to(tl.pointer_type(tl.uint32)), lowest.to(tl.uint32))


@triton.jit
def _block(words, table, first_block, num_frames, STEPS, BLOCK):
    """Return what the block of this program is: its frame's row of the table, the sum of its
    terms, its number of words, and that of the frame."""
    block = tl.program_id(0)
    frame = segment_of(block, first_block, num_frames, STEPS)
    row, begin = table + 8 * frame, (block - tl.load(first_block + frame)) * BLOCK
    place, size = begin + tl.arange(0, BLOCK), tl.load(row + _SIZE)
    is_payload = (place < size) & (place >= tl.load(row + _HEADER_SIZE))
    word = tl.load(words + tl.load(row + _BEGIN) + place, mask=is_payload, other=0)
    total = tl.sum(terms_of_words(place, word, is_payload))
    return row, total, tl.minimum(size - begin, BLOCK), size


# Without this, a call's number of 1 or a multiple of 16 would compile another kernel.
@triton.jit(do_not_specialize=["call"])
def _seal(
    words, headers, table, first_block, call, num_frames, STEPS: tl.constexpr, BLOCK: tl.constexpr
):
    row, total, items, due = _block(words, table, first_block, num_frames, STEPS, BLOCK)
    seal_part(words, headers, row, total, items, due, call)


@triton.jit(do_not_specialize=["call"])
def _compare(
    words, headers, table, first_block, first, call, num_frames,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, total, items, due = _block(words, table, first_block, num_frames, STEPS, BLOCK)
    check_part(words, headers, row, total, items, due, first, call)


@triton.jit
def _copy(source, target, source_at, target_at, left, BLOCK: tl.constexpr):
    chunk = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < tl.load(left + chunk)
    word = tl.load(source + tl.load(source_at + chunk) + i, mask=mask)
    tl.store(target + tl.load(target_at + chunk) + i, word, mask=mask)
