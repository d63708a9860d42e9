"""Kernels of slots for the CPU, in numba. They check nothing.

Shapes: P frames; the arguments are numpy arrays.
"""

import numpy as np

from trec_qcomm.jit import kernel

_HEADER = 2  # words of 8 bytes before a slot's share of its frame


@kernel
def fill(frames, nbytes, words, capacities, slots):
    """Write every slot: its word and the inverse, what fits of the frame, and zeros."""
    begin, place = 0, 0
    for p in range(nbytes.size):
        if capacities[p]:
            slot = slots[place : place + capacities[p]].view(np.int64)
            source = frames[begin : begin + nbytes[p]].view(np.int64)
            slot[0], slot[1] = words[p], ~words[p]
            fits = min(source.size, slot.size - _HEADER)
            for i in range(fits):
                slot[_HEADER + i] = source[i]
            for i in range(_HEADER + fits, slot.size):
                slot[i] = 0
        begin += nbytes[p]
        place += capacities[p]


@kernel
def take_out(slots, capacities, nbytes, frames):
    """Copy what slots hold of each frame to its place among frames without gaps.

    Places lie at or before their source, so `frames` may be the memory of `slots`, where every
    frame fits its slot.
    """
    begin, place = 0, 0
    for p in range(nbytes.size):
        if capacities[p]:
            slot = slots[place : place + capacities[p]].view(np.int64)
            target = frames[begin : begin + nbytes[p]].view(np.int64)
            for i in range(min(target.size, slot.size - _HEADER)):
                target[i] = slot[_HEADER + i]
        begin += nbytes[p]
        place += capacities[p]
