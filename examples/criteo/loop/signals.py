"""A training that is told to stop: Ctrl-C and SIGTERM, on any of its ranks.

Knows: signals, the process group. Does not know: what a training does then.
"""

from __future__ import annotations

import signal
from types import FrameType

import torch
import torch.distributed as dist


class StopRequest:
    """Ctrl-C or SIGTERM asks for a stop after the step; a third one stops at once."""

    def __init__(self) -> None:
        self.num_signals = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._count)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.num_signals += 1
        if self.num_signals >= 3:
            raise KeyboardInterrupt

    def agreed(self) -> bool:
        """Return whether any rank was asked to stop. Collective, and nobody waits for a GPU."""
        flag = torch.tensor(self.num_signals, dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)
