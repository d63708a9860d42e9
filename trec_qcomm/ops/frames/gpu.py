"""Kernels of frame.py for the GPU. They write the same bytes as cpu.py, and the host never waits.

The host knows what each header must say. It writes the headers (cpu.seal) once for all calls that
differ only in their number. On the GPU one kernel puts the headers before the payload and adds up
the checksums. Another kernel compares both with the received frames.
Shapes: P frames that are not empty; in all of them S segments, W bytes, H words of 8 bytes of
headers, B blocks of the checksum.
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

BLOCK = 1024  # words of a block of the checksum, which one program adds up
_CHUNK = 2048  # words that one program copies
_STEP = tl.constexpr(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class FramesOnDevice:
    """Headers of frames on the device, and where the frames lie.

    One object serves any number of calls, one after the other on one stream, because a kernel
    leaves `sums` and `arrived` as they were.

    Args:
        at: [S] int64 on CPU, where each segment begins.
        headers: [H] int64, the words that the host wrote, with 0 as number of the call.
        header_first: [P + 1] int64, index of each frame's first word among `headers`.
        begin, size: [P] int64, place and size of each frame in words, without its padding.
        first_block: [P + 1] int64, index of each frame's first block.
        sums, arrived: [P] int64, 0: memory for checksums, and for counts of finished blocks.
        num_blocks: B.
    """

    at: Tensor
    headers: Tensor
    header_first: Tensor
    begin: Tensor
    size: Tensor
    first_block: Tensor
    sums: Tensor
    arrived: Tensor
    num_blocks: int

    @classmethod
    def from_host(
        cls,
        device: torch.device,
        at: Tensor,
        headers: Tensor,
        header_nbytes: Tensor,
        begin: Tensor,
        frame_nbytes: Tensor,
    ) -> "FramesOnDevice":
        """Copy headers to the device.

        Args:
            at: [S] int64 on CPU, where each segment begins.
            headers: [8 H] uint8 on CPU.
            header_nbytes, begin, frame_nbytes: [P] int64 on CPU, multiples of 8: size of each
                header, and place and size of each frame.
        """
        sizes = frame_nbytes.numpy()  # numpy is faster than torch on vectors this short
        num_blocks = torch.from_numpy(-(-sizes // (8 * BLOCK)))
        words = (torch.from_numpy(n // 8) for n in (begin.numpy(), sizes))
        first_header = exclusive_cumsum(torch.from_numpy(header_nbytes.numpy() // 8))
        first_block = exclusive_cumsum(num_blocks)
        zeros = torch.zeros(2 * len(begin), dtype=torch.int64)
        *vectors, sums_and_counts = upload(
            device, headers.view(torch.int64), first_header, *words, first_block, zeros
        )
        sums, arrived = sums_and_counts[: len(begin)], sums_and_counts[len(begin) :]
        return cls(at, *vectors, sums, arrived, int(first_block.numpy()[-1]))

    def launch(self, kernel: Any, buffer: Tensor, call: int, *flags: Tensor) -> None:
        """Run a kernel, one program a block, on the frames in the buffer."""
        if self.num_blocks:
            num_frames = self.size.numel()
            kernel[(self.num_blocks,)](
                _words(buffer), self.headers, self.header_first, self.begin, self.size,
                self.first_block, self.sums, self.arrived, *flags, call, num_frames,
                STEPS=num_frames.bit_length(), BLOCK=BLOCK,
            )  # fmt: skip


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
def _block(words, headers, header_first, begin, size, first_block, call, num_frames, STEPS, BLOCK):
    """Return what the block of this program is: its frame, the place of its words in the frame
    [BLOCK], whether they are header [BLOCK], the header's words as expected [BLOCK], where the
    frame begins, and its size in words."""
    block = tl.program_id(0)
    frame = segment_of(block, first_block, num_frames, STEPS)
    place = (block - tl.load(first_block + frame)) * BLOCK + tl.arange(0, BLOCK)
    header = tl.load(header_first + frame)
    is_header = place < tl.load(header_first + frame + 1) - header
    expected = tl.load(headers + header + place, mask=is_header, other=0)
    expected = tl.where(place == 0, expected | (call.to(tl.int64) << 48), expected)
    return frame, place, is_header, expected, tl.load(begin + frame), tl.load(size + frame)


@triton.jit
def block_sum(number, word, counts, BLOCK):
    """Return what block `number` adds to the checksum of its frame (frame.checksum).

    Args: word: [BLOCK] int64.  counts: [BLOCK], whether a word is in the frame and not the checksum
        itself.
    """
    x = word.to(tl.uint64, bitcast=True) ^ _mix((tl.arange(0, BLOCK) + 1).to(tl.uint64) * _STEP)
    term = tl.where(counts, x + (x >> 32) * (x & 0xFFFFFFFF), 0)
    total = tl.sum(term, 0) + (number + 1).to(tl.uint64) * _STEP
    return _mix(total).to(tl.int64, bitcast=True)


@triton.jit
def _checksum(frame, place, word, size, first_block, sums, arrived, BLOCK):
    """Add this program's block to its frame's checksum. Return whether it was the last one to do
    so, and if it was, the checksum, see frame.checksum."""
    first = tl.load(first_block + frame)
    number = tl.program_id(0) - first
    counts = (place < size) & (place != 3)
    tl.atomic_add(sums + frame, block_sum(number, word, counts, BLOCK))
    before = tl.atomic_add(arrived + frame, 1)
    is_last = before == tl.load(first_block + frame + 1) - first - 1
    checksum = before * 0
    if is_last:  # the next call begins with zeros again
        checksum = tl.atomic_xchg(sums + frame, checksum)
        tl.store(arrived + frame, 0)
    return is_last, checksum


# Without this, a call's number of 1 or a multiple of 16 would compile another kernel.
@triton.jit(do_not_specialize=["call"])
def _seal(
    words, headers, header_first, begin, size, first_block, sums, arrived, call, num_frames,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    frame, place, is_header, header, at, num_words = _block(
        words, headers, header_first, begin, size, first_block, call, num_frames, STEPS, BLOCK
    )
    payload = tl.load(words + at + place, mask=(place < num_words) & (is_header == 0), other=0)
    word = tl.where(is_header, header, payload)
    # Up to the next multiple of 128 bytes follow zeros, which lie within the last block.
    is_padding = (place >= num_words) & (place < (num_words + 15) // 16 * 16)
    tl.store(words + at + place, word, mask=(is_header & (place != 3)) | is_padding)
    is_last, checksum = _checksum(frame, place, word, num_words, first_block, sums, arrived, BLOCK)
    if is_last:
        tl.store(words + at + 3, checksum)


@triton.jit(do_not_specialize=["call"])
def _compare(
    words, headers, header_first, begin, size, first_block, sums, arrived, first, call, num_frames,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lower `first` [1], -1 before, which is the largest uint32, to the first word of a header
    that is not as expected."""
    frame, place, is_header, expected, at, num_words = _block(
        words, headers, header_first, begin, size, first_block, call, num_frames, STEPS, BLOCK
    )
    word = tl.load(words + at + place, mask=place < num_words, other=0)
    number = tl.load(header_first + frame)
    differs = is_header & (place != 3) & (word != expected)
    lowest = tl.min(tl.where(differs, number + place, 0x7FFFFFFF), 0)
    is_last, checksum = _checksum(frame, place, word, num_words, first_block, sums, arrived, BLOCK)
    if is_last and checksum != tl.load(words + at + 3):
        lowest = tl.minimum(lowest, number + 3)
    if lowest < 0x7FFFFFFF:
        tl.atomic_min(first.to(tl.pointer_type(tl.uint32)), lowest.to(tl.uint32))


@triton.jit
def _mix(z):
    """Return a uint64 that depends on every bit of z, one to one. z: uint64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _copy(source, target, source_at, target_at, left, BLOCK: tl.constexpr):
    chunk = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < tl.load(left + chunk)
    word = tl.load(source + tl.load(source_at + chunk) + i, mask=mask)
    tl.store(target + tl.load(target_at + chunk) + i, word, mask=mask)
