"""Calls that a training forgets: the guard's step, and the sync of replicas.

Knows: the config, numbers of steps. Does not know: what guard and sync do.
"""

from __future__ import annotations

import logging

from trec_qcomm.config import Config

MOST_MICRO_BATCHES = 16  # whose gradients may be accumulated for one step of a guard
MOST_WITHOUT_SYNC = 1000  # steps without an average, after which that is said
_log = logging.getLogger(__name__)


class MissedCalls:
    """Steps that were taken since guard and sync were last called, where the config has them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._guarded_step = self._synced_step = 0
        self._num_syncs = 0  # calls of the sync, as they were at _synced_step

    def begin_at(self, step: int) -> None:
        """Count from this step on."""
        self._guarded_step = self._synced_step = step

    def note_guarded(self, step: int) -> None:
        """Remember that the guard has counted all steps before this one."""
        self._guarded_step = step

    def check(self, step: int, *, has_guard: bool, num_syncs: int | None) -> None:
        """Raise ValueError in training that goes on without the guard or sync of the config.

        Args:
            step: number of the step that begins.
            has_guard: whether a guard was made, which is then not called.
            num_syncs: number of the sync's calls so far; None: no sync was made.
        """
        if self._config.guard is not None:
            self._check_guarded(step - self._guarded_step, self._config.guard.every, has_guard)
        if self._config.sync is not None:
            self._check_synced(step, num_syncs)

    def _check_guarded(self, num_steps: int, every: int, has_guard: bool) -> None:
        if num_steps >= max(every, MOST_MICRO_BATCHES):
            made = "" if has_guard else "guard = qcomm.guard(loss_fn, probe_batches) and "
            raise ValueError(
                f"{self._config.source}: guard: {num_steps} steps without guard.step(); call {made}"
                "guard.step() after each optimizer step, or leave out guard"
            )

    def _check_synced(self, step: int, num_syncs: int | None) -> None:
        num_steps = step - self._synced_step
        if num_syncs is None:
            if num_steps >= MOST_MICRO_BATCHES:
                raise ValueError(
                    f"{self._config.source}: sync: {num_steps} steps without qcomm.sync(model); "
                    "call it once the model is sharded, or leave out sync"
                )
        elif num_syncs != self._num_syncs:
            self._num_syncs, self._synced_step = num_syncs, step
        elif num_steps == MOST_WITHOUT_SYNC:
            _log.warning(
                "sync: %d steps without an average; pass sync.hook to set_all_reduce_hook, or call "
                "sync.step() after each step",
                MOST_WITHOUT_SYNC,
            )
