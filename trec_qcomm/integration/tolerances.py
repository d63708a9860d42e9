"""The tolerances of forward codecs while training, table by table.

Error bounds follow a schedule and the table's class, thresholds a quantile of the rows.

Knows: rules of the config, control. Does not know: TorchRec, frames. A tolerance is the sender's
own business: each segment carries what its receiver needs, so ranks may differ.
Shapes: T tables of one collective.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.comm.frame_plan import PlacedFrames
from trec_qcomm.config import TableRule
from trec_qcomm.control.error_bound import OnlineClasses, OnlineErrorBounds
from trec_qcomm.control.homogenization import homogenization_index
from trec_qcomm.control.threshold import SampledThreshold

State = dict[str, Tensor]


class _Class:
    """The error bound of one table, from the rows that this rank sends."""

    def __init__(self, table: str, classes: OnlineClasses) -> None:
        self._table, self._bounds = table, OnlineErrorBounds([table], classes)
        self.is_due = self._bounds.is_due
        self.state_dict, self.load_state_dict = (
            self._bounds.state_dict,
            self._bounds.load_state_dict,
        )

    def observe(self, rows: Tensor) -> None:
        base = self._bounds.classes.base
        self._bounds.observe(self._table, homogenization_index(rows, bound=base))

    def tolerance(self, given: float) -> float:
        return float(self._bounds.bounds())


class _Threshold(SampledThreshold):
    """The threshold of one table; the config's until there was a look at the rows."""

    def tolerance(self, given: float) -> float:
        return given if self.threshold is None else self.threshold


class ForwardTolerances:
    """Of the forward codecs of one collective.

    Args: rules: by table name.  tables: T names, in the collective's order.
    """

    def __init__(self, rules: Mapping[str, TableRule], tables: Sequence[str]) -> None:
        self._rules = {table: rules[table] for table in tables}
        self._measured: dict[str, _Class | _Threshold] = {}
        for table, rule in self._rules.items():
            if rule.classes is not None:
                self._measured[table] = _Class(table, rule.classes)
            if rule.refresh is not None:
                self._measured[table] = _Threshold(rule.refresh)

    @property
    def changes(self) -> bool:
        """Whether any tolerance is ever another than the config's."""
        return bool(self._measured) or any(r.schedule is not None for r in self._rules.values())

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
            given, measured = rule.forward.tolerance, self._measured.get(table)
            if given is None:
                continue
            tolerance = given if measured is None else measured.tolerance(given)
            multiplier = 1.0 if rule.schedule is None else rule.schedule.multiplier(step)
            tolerances[table] = tolerance * multiplier
        return tolerances

    def observe(self, step: int, values: Tensor, placed: PlacedFrames) -> None:
        """Look at the rows that are about to be sent, where it is time to. Not fast.

        Args: values: the buffer of `placed`'s rows.
        """
        rows: dict[str, list[Tensor]] = {table: [] for table in self.due(step)}
        for group in placed.groups if rows else ():
            for s, segment in enumerate(group.members.tolist()):
                table = placed.plan.tables[segment]
                if table in rows and int(group.segments.num_rows[s]):
                    rows[table].append(group.segments.block(values, s))
        for table, blocks in rows.items():
            if blocks:
                self.measure(table, _joined(blocks))

    def due(self, step: int) -> list[str]:
        """The tables that should be measured in this step."""
        return [table for table, measured in self._measured.items() if measured.is_due(step)]

    def measure(self, table: str, rows: Tensor) -> None:
        """Set the tolerance of a table by its rows [n, D], all that this rank sends, n > 0."""
        self._measured[table].observe(rows)

    def state_dict(self) -> dict[str, State]:
        """{table: what this rank found}."""
        return {table: measured.state_dict() for table, measured in self._measured.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises ValueError: it is not of such a table."""
        for table, measured in self._measured.items():
            if table in state:
                measured.load_state_dict(state[table])


def _joined(blocks: Sequence[Tensor]) -> Tensor:
    """Rows of one table as one matrix; column shards of other widths stay out."""
    dim = blocks[0].shape[1]
    return torch.cat([block for block in blocks if block.shape[1] == dim])
