"""Hazards of a stress: random delays on streams and hosts, and freed memory that is overwritten.

Memory that one stream still reads after it was freed on another is handed out again; here whoever
gets it writes 0xFF, which is NaN as float32, and a wrong frame.
"""

from __future__ import annotations

import random
import time

import torch

from trec_qcomm.comm.streams import side_stream

MOST_CYCLES = 2_000_000  # about a millisecond of a GPU
MOST_HOST_S = 1e-3
NBYTES = (512, 4096, 65536, 1 << 20, 4 << 20)  # of blocks as the allocator keeps them


class Hazards:
    """Delays and overwritten memory on this rank's device. Args: source: its random numbers."""

    def __init__(self, device: torch.device, source: random.Random) -> None:
        self._device, self._source = device, source

    def delay(self) -> None:
        """Stop the host, this stream or a side stream for a while, or none of them."""
        kind = self._source.randrange(5)
        if kind == 0:
            time.sleep(self._source.random() * MOST_HOST_S)
        elif self._device.type == "cuda" and kind in (1, 2, 3):
            cycles = self._source.randrange(1, MOST_CYCLES)
            if kind == 1:
                torch.cuda._sleep(cycles)
            else:
                with side_stream(self._device, use="rows" if kind == 2 else "gradients"):
                    torch.cuda._sleep(cycles)

    def overwrite_freed(self) -> None:
        """Take blocks of several sizes on each stream, fill them, and free them again."""
        self._fill()
        for use in ("rows", "gradients"):
            with side_stream(self._device, use=use):
                self._fill()

    def _fill(self) -> None:
        blocks = [
            torch.full((size,), 0xFF, dtype=torch.uint8, device=self._device)
            for size in self._source.choices(NBYTES, k=6)
        ]
        del blocks
