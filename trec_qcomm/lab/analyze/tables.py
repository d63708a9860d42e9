"""What one table's rows say about its bound and its encoder.

Shapes: batches of [n, D] float32; a batch is what one rank sends one peer for the table.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args, get_type_hints

from torch import Tensor

from trec_qcomm.codecs import Identity
from trec_qcomm.config import codec_from_dict
from trec_qcomm.core.codec import Codec, check_choice
from trec_qcomm.core.registry import codec_type
from trec_qcomm.ext.dual_level.error_bound import BoundClass, BoundClasses
from trec_qcomm.ext.dual_level.homogenization import mean_index
from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES
from trec_qcomm.lab.analyze.rows import distinct
from trec_qcomm.lab.preview.selector import Measurement, Selection, measure, select


def all_encoders() -> tuple[str, ...]:
    """What the field `encoder` of the codec error_bounded may be."""
    return get_args(get_type_hints(codec_type("error_bounded"))["encoder"])


def error_bounded(bound: float, encoder: str) -> Codec:
    """The codec of rows, its bound relative to the range of what one rank sends another."""
    fields = {"bound": bound, "mode": "rel", "encoder": encoder}
    return codec_from_dict({"codec": "error_bounded"} | fields)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the decisions depend on.

    Args:
        encoders: encoders to choose from.
        link_gb_s: what a rank can send, GB/s.
        classes: bounds, and thresholds of the index.
        unique_bags: whether a row that repeats in a batch is sent once.
        backward: codec of the gradients.
    """

    encoders: tuple[str, ...]
    link_gb_s: float
    classes: BoundClasses
    unique_bags: bool
    backward: Codec

    def __post_init__(self) -> None:
        for encoder in self.encoders:
            check_choice("encoders", encoder, all_encoders())
        if not self.encoders or len(set(self.encoders)) != len(self.encoders):
            raise ValueError(f"encoders: expected different ones of {', '.join(all_encoders())}")
        if not 0 < self.link_gb_s < math.inf:
            raise ValueError(f"link_gb_s: {self.link_gb_s} is not a finite number > 0")


@dataclass(frozen=True, kw_only=True)
class TableResult:
    """Measurements of one table, and its bound and encoder. Rows and bytes are those of a batch.

    Args:
        num_rows: rows that are looked up.
        num_distinct: different rows among them.
        index: homogenization index under the base bound.
        bound: relative error bound of `bound_class`.
        kept: homogenization index under `bound`.
        by_encoder: measurement of each encoder under `bound`.
        selection: the fastest encoder.
        backward_speed_up: speed-up of the codec of gradients over float32, on as many values.
        backward: that codec, or identity where it loses time.
    """

    table: str
    dim: int
    num_rows: float
    num_distinct: float
    index: float
    bound_class: BoundClass
    bound: float
    kept: float
    by_encoder: dict[str, Measurement]
    selection: Selection
    backward_speed_up: float
    backward: Codec
    sent_nbytes: float  # float32 bytes of the rows that are sent: all, or the distinct ones

    @property
    def is_faster(self) -> bool:
        """Whether the fastest encoder is faster than float32."""
        return self.selection.speed_up > 1

    @property
    def forward(self) -> Codec:
        """Codec of the rows: error_bounded, or identity where all encoders lose time."""
        return error_bounded(self.bound, self.selection.name) if self.is_faster else Identity()

    @property
    def encoder(self) -> str:
        """Name of the fastest encoder, or identity."""
        return self.selection.name if self.is_faster else Identity.name

    @property
    def ratio(self) -> float:
        """Float32 bytes of the rows that are sent, over their bytes as they are sent."""
        return self.by_encoder[self.selection.name].compression_ratio if self.is_faster else 1.0

    @property
    def raw_nbytes(self) -> float:
        """Float32 bytes of all rows that are looked up."""
        return FLOAT32_NBYTES * self.num_rows * self.dim


def analyze_table(table: str, batches: Sequence[Tensor], options: Options) -> TableResult:
    """Measure and decide. The ratio is repeatable; the throughput is that of this machine now.

    The codec of gradients is timed on the rows: its size and speed do not depend on the values.
    """
    unique = [distinct(rows) for rows in batches]
    sent = unique if options.unique_bags else batches
    index = mean_index(unique, bound=options.classes.base)
    bound_class = options.classes.of_index(index)
    bound = options.classes.bound(bound_class)
    by_encoder = {name: measure(error_bounded(bound, name), sent) for name in options.encoders}
    backward = measure(options.backward, sent).speed_up(options.link_gb_s)
    return TableResult(
        table=table,
        dim=batches[0].shape[1],
        num_rows=sum(map(len, batches)) / len(batches),
        num_distinct=sum(map(len, unique)) / len(batches),
        index=index,
        bound_class=bound_class,
        bound=bound,
        kept=mean_index(unique, bound=bound),
        by_encoder=by_encoder,
        selection=select(by_encoder, link_gb_s=options.link_gb_s),
        backward_speed_up=backward,
        backward=options.backward if backward > 1 else Identity(),
        sent_nbytes=FLOAT32_NBYTES * sum(rows.numel() for rows in sent) / len(batches),
    )
