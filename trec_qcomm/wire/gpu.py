"""Kernels of frame.py for the GPU. They write the same bytes as cpu.py, and the host never waits.

The host knows what each header must say and writes it (cpu.write_headers). On the GPU the header is
copied in front of its payload, or compared with the header that was received. Only checksums and
moves need kernels of ours; torch does the rest.
Shapes: P frames that are not empty, W bytes in all, H words of 8 bytes in all their headers.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.core.transfer import upload

_CHECKSUM = 3  # place of the checksum in a frame, in words of 8 bytes
_BLOCK = 1024  # words of a block of the checksum, which one program adds up
_CHUNK = 2048  # words that one program copies
_STEP = tl.constexpr(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class _HeadersOnDevice:
    """Headers of frames on the device, and where they belong in the buffer of the frames.

    Args:
        headers: [H] int64, the words that the host wrote.
        place: [H] int64, the number of each word in the buffer.
        checksum, checksum_place: [P] int64, the number of each frame's checksum among `headers`,
            and in the buffer.
        begin, size: [P] int64, place and size of each frame, in words.
        block_frame, block_number: [B] int64, the frame of each block, and its number in the frame.
    """

    headers: Tensor
    place: Tensor
    checksum: Tensor
    checksum_place: Tensor
    begin: Tensor
    size: Tensor
    block_frame: Tensor
    block_number: Tensor

    @classmethod
    def from_host(
        cls, device: torch.device, headers: Tensor, frame_nbytes: Tensor, header_nbytes: Tensor
    ) -> "_HeadersOnDevice":
        """Copy headers to the device.

        Args: headers: [8 H] uint8 on CPU.  frame_nbytes, header_nbytes: [P] int64 on CPU.
        """
        begins = exclusive_cumsum(frame_nbytes // 8)[:-1]
        header_begins = exclusive_cumsum(header_nbytes // 8)[:-1]
        shift = torch.repeat_interleave(begins - header_begins, header_nbytes // 8)
        num_blocks = -(-frame_nbytes // (8 * _BLOCK))
        frame = torch.repeat_interleave(torch.arange(len(begins)), num_blocks)
        number = torch.arange(len(frame)) - exclusive_cumsum(num_blocks)[:-1][frame]
        return cls(
            *upload(
                device, headers.view(torch.int64), torch.arange(len(shift)) + shift,
                header_begins + _CHECKSUM, begins + _CHECKSUM, begins, frame_nbytes // 8, frame,
                number,
            )
        )  # fmt: skip

    def sums(self, buffer: Tensor) -> Tensor:
        """Return [P] int64, the checksum of each frame."""
        sums = torch.zeros_like(self.begin)
        if len(self.block_frame):
            _add_up[(len(self.block_frame),)](
                _words(buffer), sums, self.begin, self.size, self.block_frame, self.block_number,
                BLOCK=_BLOCK,
            )  # fmt: skip
        return sums


def seal(buffer: Tensor, headers: Tensor, frame_nbytes: Tensor, header_nbytes: Tensor) -> None:
    """Put each header in front of its payload, and the checksum into it.

    Args: buffer: [W] uint8 on the device.  headers: [8 H] uint8 on CPU, checksums 0.
        frame_nbytes, header_nbytes: [P] int64 on CPU, > 0.
    """
    on_device = _HeadersOnDevice.from_host(buffer.device, headers, frame_nbytes, header_nbytes)
    words = _words(buffer)
    words.index_copy_(0, on_device.place, on_device.headers)
    words.index_copy_(0, on_device.checksum_place, on_device.sums(buffer))


def first_difference(
    buffer: Tensor, headers: Tensor, frame_nbytes: Tensor, header_nbytes: Tensor
) -> Tensor:
    """Compare the headers in the buffer with the expected ones.

    Args: the same as for `seal`.
    Returns: [1] int32: the number, among the H words of all headers, of the first word that is not
        as expected, or -1.
    """
    on_device = _HeadersOnDevice.from_host(buffer.device, headers, frame_nbytes, header_nbytes)
    words = _words(buffer)
    expected = on_device.headers.index_copy(0, on_device.checksum, on_device.sums(buffer))
    number = torch.arange(len(expected), dtype=torch.int32, device=buffer.device)
    none = torch.full((1,), len(expected), dtype=torch.int32, device=buffer.device)
    differs = torch.where(words[on_device.place] != expected, number, len(expected))
    first = torch.cat([differs, none]).amin(0, keepdim=True)
    return torch.where(first < len(expected), first, -1)


def compact(payload: Tensor, old: Tensor, new: Tensor, nbytes: Tensor, out: Tensor) -> None:
    """Copy nbytes[s] bytes of segment s from payload[old[s]:] to out[new[s]:].

    Args: payload, out: uint8 on the device.  old, new, nbytes: [S] int64 on CPU, multiples of 8.
    """
    size = nbytes // 8
    num_chunks = -(-size // _CHUNK)
    segment = torch.repeat_interleave(torch.arange(len(size)), num_chunks)
    first = (torch.arange(len(segment)) - exclusive_cumsum(num_chunks)[:-1][segment]) * _CHUNK
    if len(segment):
        left = size[segment] - first
        where = upload(payload.device, old[segment] // 8 + first, new[segment] // 8 + first, left)
        _copy[(len(segment),)](_words(payload), _words(out), *where, BLOCK=_CHUNK)


def _words(buffer: Tensor) -> Tensor:
    return buffer[: buffer.numel() // 8 * 8].view(torch.int64)


@triton.jit
def _add_up(words, sums, begin, size, block_frame, block_number, BLOCK: tl.constexpr):
    """Add what one block gives to its frame's checksum, modulo 2^64; see frame.checksum."""
    block = tl.program_id(0)
    frame, number = tl.load(block_frame + block), tl.load(block_number + block)
    i = tl.arange(0, BLOCK)
    place = number * BLOCK + i
    counts = (place < tl.load(size + frame)) & (place != 3)  # without the checksum itself
    word = tl.load(words + tl.load(begin + frame) + place, mask=counts, other=0)
    x = word.to(tl.uint64, bitcast=True) ^ _mix((i + 1).to(tl.uint64) * _STEP)
    term = tl.where(counts, x + (x >> 32) * (x & 0xFFFFFFFF), 0)
    total = tl.sum(term, 0) + (number + 1).to(tl.uint64) * _STEP
    tl.atomic_add(sums + frame, _mix(total).to(tl.int64, bitcast=True))


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
