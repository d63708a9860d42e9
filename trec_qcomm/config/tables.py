"""TableRule: how the rows of some tables, and their gradients, are coded.

Knows: codecs, sections. Does not know: YAML, TorchRec, process groups.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from trec_qcomm.codecs import Identity
from trec_qcomm.config.matching import Patterns
from trec_qcomm.config.section import At, Section, check_sections
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.fields import check_fields

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
UniqueBagsChoice = Literal[True, False, "auto"]
AUTO_SHARE = 0.9  # `auto` merges where at least a tenth of the bags repeats; a choice, not tuned


def _check_codecs(pair: "HopCodecs | TableRule") -> None:
    if pair.forward.only_for_gradients:
        raise ValueError(
            f"forward: {pair.forward.name} is for gradients only: it keeps too little of rows to "
            "train with; take topk"
        )
    if pair.forward.follows_forward:
        raise ValueError(f"forward: {pair.forward.name} is for backward only; take topk here")
    if pair.backward.follows_forward and not pair.forward.chooses_columns:
        raise ValueError(
            f"backward: {pair.backward.name} sends the columns that forward kept, "
            f"so forward must be topk, not {pair.forward.name}"
        )


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
        check_fields(self)
        _check_codecs(self)


@dataclass(frozen=True, kw_only=True)
class TableRule:
    """Rule of the embedding exchanges of all tables that match one of the patterns.

    DATA_PARALLEL tables exchange no rows; `data_parallel` is the rule of their gradients.

    Merging equal bags is not exact with FBGEMM's `gradient_clipping`, which clips sample by sample.
    It is not exact either inside modules that do more with ids than look them up (managed
    collisions, feature processors).

    Some lookups take no batch size for every feature: full Adagrad, dense kernels and, on CPU,
    tables of different pooling on one rank. There distinct rows are selected after the lookup
    (table- and column-wise), or bags are not merged.

    Args:
        tables: one shell pattern (`*`, `?`, `[..]`) on names of tables, or a sequence of patterns,
            kept as a tuple. Patterns are case-sensitive. A pattern that matches no table is an
            error, and so is a rule whose tables all have an earlier rule.
        forward: codec of the rows.
        backward: codec of the gradients of the rows.
        intra: codecs of the hop inside a node, which only table_row_wise and grid_shard tables
            have; `forward` and `backward` are then the codecs of the hop between nodes.
        unique_bags: whether equal bags of a batch are looked up and sent once. Results stay exact:
            True is an error where they would not. "auto" merges only where results stay exact and
            enough bags repeat. If no rank merged any bag of a batch, the next 63 batches are not
            searched.
        classes: rule that finds the error bound of `forward` for each table, from the rows that
            each rank sends; needs `error_bounded` with mode `rel`.
        refresh: rule that finds the threshold of `forward` from the rows that each rank sends;
            needs `topk` with a `threshold`.
        schedule: factor of the error bound of `forward` in each step, applied after `classes`;
            needs `error_bounded`.
        error_feedback: settings of residuals: the error of a row is kept, and added to the next row
            of the same id.
    """

    tables: Patterns
    forward: Codec
    backward: Codec
    intra: HopCodecs = field(default=HopCodecs())
    unique_bags: UniqueBagsChoice = False
    classes: (
        Annotated[Section, At("trec_qcomm.ext.dual_level.error_bound:OnlineClasses")] | None
    ) = None
    refresh: Annotated[Section, At("trec_qcomm.ext.dct.refresh:ThresholdRefresh")] | None = None
    schedule: Annotated[Section, At("trec_qcomm.ext.dual_level.schedule:Schedule")] | None = None
    error_feedback: Annotated[Section, At("trec_qcomm.ext.feedback.rule:RowFeedback")] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        _check_codecs(self)
        check_sections(self)


EXACT_RULE = TableRule(tables="*", forward=Identity(), backward=Identity())
