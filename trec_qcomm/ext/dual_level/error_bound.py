"""Error bounds by table: the lower a table's homogenization index, the tighter its bound.

Knows: rows, relative bounds. Does not know: schedules, ranks, codecs (but which values
error_bounded quantizes). Each sender decides for itself: bounds may differ between senders, because
each segment carries its own bound.
Source: SC'24 (Feng, Zhang et al.), table-wise adaptation: three classes and their bounds .01, .03,
.05. Its artefact ranks tables by the index and then names the tables of each class by hand. Ours:
thresholds, which make a table's class independent of other tables, and the online form.

The homogenization index is the share of distinct rows that stay apart under an error bound:

    index = distinct rows after quantization / distinct rows before, of one table's batch, in (0, 1]

The index is 1 if all rows stay apart, as in small tables. It is low if quantization makes many rows
equal. That happens in large tables, where most rows have hardly moved from their initial values. On
Criteo it is .3 to .7 for tables of thousands of rows and .98 to 1 for tables of under a hundred
rows (after one epoch at dim 16, batches of 2048, bound 0.03). It falls with a larger bound or batch
and rises with the dim. The quantizer is the artefact's, round(x / 2 bound range).

Shapes: T tables; n rows of D values. Unit: a bound is a fraction of max - min of a table's rows in
a batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

import torch
from torch import Tensor

from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.config.section import Section
from trec_qcomm.core.fields import Range, check_fields
from trec_qcomm.integration.tolerances import TableTolerance

_UNMEASURED = -1
# The largest code of the codec. A value with a larger one, or any value if the step is no normal
# float32, is sent unchanged and stays apart from others (wire/FORMAT.md, error_bounded).
_MAX_CODE = 2**22
_VERBATIM = 2**40  # larger than all codes; the 32 bits of a value sent unchanged are added


class BoundClass(IntEnum):
    """Class of a table's error bound, from the smallest bound to the largest."""

    TIGHT = 0
    BASE = 1
    LOOSE = 2


@dataclass(frozen=True, kw_only=True)
class OnlineClasses(Section):
    """Classes that are found while training.

    Every `every` steps each rank measures the index of a table's rows: distinct rows after
    quantization at the bound `base`, over distinct rows before (SC'24, dual-level adaptive bounds).
    The index gives the table one of three bounds. Until it is measured, the bound is `tight`.

    Args:
        tight: bound of tables with a low index, as a fraction of max - min;
            0 < tight <= base <= loose < 1.
        base: bound of tables in between, at which indices are measured.
        loose: bound of tables with a high index.
        tight_below: tables with a lower index are tight.
        loose_from: tables with this index or a higher one are loose; 0 <= tight_below <= loose_from
            <= 1.
        every: number of steps between measurements.
        margin: how far an index must be above a threshold before a bound is loosened; 0..1 -
            loose_from.
    """

    tight: float = 0.01
    base: float = 0.03
    loose: float = 0.05
    tight_below: float = 0.9
    loose_from: float = 0.98
    every: Annotated[int, Range(1)]
    margin: float = 0.01

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.tight <= self.base <= self.loose < 1:
            raise ValueError(
                f"tight {self.tight}, base {self.base}, loose {self.loose}: expected "
                "0 < tight <= base <= loose < 1"
            )
        if not 0 <= self.tight_below <= self.loose_from <= 1:
            raise ValueError(
                f"tight_below {self.tight_below}, loose_from {self.loose_from}: expected "
                "0 <= tight_below <= loose_from <= 1"
            )
        if not 0 <= self.margin <= 1 - self.loose_from:  # or no table could ever become loose
            raise ValueError(f"margin: {self.margin!r} is not in 0..{1 - self.loose_from:.4g}")

    def of_index(self, index: float) -> BoundClass:
        """Return the class of a table with an index, 0..1."""
        if index < self.tight_below:
            return BoundClass.TIGHT
        return BoundClass.LOOSE if index >= self.loose_from else BoundClass.BASE

    def bound(self, bound_class: BoundClass) -> float:
        """Return the relative bound of a class."""
        return (self.tight, self.base, self.loose)[bound_class]

    def check(self, owner: Any) -> None:
        if not isinstance(owner.forward, ErrorBounded):
            raise ValueError("classes: only forward {codec: error_bounded} has an error bound")
        if owner.forward.mode != "rel":
            raise ValueError("classes: only for forward error_bounded of mode rel")

    def table_tolerance(self) -> "OnlineErrorBound":
        return OnlineErrorBound(self)


