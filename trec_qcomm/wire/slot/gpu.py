"""Kernel of slots for the GPU: encoded segments become slots, and the host knows no size of them.

Only the kernel knows how large the segments are. It gathers each frame from its header and its
segments, adds up its checksum, and stores what fits the slot.
Shapes: P frames that are not empty, S segments in all, H words of 8 bytes in all their headers.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.core.transfer import upload
from trec_qcomm.wire.gpu import _mix

_BLOCK = 1024  # words of a block of the checksum, which one program takes
_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_NUM_WORDS = tl.constexpr(2)  # words in front of a slot's share of its frame
_HEADER = 4  # words of a frame's header without its segment table
_FRAME_NBYTES, _CHECKSUM = 2, 3  # places in a header, in words


@dataclass(frozen=True, eq=False)
class Segments:
    """Encoded segments of P frames.

    Args:
        payload: [W] uint8 on the device.
        at: [S] int64 on CPU, where each segment begins.
        nbytes: [S] int64 on the device.
        counts: [P] int64 on CPU, segments of each frame, > 0.
        largest: [P] int64 on CPU, the most bytes that each frame may take.
    """

    payload: Tensor
    at: Tensor
    nbytes: Tensor
    counts: Tensor
    largest: Tensor


def fill(
    segments: Segments, headers: Tensor, header_nbytes: Tensor, capacities: Tensor, call: int
) -> Tensor:
    """Return the slots, [sum of capacities] uint8 on the device.

    Args:
        headers: [8 H] uint8 on CPU, with 0 for checksums and for all sizes.
        header_nbytes, capacities: [P] int64 on CPU; a slot has room for its frame's header.
        call: 16 bits.
    """
    device, nbytes, counts = segments.payload.device, segments.nbytes, segments.counts
    overheads = header_nbytes // 8
    header_first, segment_first = exclusive_cumsum(overheads), exclusive_cumsum(counts)
    begins = exclusive_cumsum(capacities // 8)[:-1]
    most = torch.maximum(segments.largest // 8, capacities // 8 - 2)
    first_block = exclusive_cumsum(-(-most // _BLOCK))
    frame_of = torch.repeat_interleave(torch.arange(len(counts)), counts)
    number = torch.arange(len(frame_of)) - segment_first[frame_of]
    size_place = 2 * (header_first[frame_of] + _HEADER) + 3 * number + 2
    head_words, *vectors = upload(
        device, headers.view(torch.int64), size_place, header_first[:-1] + _FRAME_NBYTES,
        segment_first, header_first, begins, capacities // 8, first_block, segments.at // 8,
        begins + 2 + _CHECKSUM,
    )  # fmt: skip
    size_places, frame_nbytes_places, *layout, checksum_places = vectors
    ends = torch.cumsum(torch.cat([nbytes.new_zeros(1), nbytes]), 0)
    of_frames = torch.diff(ends[layout[0]]) + 8 * torch.diff(layout[1])
    head_words.view(torch.int32).index_copy_(0, size_places, nbytes.to(torch.int32))
    head_words.index_copy_(0, frame_nbytes_places, of_frames)
    slots = torch.empty(int(capacities.sum()), dtype=torch.uint8, device=device)
    words, sums = slots.view(torch.int64), torch.zeros_like(of_frames)
    payload = segments.payload[: segments.payload.numel() // 8 * 8].view(torch.int64)
    num_blocks = int(first_block[-1])
    if num_blocks:
        _fill[(num_blocks,)](
            payload, head_words, ends, of_frames, words, sums, *layout, len(counts), len(frame_of),
            call, FRAME_STEPS=len(counts).bit_length(), STEPS=len(frame_of).bit_length(),
            BLOCK=_BLOCK,
        )  # fmt: skip
        words.index_copy_(0, checksum_places, sums)
    return slots


@triton.jit(do_not_specialize=["call"])
def _fill(
    payload, headers, ends, frame_nbytes, slots, sums, segment_first, header_first, begins,
    capacities, first_block, at, num_frames, num_segments, call,
    FRAME_STEPS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a block of a frame to its slot, as far as it fits, and add it to the checksum."""
    block = tl.program_id(0).to(tl.int64)
    low, high = block * 0, block * 0 + num_frames - 1
    for _ in tl.static_range(FRAME_STEPS):  # the last frame whose first block is not behind this
        middle = (low + high + 1) >> 1
        is_behind = tl.load(first_block + middle) <= block
        low, high = tl.where(is_behind, middle, low), tl.where(is_behind, high, middle - 1)
    frame, number = low, block - tl.load(first_block + low)
    nbytes, capacity = tl.load(frame_nbytes + frame), tl.load(capacities + frame)
    begin, size = tl.load(begins + frame), nbytes >> 3
    i = tl.arange(0, BLOCK)
    place = number * BLOCK + i
    if number * BLOCK < tl.maximum(size, capacity - _NUM_WORDS):
        header = tl.load(header_first + frame)
        overhead = tl.load(header_first + frame + 1) - header
        live = place < size
        head = tl.load(headers + header + place, mask=place < overhead, other=0)
        # The segment of each word: the first one that ends behind it.
        base = tl.load(ends + tl.load(segment_first + frame))
        target = base + ((place - overhead) << 3)
        first = tl.zeros_like(place)
        last = first + num_segments - 1
        for _ in tl.static_range(STEPS):
            half = (first + last) >> 1
            ends_before = tl.load(ends + half + 1) <= target
            first = tl.where(ends_before & (first < last), half + 1, first)
            last = tl.where(ends_before, last, tl.maximum(half, first))
        is_payload = live & (place >= overhead)
        offset = (target - tl.load(ends + first)) >> 3
        word = tl.load(payload + tl.load(at + first) + offset, mask=is_payload, other=0)
        word = tl.where(place < overhead, head, word)
        tl.store(slots + begin + _NUM_WORDS + place, word, mask=place < capacity - _NUM_WORDS)
        x = word.to(tl.uint64, bitcast=True) ^ _mix((i + 1).to(tl.uint64) * _STEP)
        term = tl.where(live & (place != 3), x + (x >> 32) * (x & 0xFFFFFFFF), 0)
        total = tl.sum(term, 0) + (number + 1).to(tl.uint64) * _STEP
        if number * BLOCK < size:
            tl.atomic_add(sums + frame, _mix(total).to(tl.int64, bitcast=True))
        if number == 0:
            stated = nbytes | (begin * 0 + call) << 47
            tl.store(slots + begin, stated)
            tl.store(slots + begin + 1, ~stated)
