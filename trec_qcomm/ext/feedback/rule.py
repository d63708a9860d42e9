"""RowFeedback: for how many ids residuals of rows are kept.

Knows: rules of tables. Does not know: TorchRec, residuals.
"""

from dataclasses import dataclass
from typing import Any

from trec_qcomm.config.section import Section


@dataclass(frozen=True, kw_only=True)
class RowFeedback(Section):
    """Settings of error feedback by id: what a codec kept back of a row is added to the next row
    of the same id.

    Args:
        backward_rows: number of ids of a feature whose gradients' residuals each rank keeps; 0:
            gradients are sent without.
        forward_rows: number of ids of a feature whose rows' residuals the table's rank keeps for
            each rank that it sends them; 0: rows are sent without.
    """

    backward_rows: int = 0
    forward_rows: int = 0

    def __post_init__(self) -> None:
        for name in ("backward_rows", "forward_rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
                raise ValueError(f"{name}: {value!r} is not an int in 0..2^31 - 1")
        if not self.backward_rows and not self.forward_rows:
            raise ValueError("backward_rows, forward_rows: one of them must be above 0")

    def check(self, owner: Any) -> None:
        if owner.unique_bags is not True:
            raise ValueError("error_feedback: needs unique_bags: true, or ids would come twice")
        for direction in ("forward", "backward"):
            codec = getattr(owner, direction)
            if self.num_rows(direction) and codec.mask_use is not None:
                raise ValueError(
                    f"error_feedback.{direction}_rows: not with {codec.name}, which sends some "
                    "columns alone"
                )

    def row_transforms(self, config: Any, groups: Any, merging: Any) -> Any:
        from trec_qcomm.ext.feedback.row_ids import RowFeedbacks  # needs TorchRec

        return RowFeedbacks(config, groups, merging)

    def num_rows(self, direction: str) -> int:
        """Return the number of ids in one direction. Args: direction: "forward" or "backward"."""
        return self.forward_rows if direction == "forward" else self.backward_rows