class OnlineErrorBound(TableTolerance):
    """Error bound of one table while training, from the rows that this rank sends.

    The table is tight until it is measured. Its first index sets its class. Later its bound is
    tightened as soon as the index requires it. It is loosened only if the index is above the
    threshold by `margin`. So an index that moves back and forth across a threshold ends with the
    smaller bound.
    """

    def __init__(self, classes: OnlineClasses) -> None:
        self._classes = classes
        self._measured: BoundClass | None = None

    @property
    def bound_class(self) -> BoundClass:
        """Present class of the table."""
        return BoundClass.TIGHT if self._measured is None else self._measured

    def is_due(self, step: int) -> bool:
        return step % self._classes.every == 0

    def observe(self, rows: Tensor, step: int) -> None:
        self.note(homogenization_index(rows.float(), bound=self._classes.base))

    def note(self, index: float) -> None:
        """Set the class by the table's index at the bound `base`."""
        asked = self._classes.of_index(index)
        current = BoundClass.LOOSE if self._measured is None else self._measured
        if asked > current:  # loosen only as far as the index less the margin asks for
            asked = max(current, self._classes.of_index(index - self._classes.margin))
        self._measured = asked

    def tolerance(self, given: float, step: int) -> float:
        return self._classes.bound(self.bound_class)

    def state_dict(self) -> dict[str, Tensor]:
        """Return {"class": [] int64}, the number of the class; -1 before a measurement."""
        return {"class": torch.tensor(_UNMEASURED if self._measured is None else self._measured)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`. Raises ValueError if no class has its number."""
        number = int(state["class"])
        if not _UNMEASURED <= number <= BoundClass.LOOSE:
            raise ValueError(f"state: {number} is no class, -1..2")
        self._measured = None if number == _UNMEASURED else BoundClass(number)


def homogenization_index(rows: Tensor, *, bound: float) -> float:
    """Return the share of one batch's distinct rows that a relative bound keeps apart, in (0, 1].

    Cost: a dozen passes over n D values of 64 bits, and two sets of n rows. On one thread that is
        some 9 ms for 2048 rows of 64 values, 3 ms for 2048 rows of 16, 2 ms for 600 rows of 64.

    Args:
        rows: [n, D] float32, n >= 1; equal rows count once, NaN and inf count like other values.
        bound: fraction of max - min over the finite values, above 0 and below 1.
    Numerics: codes are round(x / step) in float64, step = 2 bound (max - min); the codec's codes
        may differ for values next to the middle between two codes.
    Raises: ValueError: another shape, dtype or bound.
    """
    if not 0 < bound < 1:
        raise ValueError(f"bound: {bound!r} is not between 0 and 1")
    if rows.dim() != 2 or rows.dtype != torch.float32 or not rows.numel():
        raise ValueError(
            f"rows: expected [n >= 1, D >= 1] float32, got {list(rows.shape)} {rows.dtype}"
        )
    before = count_distinct(_bits(rows))
    return min(count_distinct(_codes(rows, bound)), before) / before


def count_distinct(codes: Tensor) -> int:
    """Return the number of different rows of [n, D] integers; waits for a GPU.

    A set of the rows' bytes is faster than torch.unique(dim=0), which sorts the rows.
    """
    return len({row.tobytes() for row in codes.cpu().numpy()})


def _codes(rows: Tensor, bound: float) -> Tensor:
    """Return [n, D] int64, equal where the codec would send equal values."""
    finite = torch.isfinite(rows)
    values = rows[finite].double()
    step = 2 * bound * float(values.max() - values.min()) if len(values) else 0.0
    normal = torch.finfo(torch.float32)
    if not normal.tiny <= step <= min(normal.max, 1 / normal.tiny):
        return _bits(rows)
    codes = torch.round(rows.double() / step)
    coded = finite & (codes.abs() <= _MAX_CODE)
    return torch.where(coded, torch.where(coded, codes, 0.0).long(), _VERBATIM + _bits(rows))


def _bits(rows: Tensor) -> Tensor:
    """Return [n, D] int64, the 32 bits of each value, where -0.0 counts as 0.0."""
    return (rows + 0.0).view(torch.int32).long()
