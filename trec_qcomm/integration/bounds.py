"""The error bounds that this rank uses now, table by table: schedule times class.

Knows: rules of the config, control. Does not know: TorchRec, frames. A bound is the sender's own
business: each segment carries its step, so ranks may differ.
Shapes: T tables of one collective.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.comm.sides import Side
from trec_qcomm.config import TableRule
from trec_qcomm.control.error_bound import OnlineErrorBounds
from trec_qcomm.control.homogenization import homogenization_index


class ErrorBounds:
    """Of the forward codecs of one collective.

    Args: rules: by table name.  tables: T names, in the collective's order.
    """

    def __init__(self, rules: Mapping[str, TableRule], tables: Sequence[str]) -> None:
        self._rules = [rules[table] for table in tables]
        self._numbers = {table: t for t, table in enumerate(tables)}
        classes = {table: rules[table].classes for table in tables}
        self._online = {
            table: OnlineErrorBounds([table], own)
            for table, own in classes.items()
            if own is not None
        }
        self._fixed = not self._online and all(rule.schedule is None for rule in self._rules)

    def factors(self, step: int) -> Tensor | None:
        """[T] float64, by which each codec's bound is multiplied; None: nothing is."""
        if self._fixed:
            return None
        found = [r.schedule.multiplier(step) if r.schedule else 1.0 for r in self._rules]
        for table, bounds in self._online.items():
            t = self._numbers[table]
            param = self._rules[t].forward.param
            assert param is not None, "TableRule lets classes through only with a bound"
            found[t] *= float(bounds.bounds()) / param
        return torch.tensor(found, dtype=torch.float64)

    def observe(self, step: int, values: Tensor, side: Side) -> None:
        """Measure the rows that are about to be sent, where it is time to. Not fast.

        Args: values: the buffer of `side`'s rows.
        """
        due = {t for t, bounds in self._online.items() if bounds.is_due(step)}
        rows: dict[str, list[Tensor]] = {table: [] for table in due}
        for group in side.groups if due else ():
            for s, segment in enumerate(group.members.tolist()):
                table = side.template.tables[segment]
                if table in due:
                    rows[table].append(group.segments.block(values, s))
        for table, blocks in rows.items():
            sent = torch.cat(blocks) if blocks else torch.empty(0, 1)
            if len(sent):
                bounds = self._online[table]
                bounds.observe(table, homogenization_index(sent, bound=bounds.classes.base))

    def state_dict(self) -> dict[str, Tensor]:
        """{table: number of its class}, of this rank's own measurements."""
        return {k: v for bounds in self._online.values() for k, v in bounds.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises ValueError: a class that does not exist."""
        for table, bounds in self._online.items():
            if table in state:
                bounds.load_state_dict({table: state[table]})
