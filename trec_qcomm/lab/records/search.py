"""Record of a search: what one codec does to one table in one direction, before it is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trec_qcomm.lab.records.record import Record

Stage = Literal[
    "probe",  # shadow of the numeric debugger in a float32 training
    "evaluation",  # the float32 model, scored with this codec of one table, or of all ("*")
    "merging",  # rows of a float32 training with one choice of `unique_bags`
    "done",  # the last line of a seed; lines of a seed without one do not count
    "plan",  # a configuration that was chosen: its bytes and changes
]


@dataclass(frozen=True, kw_only=True)
class SearchRecord(Record, kind="search"):
    """Figures of one stage of a search.

    A line is unique by (configuration, stage, seed, table, direction, codec); of two the later one
    counts.

    Args:
        stage: what was done (Stage).
        num_ranks: number of ranks, emulated or real.
        table: name of the table, "*" for all, or pattern of the dense parameters; None for a
            plan, and where done.
        direction: "forward", "backward" or "dense"; None for a plan, and where done or merging.
        codec: the codec, or rule of dense gradients, as the call that makes it; where done, all
            that were tried; the choice where merging ("off", "auto", "on"); None for a plan.
        figures: the numbers. Of a probe: `nbytes` (of a rank and step), `rows` (the same),
            `dim`, `energy` (sum of squares of a rank and step), `noise` (the same of the errors;
            missing where the codec refuses the values); of dense gradients `nbytes`, `values`, and
            `energy` and `noise` of each site. Of merging: `rows`, or nothing where the choice is
            refused. Of an evaluation: metrics. Of a plan:
            `nbytes`, `float32_nbytes`, `budget`, `expected` and `error` (percent), and where it was
            verified `METRIC mean`, `METRIC low`, `METRIC high` (percent) and `num_seeds`.
    """

    stage: Stage
    num_ranks: int
    table: str | None = None
    direction: Literal["forward", "backward", "dense"] | None = None
    codec: str | None = None
    figures: Mapping[str, float]
