"""Error bounds by table: the lower a table's homogenization index, the tighter its bound.

Knows: rows, relative bounds. Does not know: schedules, ranks, codecs (but which values
error_bounded quantizes). Each sender decides for itself: its bounds may differ from those of
others, since each segment carries its own.
Source: SC'24 (Feng, Zhang et al.), table-wise adaptation: three classes and their bounds .01, .03,
.05. Its artefact ranks tables by the index and then names the tables of each class by hand. Ours:
thresholds, which make a table's class independent of other tables, and the online form.

The homogenization index is the share of distinct rows that stay apart under an error bound:

    index = distinct rows after quantization / distinct rows before, of one table's batch, in (0, 1]

It is 1 where all rows stay apart, as in small tables. It is low where quantization makes many rows
equal, as in large tables, most of whose rows have hardly moved from their initial values. On
Criteo, after one epoch at dim 16, in batches of 2048 and at bound 0.03, it is .3 to .7 for tables
of thousands of rows and .98 to 1 for tables of under a hundred. It falls with a larger bound or
batch and rises with the dim. Its quantizer is that of the artefact, round(x / 2 bound range).

Shapes: T tables; n rows of D values. Unit: a bound is a fraction of max - min of a table's rows in
a batch.
"""

from collections.abc import Mapping, Sequence
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
_TABLE = "class"  # name of the state of one table's class
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
class BoundClasses:
    """The relative bound of each class, and the indices that put a table into it.

    Args:
        tight: bound of tables with a low index, as a fraction of max - min;
            0 < tight <= base <= loose < 1.
        base: bound of tables in between, at which indices are measured.
        loose: bound of tables with a high index.
        tight_below: tables with a lower index are tight.
        loose_from: tables with this index or a higher one are loose;
            0 <= tight_below <= loose_from <= 1.
    """

    tight: float = 0.01
    base: float = 0.03
    loose: float = 0.05
    tight_below: float = 0.9
    loose_from: float = 0.98

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

    def of_index(self, index: float) -> BoundClass:
        """Return the class of a table with that index. Raises ValueError: an index not in 0..1."""
        if not 0 <= index <= 1:
            raise ValueError(f"index: {index!r} is not in 0..1")
        if index < self.tight_below:
            return BoundClass.TIGHT
        return BoundClass.LOOSE if index >= self.loose_from else BoundClass.BASE

    def bound(self, bound_class: BoundClass) -> float:
        """Return the relative bound of that class."""
        return (self.tight, self.base, self.loose)[bound_class]


@dataclass(frozen=True, kw_only=True)
class OnlineClasses(BoundClasses, Section):
    """Classes that are found while training.

    Every `every` steps each rank measures the index of a table's rows: distinct rows after
    quantization at the bound `base`, over distinct rows before (SC'24, dual-level adaptive bounds).
    The index gives the table one of three bounds. Until it is measured, the bound is `tight`.

    Args:
        every: steps between measurements.
        margin: distance above a threshold that an index must have before a bound is loosened;
            0..1 - loose_from.
    """

    every: Annotated[int, Range(1)]
    margin: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.margin <= 1 - self.loose_from:  # or no table could ever become loose
            raise ValueError(f"margin: {self.margin!r} is not in 0..{1 - self.loose_from:.4g}")

    def check(self, owner: Any) -> None:
        if not isinstance(owner.forward, ErrorBounded):
            raise ValueError("classes: only forward {codec: error_bounded} has an error bound")
        if owner.forward.mode != "rel":
            raise ValueError("classes: only for forward error_bounded of mode rel")

    def table_tolerance(self) -> "_BoundFromClass":
        return _BoundFromClass(self)


class _BoundFromClass(TableTolerance):
    """Error bound of one table, from the rows that this rank sends."""

    def __init__(self, classes: OnlineClasses) -> None:
        self._bounds = OnlineErrorBounds([_TABLE], classes)

    def is_due(self, step: int) -> bool:
        return self._bounds.is_due(step)

    def observe(self, rows: Tensor, step: int) -> None:
        base = self._bounds.classes.base
        self._bounds.observe(_TABLE, homogenization_index(rows, bound=base))

    def tolerance(self, given: float, step: int) -> float:
        return float(self._bounds.bounds())

    def state_dict(self) -> dict[str, Tensor]:
        return self._bounds.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._bounds.load_state_dict(state)


