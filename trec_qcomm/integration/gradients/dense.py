"""DenseGradients: the all-reduce of the gradients of parameters that all ranks hold.

Parameters of several rules travel in the same messages. Each parameter is a segment with the codec
of its rule. So a bucket takes as many messages as with one rule.

Knows: DDP, rules of the config. Does not know: TorchRec, algorithms.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trec_qcomm.comm.dense.all_reduce import Reduction
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.low_rank.matrices import MatrixShape
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.config import GradientRule
from trec_qcomm.config.gradients import parameter_patterns, rules_of
from trec_qcomm.integration.checkpoint import by_short_key
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce
from trec_qcomm.integration.gradients.reduction import make_reduction, sent_shapes

Rules = GradientRule | Sequence[GradientRule]

_log = logging.getLogger(__name__)


class DenseGradients(GradientAllReduce):
    """All-reduce of replicated parameters. A block of adjacent values is a row to the codec."""

    _name = "dense gradients"

    def __init__(self, rules: Rules, *, source: str = "config", **options: Any) -> None:
        """Prepare the all-reduce that rules describe.

        Args:
            rules: the config's `dense`.
            source: name of the config, for errors.
            options: keyword arguments of GradientAllReduce.
        """
        super().__init__(rules, **options)
        self._source = source
        self._take(rules)

    def _take(self, rules: Rules) -> None:
        self.rules = self._rules = rules_of(rules)
        self._patterns = parameter_patterns(rules)
        self._matrices: list[MatrixShape] = []  # parameters that are sent as factors

    def use_rules(self, rules: Rules | None) -> None:
        """Reduce by other rules from the next step on. Call it on all ranks alike.

        The residual of a parameter goes on under the parameter's new rule. If that rule has no
        error feedback, the residual is dropped.

        Args: rules: rules in place of the config's `dense`; None: DDP's own all-reduce, while
            residuals wait. `own_group` stays as it was registered.
        Raises: ValueError: rules that do not fit the parameters or the device. Then nothing is
            changed.
        """
        if rules is not None and rules_of(rules) != self._rules:
            before = self._rules, self._patterns, self._matrices
            self._loaded = by_short_key(self.state_dict())
            self._take(rules)
            try:
                self._prepare(self._ddp, self._device, self._group)
            except ValueError:
                self._rules, self._patterns, self._matrices = before
                self.rules = self._rules
                raise
        self._is_off = rules is None

    def _shapes_of(
        self, module: nn.Module, names: Mapping[nn.Parameter, str]
    ) -> dict[nn.Parameter, list[ParameterShape]]:
        """Raises ValueError: a parameter that no pattern matches, and the other way round; a rule
        that codes nothing; one that names parameters none of which gains by its factors.
        """
        numbers = {name: self._patterns.holder(name, self._source) for name in names.values()}
        if names or any(rule.parameters != ("*",) for rule in self._rules):
            self._patterns.check_names(names.values(), self._source)
        shapes = {
            p: ParameterShape(name, p.numel(), self._rules[numbers[name]].block, numbers[name])
            for p, name in names.items()
        }
        matrices = [self._matrix(shape, p.shape) for p, shape in shapes.items()]
        self._matrices = [matrix for matrix in matrices if matrix is not None]
        for number, rule in enumerate(self._rules):
            place = f"{self._source}: {self._patterns.place(number)}"
            ours = [shape for shape in shapes.values() if shape.coding == number]
            factors = [matrix for matrix in self._matrices if matrix.coding == number]
            _check_some_block(rule, sent_shapes(ours, factors), place)
            if rule.low_rank is not None and ours and not factors:
                self._tell_of_no_factors(rule, place, ours)
        return {p: [shape] for p, shape in shapes.items()}

    def _tell_of_no_factors(
        self, rule: GradientRule, place: str, shapes: Sequence[ParameterShape]
    ) -> None:
        """Warn, and raise ValueError where the rule names parameters: they were meant then."""
        assert rule.low_rank is not None
        text = (
            f"{place}.low_rank.rank: {rule.low_rank.rank}: factors are smaller than none of "
            f"the parameters: {', '.join(shape.name for shape in shapes)}"
        )
        if rule.parameters != ("*",):
            raise ValueError(text)
        _log.warning("%s; they are sent by the rule's codec", text)

    def _matrix(self, shape: ParameterShape, size: torch.Size) -> MatrixShape | None:
        """Return the form in which a parameter is sent as factors, None where it is not."""
        low_rank = self._rules[shape.coding].low_rank
        if low_rank is None or len(size) < 2 or not shape.numel:
            return None
        num_rows, num_columns = size[0], shape.numel // size[0]
        if not low_rank.is_smaller(num_rows, num_columns):
            return None
        return MatrixShape(
            shape.name, num_rows, num_columns, low_rank.rank, shape.block, shape.coding
        )

    def _make_reduction(
        self, shapes: Sequence[ParameterShape], rank: int, world_size: int
    ) -> Reduction:
        return make_reduction(
            self._rules,
            shapes,
            rank,
            world_size,
            self.traffic,
            matrices=self._matrices,
            seed=self._seed,
            measure_error=self._measure_error,
            ranks_per_node=self._ranks_per_node,
            intra_traffic=self.intra_traffic,
        )

    def _keeps_residual(self, shape: ParameterShape, *, resized: bool) -> bool:
        rule = self._rules[shape.coding]
        keeps = rule.error_feedback or shape.name in {matrix.name for matrix in self._matrices}
        return keeps and (not resized or rule.on_resize == "sum")

    def _rounds(self, shapes: Sequence[ParameterShape], values: Tensor, is_last: bool) -> Rounds:
        return self._reduction.start(shapes, values, is_last=is_last)


def _check_some_block(rule: GradientRule, sent: Sequence[ParameterShape], place: str) -> None:
    """Raise ValueError where blocks are so large that nothing would be coded.

    Parameters that are all smaller than `min_numel` are left as they are.

    Args: sent: shapes that the rule's codec gets.  place: place of the rule, for errors.
    """
    largest = max(sent, key=lambda shape: shape.numel, default=None)
    if largest is not None and rule.min_numel <= largest.numel < rule.block:
        raise ValueError(
            f"{place}.block: {rule.block!r}: no parameter has so many values; the largest, "
            f"{largest.name!r}, has {largest.numel}"
        )
