"""Tolerances of forward codecs while training, table by table.

Sections of a table's rule set them. An error bound may follow a schedule and the table's class. A
threshold may follow a quantile of the rows. Each sender has its own tolerances: ranks may differ,
because a segment carries what its receiver needs.

Knows: rules of the config, their sections. Does not know: what a section does, TorchRec, frames.
Shapes: T tables of one collective.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.config import TableRule
from trec_qcomm.config.section import sections_of

State = dict[str, Tensor]


class TableTolerance:
    """Base of what sets the tolerance of one table's forward codec in each step.

    If a table has several, they act one after the other. A subclass overrides the methods that it
    needs.
    """

    def is_due(self, step: int) -> bool:
        """Return whether `observe` should see the rows of this step."""
        return False

    def observe(self, rows: Tensor, step: int) -> None:
        """Look at all rows [n > 0, D] of the table that this rank sends in a step."""

    def tolerance(self, given: float, step: int) -> float:
        """Return the tolerance in a step. Args: given: the tolerance without this object."""
        return given

    def state_dict(self) -> State:
        """Return what a resumed run needs."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict`. Raises ValueError at other state."""


class ForwardTolerances:
    """Tolerances of the forward codecs of one collective, on one rank.

    Args:
        rules: {table: rule}.
        tables: T names, in the collective's order.
    """

    def __init__(self, rules: Mapping[str, TableRule], tables: Sequence[str]) -> None:
        self._rules = {table: rules[table] for table in tables}
        self._parts: dict[str, list[TableTolerance]] = {}
        for table, rule in self._rules.items():
            made = (part.table_tolerance() for part in sections_of(rule).values())
            self._parts[table] = [part for part in made if part is not None]

    @property
    def changes(self) -> bool:
        """Whether a tolerance may ever differ from the config's."""
        return any(self._parts.values())

    def tolerances(self, step: int) -> Tensor:
        """Return [T] float64, the tolerance of each table; NaN where its codec has none."""
        by_table = self.by_table(step)
        return torch.tensor(
            [by_table.get(table, math.nan) for table in self._rules], dtype=torch.float64
        )

    def by_table(self, step: int) -> dict[str, float]:
        """Return {table: tolerance} of the tables whose codec has one."""
        tolerances: dict[str, float] = {}
        for table, rule in self._rules.items():
            tolerance = rule.forward.tolerance
            if tolerance is None:
                continue
            for part in self._parts[table]:
                tolerance = part.tolerance(tolerance, step)
            tolerances[table] = tolerance
        return tolerances

    def observe(self, step: int, values: Tensor, placed: PlacedFrames) -> None:
        """Measure the rows to send, of the tables that are due in this step. Slow.

        Args: step: number of the step.  values: buffer of the rows.  placed: the rows' places.
        """
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
        return [table for table, parts in self._parts.items() if any(p.is_due(step) for p in parts)]

    def measure(self, table: str, rows: Tensor, step: int) -> None:
        """Set the tolerance of a table by all rows [n > 0, D] that this rank sends in a step."""
        for part in self._parts[table]:
            if part.is_due(step):
                part.observe(rows, step)

    def state_dict(self) -> dict[str, State]:
        """Return {table: numbers by name}, from which this rank finds tolerances."""
        state: dict[str, State] = {}
        for table, parts in self._parts.items():
            for part in parts:
                if kept := part.state_dict():
                    state[table] = state.get(table, {}) | kept
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises ValueError if it is no state of these tolerances."""
        for table, parts in self._parts.items():
            kept = state.get(table, {})
            for part in parts:
                names = part.state_dict().keys()
                if kept and names:
                    part.load_state_dict({name: kept[name] for name in names & kept.keys()})


def _joined(blocks: Sequence[Tensor]) -> Tensor:
    """Return the blocks of one table as one matrix, without those of another dim than the first."""
    dim = blocks[0].shape[1]
    return torch.cat([block for block in blocks if block.shape[1] == dim])
