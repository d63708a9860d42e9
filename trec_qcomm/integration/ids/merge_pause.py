"""MergePause: pause one sharding's search for equal bags after a batch that had none.

The search costs up to a twentieth of an exchange on CPU. Sending a batch whose features have batch
sizes of their own costs up to a third, also if no bag was merged. So in the first of every WINDOW
batches all ranks tell one another whether any rank had a bag to merge. If no rank had, the rest of
these batches go as TorchRec sends them.

All ranks must act alike, because TorchRec sends the batches of all ranks in one format. Only
training counts; a batch of evaluation goes as the last batch of training did. A pipeline sends the
ids of batches before it trains on them. So the state is that of the last batch whose rows were
looked up, and a resumed run acts like an uninterrupted one.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.peers import Peers

WINDOW = 64


class MergePause:
    """Policy of one sharding on all ranks of a group: whether a batch is searched for equal bags.

    Args:
        pg: the ranks that exchange the sharding's batches.
        is_training: whether the next batch is one of training.
    """

    def __init__(self, pg: dist.ProcessGroup, is_training: Callable[[], bool]) -> None:
        self._peers, self._is_training = Peers(pg), is_training
        self._num_batches, self._is_on = 0, False  # training batches whose ids were sent
        self._trained = (0, False)  # the same, after the last batch that was looked up

    def is_due(self) -> bool:
        """Return whether the next batch must be searched."""
        return self._begins_window or not self._is_on

    @property
    def _begins_window(self) -> bool:
        return self._num_batches % WINDOW == 0 and self._is_training()

    def count(self, pays: Callable[[], bool]) -> Callable[[], None] | None:
        """Count a batch. At the beginning of a window this is a collective.

        Args: pays: function that returns whether this rank's batch had equal bags; called where a
            window begins.
        Returns: function to call when the rows of the batch are looked up; None in evaluation.
        """
        if not self._is_training():
            return None
        if self._begins_window:
            self._is_on = not self._peers.any(pays(), "search for equal bags")
        self._num_batches += 1
        return partial(setattr, self, "_trained", (self._num_batches, self._is_on))

    def state_dict(self) -> Tensor:
        """Return [2] int64: the number of training batches, and whether the pause is on."""
        return torch.tensor(self._trained, dtype=torch.int64)

    def load_state_dict(self, state: object) -> None:
        """Continue from `state`, or begin anew for {}. Raises ValueError at other state."""
        if state == {}:
            state = torch.zeros(2, dtype=torch.int64)
        if not isinstance(state, Tensor) or state.shape != (2,):
            raise ValueError(f"state: merge_pauses: expected [2] int64, got {state!r:.80}")
        num_batches, is_on = state.tolist()
        self._num_batches, self._is_on = num_batches, bool(is_on)
        self._trained = (num_batches, bool(is_on))
