"""Optimizers of the emulated tables, equal to those inside FBGEMM's kernels.

Shapes: V rows of all tables, n different ones of them, D values a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_EPS = 1e-8  # that of the optimizers in model.py


@dataclass
class RowwiseAdagrad:
    """FBGEMM's EXACT_ROWWISE_ADAGRAD: one accumulator a row, the mean squares of its gradients."""

    lr: float
    sums: Tensor  # [V]

    def step(self, weight: Tensor, at: Tensor, gradient: Tensor) -> None:
        """Change the rows `at` [n], all different, of weight [V, D] by their gradient [n, D]."""
        sums = self.sums[at] + gradient.square().mean(dim=1)
        self.sums[at] = sums
        weight[at] -= (self.lr / (sums.sqrt() + _EPS))[:, None] * gradient


@dataclass
class Sgd:
    """FBGEMM's EXACT_SGD."""

    lr: float

    def step(self, weight: Tensor, at: Tensor, gradient: Tensor) -> None:
        """Change the rows `at` [n], all different, of weight [V, D] by their gradient [n, D]."""
        weight[at] -= self.lr * gradient


def make_optimizer(name: str, lr: float, num_rows: int) -> RowwiseAdagrad | Sgd:
    """Return the optimizer of train.py's --embedding-optimizer for V rows."""
    return RowwiseAdagrad(lr, torch.zeros(num_rows)) if name == "rowwise_adagrad" else Sgd(lr)
