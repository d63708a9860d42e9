"""Heads of slots in a GPU's memory: the first words of each, which tell the host all sizes.

A head is a slot's size word and its inverse, and the frame's header with its segment table. A slot
has room for these, always. They are fetched in one copy.

Knows: slots, headers. Does not know: codecs, peers.
Shapes: P frames, S segments in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.transfer import upload
from trec_qcomm.wire import frame

_NUM_WORDS = 2  # words in front of a frame


@dataclass(frozen=True, eq=False)
class Heads:
    """Places of the heads of P slots.

    Args:
        used: [P] bool, whether there is a slot.
        first: [P] int64, number of each head's first word among the words of all heads.
        size: [P] int64, words of each head.
        segments_per_frame: P ints.
    """

    used: Any
    first: Any
    size: Any
    segments_per_frame: tuple[int, ...]

    @classmethod
    def from_counts(cls, segments_per_frame: Sequence[int]) -> "Heads":
        """Return the heads of frames with so many segments."""
        counts = tuple(segments_per_frame)
        size = [frame.overhead_nbytes(n) // 8 + _NUM_WORDS if n else 0 for n in counts]
        sizes = np.asarray(size, np.int64)
        return cls(sizes > 0, sizes.cumsum() - sizes, sizes, counts)

    def gather(self, slots: Tensor, capacities: Any) -> Tensor:
        """Return the words of all heads, one behind the other, on the slots' device.

        Args: slots: [sum of capacities] uint8.  capacities: [P] numpy int64.
        """
        begins = (capacities.cumsum() - capacities) // 8
        shift = np.repeat(begins - self.first, self.size)
        (places,) = upload(slots.device, torch.from_numpy(shift + np.arange(len(shift))))
        return slots.view(torch.int64).index_select(0, places)

    def words(self, heads: Tensor) -> Any:
        """Return [P, 2] int64, the size words and their inverses; of an empty frame those of 0.

        Args: heads: the result of `gather`, on CPU.
        """
        words = np.stack([np.zeros(len(self.used), np.int64), np.full(len(self.used), -1)], 1)
        first, all_words = self.first[self.used], heads.numpy()
        words[self.used, 0], words[self.used, 1] = all_words[first], all_words[first + 1]
        return words

    def tables(
        self, heads: Tensor, nbytes: Sequence[int], *, limits: Tensor, ranks: Sequence[int]
    ) -> frame.Announced:
        """Return codec and size of each segment, as the segment tables state them.

        Args:
            heads: the result of `gather`, on CPU.
            nbytes: P ints, the sizes that the slots state.
            limits: [S] int64, the largest size of each segment.
            ranks: the P senders, for errors.
        Raises: CorruptFrameError: sizes that cannot be, or do not add up to the frame's.
        """
        counts = np.asarray(self.segments_per_frame, np.int64)
        frames = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(frames)) - (counts.cumsum() - counts)[frames]
        place = 2 * (self.first[frames] + _NUM_WORDS) + frame.HEADER_NBYTES // 4 + 3 * number
        fields = heads.numpy().view(np.uint32)
        codecs, sizes = fields[place].astype(np.int64), fields[place + 2].astype(np.int64)
        sums = np.zeros(len(counts), np.int64)
        np.add.at(sums, frames, sizes)
        overheads = np.where(self.used, 8 * (self.size - _NUM_WORDS), 0)
        wrong = overheads + sums != np.asarray(nbytes, np.int64)
        bad = (sizes > limits.numpy()) | (sizes % 8 != 0) | (codecs > 255)
        wrong[frames[bad]] = True
        if wrong.any():
            rank = ranks[int(np.flatnonzero(wrong)[0])]
            raise CorruptFrameError("segment sizes do not add up", rank=rank)
        return frame.Announced(torch.from_numpy(codecs), torch.from_numpy(sizes))
