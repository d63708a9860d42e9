"""SyncRule: how replicas of tables are made equal again, in 2D parallelism.

Knows: codecs. Does not know: YAML, TorchRec, process groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trec_qcomm.codecs import Cast, Identity
from trec_qcomm.config.section import Section
from trec_qcomm.core.codec import Codec, MaskUse, check_choice

SyncAlgorithm = Literal["auto", "direct", "two_shot"]


@dataclass(frozen=True, kw_only=True)
class SyncRule(Section):
    """Settings of the averages that replicas of tables take of their rows.

    Args:
        codec: codec of the weights. One that is exact sends the touched rows themselves, and the
            result is what an all-reduce of whole tables gives; others send differences since the
            last average.
        optimizer: codec of the optimizer's state of these rows, `identity` or `cast`.
        every: number of calls of the hook, or of `step`, in which one takes the average.
        algorithm: `direct` sends a rank's touched rows to all; `two_shot` to an owner of each row,
            which sends the average to all; `auto` is `direct` for two replicas.
        feedback_rows: number of rows of a table whose residuals a rank keeps, where a codec is not
            exact; 0: differences are sent without.
    """

    codec: Codec = field(default=Identity())
    optimizer: Codec = field(default=Identity())
    every: int = 1
    algorithm: SyncAlgorithm = "auto"
    feedback_rows: int = 100_000

    def __post_init__(self) -> None:
        for name in ("codec", "optimizer"):
            codec = getattr(self, name)
            if not isinstance(codec, Codec):
                raise ValueError(f"{name}: expected a codec, got {codec!r}")
        if self.codec.mask_use is MaskUse.READS:
            raise ValueError(f"codec: {self.codec.name} is for the gradients of embeddings only")
        if not isinstance(self.optimizer, Identity | Cast):
            raise ValueError(f"optimizer: {self.optimizer.name} is not one of identity, cast")
        for name, least in (("every", 1), ("feedback_rows", 0)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value < 2**31:
                raise ValueError(f"{name}: {value!r} is not an integer in {least}..2^31 - 1")
        check_choice("algorithm", self.algorithm, get_args(SyncAlgorithm))

    def in_short(self) -> str:
        return f"{self.codec!r} every {self.every}"

    def codecs(self) -> Iterator[Codec]:
        yield from (self.codec, self.optimizer)

    def extension(self, session: Any) -> Any:
        from trec_qcomm.ext.replicas.extension import SyncExtension  # which needs rules itself

        return SyncExtension(session)
