"""Tolerances of forward codecs while training, table by table.

An error bound follows a schedule and the table's class, a threshold a quantile of the rows. Each
sender has tolerances of its own: a segment carries what its receiver needs, so ranks may differ.

Knows: rules of the config, control. Does not know: TorchRec, frames.
Shapes: T tables of one collective.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.config import TableRule
from trec_qcomm.control.error_bound import OnlineClasses, OnlineErrorBounds
from trec_qcomm.control.homogenization import homogenization_index
from trec_qcomm.control.threshold import SampledThreshold
from trec_qcomm.integration.guarding.held_bounds import HeldBounds

State = dict[str, Tensor]
_HELD = "held"  # name of what HeldBounds keeps of a table


class _BoundFromClass:
    """Error bound of one table, from the rows that this rank sends."""

    def __init__(self, table: str, classes: OnlineClasses) -> None:
        self._table, self._bounds = table, OnlineErrorBounds([table], classes)
        self.is_due = self._bounds.is_due
        self.state_dict, self.load_state_dict = (
            self._bounds.state_dict,
            self._bounds.load_state_dict,
        )

    def observe(self, rows: Tensor, step: int) -> None:
        """Set the class of the table by its rows [n, D]."""
        base = self._bounds.classes.base
        self._bounds.observe(self._table, homogenization_index(rows, bound=base))

    def tolerance(self, configured: float) -> float:
        """Return the bound of the table's class."""
        return float(self._bounds.bounds())


class _ThresholdFromRows(SampledThreshold):
    """Threshold of one table: the config's until the first update."""

    def tolerance(self, configured: float) -> float:
        """Return the threshold, or the configured one before the first update."""
        return configured if self.threshold is None else self.threshold


class ForwardTolerances:
    """Tolerances of the forward codecs of one collective, on one rank.

    Args:
        rules: {table: rule}.
        tables: T names, in the collective's order.
        held: what holds error bounds that would widen at once; None: nothing does.
    """

    def __init__(
        self,
        rules: Mapping[str, TableRule],
        tables: Sequence[str],
        held: HeldBounds | None = None,
    ) -> None:
        self.held = held
        self._rules = {table: rules[table] for table in tables}
        self._measured: dict[str, _BoundFromClass | _ThresholdFromRows] = {}
        for table, rule in self._rules.items():
            if rule.classes is not None:
                self._measured[table] = _BoundFromClass(table, rule.classes)
            if rule.refresh is not None:
                self._measured[table] = _ThresholdFromRows(rule.refresh)

    @property
    def changes(self) -> bool:
        """Whether any tolerance ever differs from the config's."""
        changes = bool(self._measured) or self.held is not None
        return changes or any(r.schedule is not None for r in self._rules.values())

    def tolerances(self, step: int) -> Tensor:
        """Return [T] float64, the tolerance of each table; NaN where its codec has none."""
        by_table = self.by_table(step)
        return torch.tensor(
            [by_table.get(table, math.nan) for table in self._rules], dtype=torch.float64
        )

    def by_table(self, step: int) -> dict[str, float]:
        """Return {table: tolerance} of the tables whose codec has one."""
        tolerances: dict[str, float] = {}
        shares = {} if self.held is None else self.held.shares()
        for table, rule in self._rules.items():
            configured, measured = rule.forward.tolerance, self._measured.get(table)
            if configured is None:
                continue
            tolerance = configured if measured is None else measured.tolerance(configured)
            multiplier = 1.0 if rule.schedule is None else rule.schedule.multiplier(step)
            tolerances[table] = tolerance * multiplier * shares.get(table, 1.0)
        return tolerances

    def observe(self, step: int, values: Tensor, placed: PlacedFrames) -> None:
        """Measure the rows that are about to be sent, of tables that are due in this step. Slow.

        Args: step: number of the step.  values: buffer of the rows.  placed: the rows' places.
        """
        if self.held is not None:
            self.held.observe(values, placed)
        rows: dict[str, list[Tensor]] = {table: [] for table in self.tables_due(step)}
        for group in placed.groups if rows else ():
            for s, segment in enumerate(group.members.tolist()):
                table = placed.plan.tables[segment]
                if table in rows and int(group.segments.num_rows[s]):
                    rows[table].append(group.segments.block(values, s))
        for table, blocks in rows.items():
            if blocks:
                self.measure(table, _joined(blocks), step)

    def tables_due(self, step: int) -> list[str]:
        """Return the tables that should be measured in this step."""
        return [table for table, measured in self._measured.items() if measured.is_due(step)]

    def measure(self, table: str, rows: Tensor, step: int) -> None:
        """Set the tolerance of a table by all rows [n > 0, D] that this rank sends in a step."""
        self._measured[table].observe(rows, step)

    def state_dict(self) -> dict[str, State]:
        """Return {table: state of its class or threshold, and of its held bound, on this rank}."""
        state = {table: measured.state_dict() for table, measured in self._measured.items()}
        for table, numbers in ({} if self.held is None else self.held.state_dict()).items():
            state[table] = {**state.get(table, {}), _HELD: numbers}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises ValueError: no state of such a class or threshold."""
        held = {table: kept[_HELD] for table, kept in state.items() if _HELD in kept}
        if self.held is not None:
            self.held.load_state_dict(held)
        for table, measured in self._measured.items():
            kept = {name: value for name, value in state.get(table, {}).items() if name != _HELD}
            if kept:
                measured.load_state_dict(kept)


def _joined(blocks: Sequence[Tensor]) -> Tensor:
    """Return the blocks of one table as one matrix, without those of another dim than the first."""
    dim = blocks[0].shape[1]
    return torch.cat([block for block in blocks if block.shape[1] == dim])
