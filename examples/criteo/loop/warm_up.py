"""Learning rates that rise with the first steps, of the tables and the dense layers alike.

Knows: parameter groups. Does not know: which optimizer has them. The rates depend on the number of
the step alone, so a training that goes on needs no state for them.
"""

from __future__ import annotations

from typing import Any


class WarmUp:
    """Learning rates of step i are (i + 1) / num_steps of what they are after the warm-up.

    An optimizer inside the embedding kernels takes its rate from its group at `zero_grad`, so the
    rates are set before that.

    Args:
        optimizer: an optimizer whose groups hold the rates after the warm-up.
        num_steps: length of the warm-up; 0 is none.
    """

    def __init__(self, optimizer: Any, num_steps: int) -> None:
        self.num_steps = num_steps
        self._optimizer = optimizer
        self._rates = [float(g["lr"]) for g in optimizer.param_groups] if num_steps else []

    def set_rates(self, step: int) -> None:
        """Set the rates of a step. Args: step: number of steps done."""
        if step < self.num_steps:
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * (step + 1) / self.num_steps
