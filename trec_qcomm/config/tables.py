"""TableRule: how the rows of some tables, and their gradients, are coded.

Knows: codecs, what controls their tolerances. Does not know: YAML, TorchRec, process groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from trec_qcomm.codecs import EncoderLink, ErrorBounded, Identity, Sign, Threshold, TopK
from trec_qcomm.config.matching import patterns_of
from trec_qcomm.control.error_bound import OnlineClasses
from trec_qcomm.control.schedule import Schedule
from trec_qcomm.control.threshold import ThresholdRefresh
from trec_qcomm.core.codec import Codec, MaskUse, check_choice, mask_use

UniqueBagsChoice = bool | Literal["auto"]
AUTO_SHARE = 0.9  # `auto` merges where at least a tenth of the bags repeats; a choice, not tuned


def _check_codecs(pair: "HopCodecs | TableRule") -> None:
    for name in ("forward", "backward"):
        codec = getattr(pair, name)
        if isinstance(codec, type) or not isinstance(codec, Codec):
            raise ValueError(f"{name}: expected a codec, got {codec!r}")
    if isinstance(pair.forward, Sign | Threshold):
        raise ValueError(
            f"forward: {pair.forward.name} is for gradients only: of the rows themselves it keeps "
            "too little to train with"
        )
    if mask_use(pair.forward) is MaskUse.READS:
        raise ValueError(f"forward: {pair.forward.name} is for backward only")
    if mask_use(pair.backward) is MaskUse.READS and mask_use(pair.forward) is not MaskUse.WRITES:
        raise ValueError(
            f"backward: {pair.backward.name} sends the columns that forward kept, "
            f"so forward must be topk, not {pair.forward.name}"
        )


def chooses_encoder(codec: Codec) -> bool:
    """Return whether a rule's `link` is for this codec."""
    return isinstance(codec, ErrorBounded) and codec.encoder == "auto"


@dataclass(frozen=True, kw_only=True)
class HopCodecs:
    """Codecs of one hop of a two-level sharding.

    Args:
        forward: codec of the rows.
        backward: codec of the gradients of the rows.
    """

    forward: Codec = field(default=Identity())
    backward: Codec = field(default=Identity())

    def __post_init__(self) -> None:
        _check_codecs(self)


@dataclass(frozen=True, kw_only=True)
class RowFeedback:
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

    def num_rows(self, direction: str) -> int:
        """Return the number of ids in one direction. Args: direction: "forward" or "backward"."""
        return self.forward_rows if direction == "forward" else self.backward_rows


@dataclass(frozen=True, kw_only=True)
class TableRule:
    """Rule of the embedding exchanges of all tables that match one of the patterns.

    Args:
        tables: one shell pattern (`*`, `?`, `[..]`), case-sensitive, or a sequence of them. It is
            kept as a tuple.
        forward: codec of the rows.
        backward: codec of the gradients of the rows.
        intra: codecs of the hop inside a node, which only table_row_wise and grid_shard tables
            have; `forward` and `backward` are then the codecs of the hop between nodes.
        unique_bags: whether equal bags of a batch are looked up and sent once. Results stay exact:
            where they would not, True is an error. "auto" merges only where results stay exact and
            enough bags repeat.
        schedule: factor of the error bound of `forward`, step by step.
        classes: rule that finds the error bound of `forward` for each table, from the rows that
            each rank sends.
        refresh: rule that finds the threshold of a `forward` that is topk, from the same rows.
        link: network that the codecs error_bounded with `encoder: auto` choose their encoder for.
        error_feedback: what is kept of each row for the next one of the same id.
    """

    tables: Sequence[str]
    forward: Codec
    backward: Codec
    intra: HopCodecs = field(default=HopCodecs())
    unique_bags: UniqueBagsChoice = False
    schedule: Schedule | None = None
    classes: OnlineClasses | None = None
    refresh: ThresholdRefresh | None = None
    link: EncoderLink | None = None
    error_feedback: RowFeedback | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", patterns_of(self.tables))
        _check_codecs(self)
        if not isinstance(self.intra, HopCodecs):
            raise ValueError(f"intra: expected HopCodecs, got {self.intra!r}")
        check_choice("unique_bags", self.unique_bags, (True, False, "auto"))
        self._check_error_bounds()
        hops = (self.forward, self.backward, self.intra.forward, self.intra.backward)
        if self.link is not None and not any(map(chooses_encoder, hops)):
            raise ValueError("link: only for a codec error_bounded with encoder: auto")
        self._check_error_feedback()

    def _check_error_feedback(self) -> None:
        feedback = self.error_feedback
        if feedback is None:
            return
        if self.unique_bags is not True:
            raise ValueError("error_feedback: needs unique_bags: true, or ids would come twice")
        for direction in ("forward", "backward"):
            codec: Codec = getattr(self, direction)
            if feedback.num_rows(direction) and mask_use(codec) is not None:
                raise ValueError(
                    f"error_feedback.{direction}_rows: not with {codec.name}, which sends some "
                    "columns alone"
                )

    def _check_error_bounds(self) -> None:
        has_threshold = isinstance(self.forward, TopK) and self.forward.threshold is not None
        if self.refresh is not None and not has_threshold:
            raise ValueError("refresh: only for forward {codec: topk, threshold: ...}")
        for name in ("schedule", "classes"):
            if getattr(self, name) is not None and not isinstance(self.forward, ErrorBounded):
                raise ValueError(
                    f"{name}: only forward {{codec: error_bounded}} has an error bound"
                )
        if not isinstance(self.forward, ErrorBounded) or self.forward.mode != "rel":
            if self.classes is not None:
                raise ValueError("classes: only for forward error_bounded of mode rel")
            return
        largest = self.classes.loose if self.classes is not None else self.forward.bound
        factor = self.schedule.multiplier(0) if self.schedule is not None else 1.0
        if largest * factor >= 1:
            raise ValueError(f"schedule: starts with a relative bound of {largest * factor:g} >= 1")

    def matches(self, table: str) -> bool:
        """Return whether one of the patterns matches the table's name."""
        return any(fnmatchcase(table, pattern) for pattern in self.tables)


EXACT_RULE = TableRule(tables="*", forward=Identity(), backward=Identity())
