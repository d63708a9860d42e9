"""Slots: messages of sizes that both ends knew before, which frames of other sizes travel in.

A slot states the size of its frame and holds as much of the frame as fits. The rest, the overflow,
is a message of its own. FORMAT.md has the layout. Slots lie one after the other in one buffer.

Knows: slots, sizes of frames. Does not know: what frames hold, how capacities are chosen, peers.
Shapes: P frames, of which some may be empty; W bytes.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import ALIGNMENT
from trec_qcomm.core.transfer import upload
from trec_qcomm.wire import frame
from trec_qcomm.wire.slot import cpu

HEADER_NBYTES = 16
DEVICE_ALIGNMENT = 128  # of messages in a GPU's memory, which NCCL copies in large steps then
SIZE_BITS = 47  # of a word that holds a size and, above it, the 16 bits of a call's number


def size_words(nbytes: Any, call: int) -> Any:
    """Return [P] int64, the words that state sizes. Args: nbytes: [P] int64, numpy or torch."""
    return nbytes | call % 2**16 << SIZE_BITS


def room(capacities: Any) -> Any:
    """Return [P] int64, the bytes that each slot has for its frame. capacities: [P] numpy int64."""
    return np.maximum(capacities - HEADER_NBYTES, 0)


def alignment_of(buffer: Tensor) -> int:
    """Return what the capacities of slots in a buffer's memory are multiples of."""
    return DEVICE_ALIGNMENT if frame.is_on_gpu(buffer) else ALIGNMENT


def fill(frames: Tensor, nbytes: Sequence[int], capacities: Any, *, call: int) -> Tensor:
    """Return the slots, [sum of capacities] uint8.

    Args:
        frames: [W] uint8, P frames, each of which begins at the next multiple of
            frame.alignment_of.
        nbytes: P ints, the size of each frame without padding.
        capacities: [P] numpy int64, the size of each slot; 0 for an empty frame.
        call: number of the exchange, of which 16 bits are kept.
    """
    sizes = np.asarray(nbytes, np.int64)
    words = size_words(sizes, call)
    if frame.is_on_gpu(frames):
        slots = frames.new_zeros(int(capacities.sum()))
        begins = (capacities.cumsum() - capacities)[capacities > 0] // 8
        stated = words[capacities > 0]
        places, both = (np.concatenate(pair) for pair in ((begins, begins + 1), (stated, ~stated)))
        vectors = upload(frames.device, torch.from_numpy(places), torch.from_numpy(both))
        slots.view(torch.int64).index_copy_(0, *vectors)
        begins, _ = _begins(sizes, frames)
        _move(frames, slots, sizes, capacities, begins, _frames_in(capacities))
        return slots
    slots = torch.empty(int(capacities.sum()), dtype=torch.uint8)
    cpu.fill(frames.numpy(), sizes, words, capacities, slots.numpy())
    return slots


def overflows(frames: Tensor, nbytes: Sequence[int], capacities: Any) -> list[tuple[int, Tensor]]:
    """Return (p, bytes) of each frame that does not fit its slot: what the slot has no room for.

    Arguments: `fill`; frames may lie on a GPU.
    """
    sizes, rooms = np.asarray(nbytes, np.int64), room(capacities)
    begins, _ = _begins(sizes, frames)
    return [
        (p, frames[int(begins[p] + rooms[p]) : int(begins[p] + sizes[p])])
        for p in np.flatnonzero(sizes > rooms).tolist()
    ]


def words_of(slots: Tensor, capacities: Any) -> Any:
    """Return [P, 2] int64, the two words of each slot, on CPU; of an empty frame those of size 0.

    Args: slots: [sum of capacities] uint8 on CPU.
    """
    words = np.stack([np.zeros(len(capacities), np.int64), np.full(len(capacities), -1)], 1)
    used = capacities > 0
    first = (capacities.cumsum() - capacities)[used] // 8
    both = slots.numpy().view(np.int64)
    words[used, 0], words[used, 1] = both[first], both[first + 1]
    return words


def sizes_of(
    words: Any, capacities: Any, *, call: int, limits: Any, ranks: Sequence[int]
) -> list[int]:
    """Return P ints, the sizes that the slots state; refuse what no sender states.

    Args:
        words: [P, 2] int64 from `words_of`.
        capacities: [P] numpy int64.
        call: number of the exchange.
        limits: [P] numpy int64, the largest size of each frame.
        ranks: the P senders, for errors.
    Raises: CorruptFrameError.
    """
    stated, checks = words[:, 0], words[:, 1]
    sizes = stated & (2**SIZE_BITS - 1)
    other_call = (capacities > 0) & (stated >> SIZE_BITS != call % 2**16)
    problems = (
        (stated != ~checks, "a slot's two words of its size differ"),
        (other_call, "of another call: the ranks are out of step"),
        ((sizes > limits) | (sizes % 8 != 0), "a size that no frame of this batch has"),
    )
    for wrong, reason in problems:
        if wrong.any():
            p = int(np.flatnonzero(wrong)[0])
            number = f": {sizes[p]} bytes, at most {limits[p]}" if "size that" in reason else ""
            raise CorruptFrameError(reason + number, rank=ranks[p])
    result: list[int] = sizes.tolist()
    return result


def take_out(slots: Tensor, capacities: Any, nbytes: Sequence[int]) -> Tensor:
    """Return the frames, [W] uint8, as `fill` takes them; overflows are yet to come.

    On a CPU they are moved within `slots`, where every frame fits.

    Args: slots: [sum of capacities] uint8.  nbytes: P ints, from `sizes_of`.
    """
    sizes = np.asarray(nbytes, np.int64)
    if frame.is_on_gpu(slots):
        begins, size = _begins(sizes, slots)
        frames = slots.new_empty(size)
        _move(slots, frames, sizes, capacities, _frames_in(capacities), begins)
        return frames
    frames = slots
    if (sizes > room(capacities)).any():
        frames = torch.empty(int(sizes.sum()), dtype=torch.uint8)
    cpu.take_out(slots.numpy(), capacities, sizes, frames.numpy())
    return frames[: int(sizes.sum())]


def padded(nbytes: Sequence[int], buffer: Tensor) -> list[int]:
    """Return the sizes of frames with the padding that follows each in the buffer's memory."""
    alignment = frame.alignment_of(buffer)
    return [-(-size // alignment) * alignment for size in nbytes]


def _begins(sizes: Any, buffer: Tensor) -> tuple[Any, int]:
    """Return where frames of these sizes begin in the buffer's memory, and the size of all."""
    ends = np.asarray(padded(sizes.tolist(), buffer), np.int64).cumsum()
    begins = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    return begins, int(ends[-1]) if len(ends) else 0


def _frames_in(capacities: Any) -> Any:
    """Return [P] numpy int64, where the frames begin in slots."""
    return capacities.cumsum() - capacities + HEADER_NBYTES


def _move(source: Tensor, target: Tensor, sizes: Any, capacities: Any, old: Any, new: Any) -> None:
    """Copy what slots have room for of each frame, on a GPU. Args: old, new: [P] places."""
    shares = np.minimum(sizes, room(capacities))
    places = (torch.from_numpy(vector) for vector in (old, new, shares))
    importlib.import_module("trec_qcomm.wire.gpu").compact(source, *places, target)
