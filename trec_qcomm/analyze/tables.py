"""What one table's rows say about its bound and its encoder.

Shapes: batches of [n, D] float32; a batch is what one rank sends one peer for the table.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args, get_type_hints

from torch import Tensor

from trec_qcomm.analyze.rows import distinct
from trec_qcomm.config import codec_from_dict
from trec_qcomm.control.cost_model import FLOAT32_NBYTES
from trec_qcomm.control.error_bound import BoundClass, BoundClasses
from trec_qcomm.control.homogenization import mean_index
from trec_qcomm.control.selector import Measurement, Selection, measure, select
from trec_qcomm.core.codec import Codec, check_choice
from trec_qcomm.core.registry import codec_type


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

    Args: encoders: to choose from.  link_gb_s: what a rank can send, GB/s.  classes: bounds, and
        thresholds of the index.  unique_bags: a row that repeats in a batch is sent once.
    """

    encoders: tuple[str, ...]
    link_gb_s: float
    classes: BoundClasses
    unique_bags: bool

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
    sent_nbytes: float  # float32 bytes of the rows that are sent: all, or the distinct ones

    @property
    def encoder(self) -> str:
        """Name of the fastest encoder."""
        return self.selection.name

    @property
    def ratio(self) -> float:
        """Float32 bytes of the rows that are sent, over their bytes in the fastest encoder."""
        return self.by_encoder[self.encoder].compression_ratio

    @property
    def raw_nbytes(self) -> float:
        """Float32 bytes of all rows that are looked up."""
        return FLOAT32_NBYTES * self.num_rows * self.dim


def analyze_table(table: str, batches: Sequence[Tensor], options: Options) -> TableResult:
    """Measure and decide. The ratio is repeatable; the throughput is that of this machine now."""
    unique = [distinct(rows) for rows in batches]
    sent = unique if options.unique_bags else batches
    index = mean_index(unique, bound=options.classes.base)
    bound_class = options.classes.of_index(index)
    bound = options.classes.bound(bound_class)
    by_encoder = {name: measure(error_bounded(bound, name), sent) for name in options.encoders}
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
        sent_nbytes=FLOAT32_NBYTES * sum(rows.numel() for rows in sent) / len(batches),
    )
