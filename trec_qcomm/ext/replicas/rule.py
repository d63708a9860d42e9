"""SyncRule: how replicas of tables are made equal again, in 2D parallelism.

Knows: codecs. Does not know: YAML, TorchRec, process groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from trec_qcomm.codecs import Cast, Identity
from trec_qcomm.config.gradients import check_gradient_codec
from trec_qcomm.config.section import Section
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.fields import Range, check_fields

SyncAlgorithm = Literal["auto", "direct", "two_shot"]


@dataclass(frozen=True, kw_only=True)
class SyncRule(Section):
    """Settings of the averages over replicas of tables.

    The replicas of TorchRec's 2D parallelism (DMPCollection) become their mean again. Only rows
    travel that at least one replica looked up in training since the last average. The replicas'
    process group is no field: `qcomm.sync(model, replica_group)` takes it.

    Args:
        codec: codec of the weights. An exact codec sends the touched rows themselves, and the
            result is the same as that of an all-reduce of whole tables. Other codecs send
            differences since the last average. Not `forward_mask`.
        optimizer: codec of the optimizer's state of these rows, `identity` or `cast`; the state
            travels in the same messages.
        every: number of calls of `dmp_collection.sync()`, or of `sync.step()`, for one average.
        algorithm: `direct` sends a rank's touched rows to all. `two_shot` sends them to an owner of
            each row, which sends the average to all, so codecs that are not exact code twice.
            `auto` is `direct` for two replicas.
        feedback_rows: number of rows of a table whose residuals a rank keeps, if a codec is not
            exact. A row's residual is added to its next difference. Row i has the place i mod
            `feedback_rows`, and another row that comes there drops the residual. 0: no residuals.
    """

    codec: Codec = field(default=Identity())
    optimizer: Codec = field(default=Identity())
    every: Annotated[int, Range(1, 2**31 - 1)] = 1
    algorithm: SyncAlgorithm = "auto"
    feedback_rows: Annotated[int, Range(0, 2**31 - 1)] = 100_000

    def __post_init__(self) -> None:
        check_fields(self)
        check_gradient_codec("codec", self.codec)
        if not isinstance(self.optimizer, Identity | Cast):
            raise ValueError(f"optimizer: {self.optimizer.name} is not one of identity, cast")

    def in_short(self) -> str:
        return f"{self.codec!r} every {self.every}"

    def codecs(self) -> Iterator[Codec]:
        yield from (self.codec, self.optimizer)

    def extension(self, session: Any) -> Any:
        from trec_qcomm.ext.replicas.extension import SyncExtension  # which needs rules itself

        return SyncExtension(session)
