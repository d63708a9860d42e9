"""Record of the sizes of segments, by table: what the planner and the simulation price bytes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trec_qcomm.lab.records.record import Record


@dataclass(frozen=True, kw_only=True)
class SegmentSizes:
    """Bytes over rows of one table's segments in one direction.

    Args:
        dim: columns of the segments.
        num_terms: summands that share the codec's error bound; 1 where nothing is summed.
        num_rows: rows of a segment, ascending.
        nbytes: mean bytes of segments of so many rows, as encoded.
    """

    dim: int
    num_terms: int = 1
    num_rows: tuple[float, ...]
    nbytes: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class TableSizes:
    """What was measured of a table.

    Args:
        dim: columns of the table.
        num_rows: rows of the table; None: not known.
        num_bags: bags of a feature in the batch of one rank.
        num_distinct: different ones of these.
        num_joint: different ones in the batches of `num_joint_ranks` ranks of a step together;
            None: not counted.
        num_joint_ranks: number of these ranks.
        forward, backward: sizes of its rows' segments, and of their gradients'; empty where the
            codec's sizes are fixed.
    """

    dim: int
    num_rows: int | None = None
    num_bags: float
    num_distinct: float
    num_joint: float | None = None
    num_joint_ranks: int = 1
    forward: tuple[SegmentSizes, ...] = ()
    backward: tuple[SegmentSizes, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableSizesRecord(Record, kind="table_sizes"):
    """Sizes of the segments of every table with one configuration. It holds no values of rows.

    Args:
        num_ranks: ranks of the training that the rows are from.
        num_steps: steps of it that they are from.
        tables: what was measured of each table.
    """

    num_ranks: int
    num_steps: int
    tables: Mapping[str, TableSizes] = field(default_factory=dict)