class OnlineErrorBounds:
    """Bounds of all tables while training, from indices that this sender measures.

        if bounds.is_due(step):
            bounds.observe(table, homogenization_index(rows, bound=bounds.classes.base))
        tolerances = bounds.bounds()[table_of_segment]

    A table is tight until it is measured. Its first index sets its class. Later its bound is
    tightened as soon as the index asks for it, and loosened only when the index is above the
    threshold by `margin`. So an index that moves back and forth across a threshold ends with the
    smaller bound.
    """

    def __init__(self, tables: Sequence[str], classes: OnlineClasses) -> None:
        """Begin with no table measured. Args: tables: T different names.  classes: the rule."""
        if not tables or len(set(tables)) != len(tables):
            raise ValueError(f"tables: expected one or more different names, got {list(tables)}")
        self.tables = tuple(tables)
        self.classes = classes
        self._measured: dict[str, BoundClass] = {}

    def is_due(self, step: int) -> bool:
        """Return whether to measure the tables in this step: 0, every, 2 every, ..."""
        return step % self.classes.every == 0

    def observe(self, table: str, index: float) -> None:
        """Set a table's class by its index at `classes.base`.

        Raises: ValueError: no such table, or an index not in 0..1.
        """
        if table not in self.tables:
            raise ValueError(f"table {table!r} is not one of {', '.join(self.tables)}")
        asked = self.classes.of_index(index)
        current = self._measured.get(table, BoundClass.LOOSE)
        if asked > current:  # loosen only as far as the index less the margin asks for
            asked = max(current, self.classes.of_index(max(0.0, index - self.classes.margin)))
        self._measured[table] = asked

    def class_of(self, table: str) -> BoundClass:
        """Return the class of a table now."""
        return self._measured.get(table, BoundClass.TIGHT)

    def bounds(self) -> Tensor:
        """Return [T] float64 on CPU, the relative bound of each table, in the order of `tables`."""
        bounds = [self.classes.bound(self.class_of(table)) for table in self.tables]
        return torch.tensor(bounds, dtype=torch.float64)

    def state_dict(self) -> dict[str, Tensor]:
        """Return {table: [] int64}, the number of its class, -1 before it is measured."""
        return {t: torch.tensor(int(self._measured.get(t, _UNMEASURED))) for t in self.tables}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`. Raises ValueError: other tables, or no class of that number."""
        if set(state) != set(self.tables):
            differing = ", ".join(sorted(set(state) ^ set(self.tables)))
            raise ValueError(f"state is of other tables; only on one side: {differing}")
        numbers = {table: int(number) for table, number in state.items()}
        for table, number in numbers.items():
            if not _UNMEASURED <= number <= BoundClass.LOOSE:
                raise ValueError(f"state of table {table!r}: {number} is no class, -1..2")
        self._measured = {t: BoundClass(n) for t, n in numbers.items() if n != _UNMEASURED}


def homogenization_index(rows: Tensor, *, bound: float) -> float:
    """Return the share of distinct rows of one batch that a relative bound keeps apart: (0, 1].

    Cost: a dozen passes over n D values of 64 bits and a sort of n numbers: some 6 ms for 2048 rows
    of 64 values on one thread, 1 ms for 2048 rows of 16 or 600 rows of 64.

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
    """Return the number of different rows of [n, D] int64, by 64-bit hashes.

    Two different rows share a hash with a probability of about 2^-63, so for 10^6 rows the count is
    too low with a probability below one in a million. Hashing is for speed: it sorts n numbers,
    where torch.unique(dim=0) sorts n rows.
    """
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**63), 2**63 - 1, (codes.shape[1],), generator=generator)
    mixed = codes * -0x61C8864680B583EB  # 2^64 / golden ratio, odd; int64 wraps around
    mixed ^= mixed >> 32
    hashes = (mixed * (factors | 1).to(codes.device)).sum(dim=1)
    return len(torch.unique(hashes))


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
