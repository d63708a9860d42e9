"""RowFeedback: settings of error feedback of rows, such as the number of ids with residuals.

Knows: rules of tables. Does not know: TorchRec, residuals.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from trec_qcomm.config.section import Section
from trec_qcomm.core.fields import Range, check_fields

NumRows = Annotated[int, Range(0, 2**31 - 1)]


@dataclass(frozen=True, kw_only=True)
class RowFeedback(Section):
    """Settings of error feedback by id: a row's error is added to the next row of the same id.

    A rank sends Q(row + residual). It keeps row + residual minus that, for the next time that it
    sends the id. Each feature and column shard has its own residuals, and in forward also each
    receiving rank. An id takes 4 D + 16 bytes, for at most as many ids as the table has rows. Id i
    has the place i mod `backward_rows`. Another id that comes there takes the place. `num_evicted`
    of the table in `stats()` counts the residuals that are dropped.

    It needs `unique_bags: true` and a table-, column- or table-column-wise EmbeddingBagCollection.
    `forward_rows` also needs lookups that take distinct bags. Other shardings, tables with weights,
    `topk` and `forward_mask` are errors. Bags of several ids, rows with NaN or inf, evaluation and
    `bypass` are sent without residuals. If a loss scaler skips a step, the residuals that this step
    added and kept are not undone.

    Residuals are in `qcomm.state_dict()`, so a resumed run equals an uninterrupted one bit for bit.
    Another number of ranks, or a plan whose shards have other dims, begins without residuals.
    Paired trainings with 2 and 3 bits showed no gain (examples/papers/README.md), so no preset has
    it. Not run on a GPU.

    Args:
        backward_rows: number of ids of a feature for which each rank keeps residuals of gradients;
            0: gradients are sent without residuals.
        forward_rows: number of ids of a feature for which the table's rank keeps residuals of rows,
            for each receiving rank; 0: rows are sent without residuals. One of both is above 0.
    """

    backward_rows: NumRows = 0
    forward_rows: NumRows = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.backward_rows and not self.forward_rows:
            raise ValueError("backward_rows, forward_rows: one of them must be above 0")

    def check(self, owner: Any) -> None:
        if owner.unique_bags is not True:
            raise ValueError("error_feedback: needs unique_bags: true, or ids would come twice")
        for direction in ("forward", "backward"):
            codec = getattr(owner, direction)
            if self.num_rows(direction) and (codec.chooses_columns or codec.follows_forward):
                raise ValueError(
                    f"error_feedback.{direction}_rows: not with {codec.name}, which sends some "
                    "columns alone"
                )

    def row_transform(self, config: Any, groups: Any, merging: Any) -> Any:
        from trec_qcomm.ext.feedback.row_ids import RowFeedbacks  # needs TorchRec

        return RowFeedbacks(config, groups, merging)

    def num_rows(self, direction: str) -> int:
        """Return the number of ids in one direction. Args: direction: "forward" or "backward"."""
        return self.forward_rows if direction == "forward" else self.backward_rows
