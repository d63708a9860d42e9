"""DenseGradients: the all-reduce of the gradients of parameters that all ranks hold.

Knows: DDP, rules of the config, thresholds. Does not know: TorchRec, algorithms.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from trec_qcomm.comm.dense.all_reduce import Reduction
from trec_qcomm.comm.dense.chunks import BucketChunks, ParameterShape
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.comm.slots.history import SlotOptions
from trec_qcomm.config import GradientRule
from trec_qcomm.core.counters import Traffic
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce
from trec_qcomm.integration.gradients.reduction import make_reduction
from trec_qcomm.integration.gradients.thresholds import (
    GlobalThresholds,
    GradientThresholds,
    LayerThresholds,
)


class DenseGradients(GradientAllReduce):
    """The all-reduce of replicated parameters: blocks of adjacent values are rows to the codec."""

    _name = "dense gradients"

    def __init__(self, rule: GradientRule, **options: Any) -> None:
        """Prepare the all-reduce that a rule describes.

        Args: rule: the config's `dense`.  options: keyword arguments of GradientAllReduce.
        """
        super().__init__(rule, **options)
        self._rule = rule
        self._sums_on_resize = rule.on_resize == "sum"

    def _shapes_of(
        self, module: nn.Module, names: Mapping[nn.Parameter, str]
    ) -> dict[nn.Parameter, list[ParameterShape]]:
        block = self._rule.block
        _check_some_block(self._rule, {name: p.numel() for p, name in names.items()})
        return {p: [ParameterShape(name, p.numel(), block)] for p, name in names.items()}

    def _make_reduction(
        self, shapes: Sequence[ParameterShape], rank: int, world_size: int
    ) -> Reduction:
        return make_dense_reduction(
            self._rule,
            shapes,
            rank,
            world_size,
            self.traffic,
            seed=self._seed,
            measure_error=self._measure_error,
            slots=self._slots,
        )

    def _rounds(self, shapes: Sequence[ParameterShape], values: Tensor, is_last: bool) -> Rounds:
        return self._reduction.start(shapes, values, exact=self._is_exact(), is_last=is_last)


def _check_some_block(rule: GradientRule, sizes: Mapping[str, int]) -> None:
    """Raise ValueError where blocks are so large that nothing would be coded.

    A model whose parameters are all smaller than `min_numel` is left as it is.
    """
    largest = max(sizes, key=lambda name: sizes[name], default=None)
    if largest is not None and rule.min_numel <= sizes[largest] < rule.block:
        raise ValueError(
            f"block: {rule.block!r}: no parameter has so many values; the largest, {largest!r}, "
            f"has {sizes[largest]}"
        )


def make_dense_reduction(
    rule: GradientRule,
    parameters: Sequence[ParameterShape],
    rank: int,
    world_size: int,
    traffic: Traffic,
    *,
    seed: int = 0,
    measure_error: bool = False,
    slots: SlotOptions | None = None,
) -> Reduction:
    """Return the reduction of one rank that a rule of replicated parameters describes.

    The arguments are those of `make_reduction`.
    """
    refresh, tolerance = rule.refresh, rule.codec.tolerance

    def make_thresholds(chunks: BucketChunks, sites: Sequence[str]) -> GradientThresholds:
        assert refresh is not None
        assert tolerance is not None
        kind = GlobalThresholds if rule.scope == "global" else LayerThresholds
        return kind(refresh, tolerance, chunks, sites)

    return make_reduction(
        rule,
        parameters,
        rank,
        world_size,
        traffic,
        min_numel=rule.min_numel,
        error_feedback=rule.error_feedback,
        make_tolerances=make_thresholds if refresh is not None else None,
        seed=seed,
        measure_error=measure_error,
        slots=slots,
    )
