"""A bound and an encoder for each table, chosen by what was measured of its rows.

The bound is that of the table's class: tight where quantization makes many of its rows equal. The
encoder is the fastest one over a link, as SC'24 (Feng, Zhang et al.) chooses it by table.
Shapes: blocks of [n, D] float32; a block is what one rank sends one peer for the table.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from trec_qcomm.codecs import ErrorBounded, Identity
from trec_qcomm.codecs.error_bounded import Encoder
from trec_qcomm.core.codec import Codec, check_choice
from trec_qcomm.ext.dual_level.error_bound import BoundClass, BoundClasses
from trec_qcomm.ext.dual_level.homogenization import mean_index
from trec_qcomm.lab.preview.candidates import BASELINE
from trec_qcomm.lab.preview.measure import CodecPreview, TablePreview
from trec_qcomm.lab.preview.selector import measure, select
from trec_qcomm.lab.sizes.rows import distinct

ENCODERS: tuple[Encoder, ...] = get_args(Encoder)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings that the choices depend on.

    Args:
        encoders: encoders to choose from.
        link_gb_s: GB/s that a rank can send.
        classes: bounds, and thresholds of the index.
        unique_bags: whether a row that repeats in a block is sent once.
        backward: codec of the gradients.
    """

    encoders: tuple[Encoder, ...] = ENCODERS
    link_gb_s: float = 0.125
    classes: BoundClasses
    unique_bags: bool = True
    backward: Codec

    def __post_init__(self) -> None:
        for encoder in self.encoders:
            check_choice("encoders", encoder, ENCODERS)
        if not 0 < self.link_gb_s < math.inf:
            raise ValueError(f"link_gb_s: {self.link_gb_s} is not a finite number > 0")


@dataclass(frozen=True, kw_only=True)
class TableBound:
    """Class and bound of one table.

    Args:
        index: homogenization index under the base bound.
        bound: relative error bound of `bound_class`.
        kept: homogenization index under `bound`.
    """

    index: float
    bound_class: BoundClass
    bound: float
    kept: float

    @staticmethod
    def of_rows(blocks: Sequence[Tensor], classes: BoundClasses) -> "TableBound":
        """Return the bound of a table that sends these rows."""
        unique = [distinct(rows) for rows in blocks]
        index = mean_index(unique, bound=classes.base)
        bound_class = classes.of_index(index)
        bound = classes.bound(bound_class)
        kept = mean_index(unique, bound=bound)
        return TableBound(index=index, bound_class=bound_class, bound=bound, kept=kept)

    def codecs(self, options: Options) -> dict[str, Codec]:
        """Return the codecs to choose from, by the names that candidates.py has for them."""
        name = f"bound{100 * self.bound:g}%"
        names = {"bitpack": name, "vector_lz": f"{name}-vector_lz", "rans": f"{name}-rans"}
        return {names[e]: ErrorBounded(self.bound, encoder=e) for e in options.encoders}


@dataclass(frozen=True, kw_only=True)
class TableChoice:
    """Codecs of one table.

    Args:
        figures: what was measured of its rows.
        bound: class and bound of its rows.
        forward: codec of the rows: error_bounded, or identity where all encoders lose time.
        sent: figures of that codec.
        speed_up: speed-up over float32 of the fastest encoder.
        backward: codec of the gradients, or identity where it loses time.
        backward_speed_up: speed-up of that codec over float32, on as many values as rows have.
    """

    figures: TablePreview
    bound: TableBound
    forward: Codec
    sent: CodecPreview
    speed_up: float
    backward: Codec
    backward_speed_up: float


def choose(
    figures: TablePreview, blocks: Sequence[Tensor], bound: TableBound, options: Options
) -> TableChoice:
    """Choose the codecs of one table.

    The codec of gradients is timed on the rows: its size and speed do not depend on the values.

    Args: figures: measured of the blocks, with all of `bound.codecs(options)`.
    """
    codecs = bound.codecs(options)
    by_name = {preview.codec: preview for preview in figures.codecs}
    measured = {name: by_name[name].measurement for name in codecs}
    best = select(measured, link_gb_s=options.link_gb_s)
    rows = [distinct(block) for block in blocks] if options.unique_bags else blocks
    backward_speed_up = measure(options.backward, rows).speed_up(options.link_gb_s)
    return TableChoice(
        figures=figures,
        bound=bound,
        forward=codecs[best.name] if best.speed_up > 1 else Identity(),
        sent=by_name[best.name if best.speed_up > 1 else BASELINE],
        speed_up=best.speed_up,
        backward=options.backward if backward_speed_up > 1 else Identity(),
        backward_speed_up=backward_speed_up,
    )
