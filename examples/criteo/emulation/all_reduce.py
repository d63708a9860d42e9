"""The dense gradients of all ranks in one process: summed exactly, or as the config sends them.

Knows: comm.dense, whose rounds are played. Does not know: embeddings, optimizers.
Shapes: P ranks, E values of all dense gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trec_qcomm import GradientRule
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.rounds import play
from trec_qcomm.core.counters import Traffic
from trec_qcomm.integration.gradients.dense import make_dense_reduction


class EmulatedAllReduce:
    """DDP's all-reduce on P ranks in one process; with a rule, that of trec_qcomm."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        num_ranks: int,
        rule: GradientRule | None,
        seed: int,
    ) -> None:
        """Prepare the reductions of every rank.

        Args:
            parameters: parameters of the dense layers, by the names that they have in DDP.
            num_ranks: number of ranks.
            rule: rule of the dense gradients; None sums them exactly.
            seed: seed of stochastic rounding.
        """
        self._parameters, self._num_ranks = list(parameters.values()), num_ranks
        self.traffic = [Traffic("dense", ["all"]) for _ in range(num_ranks)]
        self._parts: list[ParameterShape] = []
        self._reductions = []
        if rule is not None:
            self._parts = [ParameterShape(n, p.numel(), rule.block) for n, p in parameters.items()]
            self._reductions = [
                make_dense_reduction(rule, self._parts, rank, num_ranks, traffic, seed=seed)
                for rank, traffic in enumerate(self.traffic)
            ]

    def backward(self, losses: Sequence[Tensor]) -> None:
        """Set every parameter's gradient to the mean over ranks.

        Args: losses: [P] scalars, the loss of each rank.
        """
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        if not self._reductions:
            torch.stack(list(losses)).sum().backward()
            for parameter in self._parameters:
                parameter.grad.div_(self._num_ranks)
            return
        buckets = [self._gradients_of(loss) for loss in losses]
        pairs = zip(self._reductions, buckets, strict=True)
        play([reduction.start(self._parts, bucket) for reduction, bucket in pairs])
        sizes = [parameter.numel() for parameter in self._parameters]
        for parameter, mean in zip(self._parameters, buckets[0].split(sizes), strict=True):
            parameter.grad.copy_(mean.view_as(parameter))

    def _gradients_of(self, loss: Tensor) -> Tensor:
        """Return the gradients [E] of one rank alone."""
        for parameter in self._parameters:
            parameter.grad.zero_()
        loss.backward()
        return torch.cat([parameter.grad.flatten() for parameter in self._parameters])
