"""Record of the numeric debugger: one codec's effect on one table or parameter in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trec_qcomm.lab.records.record import Record

Direction = Literal[
    "forward",  # rows of a table
    "backward",  # gradients of these rows
    "intra_forward",  # the same two inside a node, where sharding has two hops
    "intra_backward",
    "dense",  # gradients of a replicated parameter, with the residual added
    "data_parallel",  # gradients of a DATA_PARALLEL table
    "residual",  # what the codec has kept back of a replicated parameter after this step
]


@dataclass(frozen=True, kw_only=True)
class DebugRecord(Record, kind="debug"):
    """Figures of one table or parameter, in one direction, with one codec, on one rank.

    x is a value before a codec, y what receivers decode, e = y - x. Sums are over all values that
    the rank encodes for all ranks, itself included, where x and y are finite, in float64. A figure
    is None, and not in the line, where it does not apply.

    A line is unique by (rank, step, name, direction, codec, is_shadow, site, module).

    Args:
        rank: the rank that encodes (of all ranks, not of its group).
        step: number of the training step, from 0.
        name: the table's or the parameter's name.
        direction: kind of the values (Direction).
        codec: the codec as the call that makes it, such as "Rowwise(bits=4, ...)".
        is_shadow: whether the codec was only tried: encoded, decoded and thrown away.
        site: for dense and residual, the place of the all-reduce that encodes: "contribution" (a
            rank's own gradient), "owner" (the sum of a chunk), "stage1" and so on; between nodes
            "contribution of 2 nodes", "owner of 2 nodes".
        module: path of the sharded module that holds the table; None for gradients.
        num_rows, num_values: number of rows (a block of a parameter is one) and of values.
        num_nan, num_inf: number of x that are NaN, and that are infinite.
        num_broken: number of values that are finite only on one side of the codec, or whose inf has
            changed its sign or become NaN.
        rms: root mean square of x.
        snr_db: signal to noise, 10 log10(sum x^2 / sum e^2); None where either sum is 0.
        bias: mean of e over mean of |x|; None where all x are 0.
        tolerance: the codec's error bound or threshold in this step as its config has it (a
            relative bound is a fraction), before it is divided among summands; None without one.
        lost_share: share of the nonzero x with |e| >= |x|. Nothing useful of them arrives: 0 in
            their place would have been as good.
        bits: bits a value really sent, headers of segments and padding included, without headers of
            frames.
        peak: median over rows of the largest |x| over the row's root mean square. 1 is a flat row,
            the root of the dim a row with one value; normal values at dim 64 have about 2.5.
        rms_drift: log2 of the rms over its running mean (of logarithms) at the measured steps
            before; None at the first.
        residual_over_gradient: norm of the residual over the norm of the gradient of this step; for
            direction residual.
    """

    rank: int
    step: int
    name: str
    direction: Direction
    codec: str
    is_shadow: bool = False
    site: str | None = None
    module: str | None = None
    num_rows: int | None = None
    num_values: int | None = None
    num_nan: int | None = None
    num_inf: int | None = None
    num_broken: int | None = None
    rms: float | None = None
    snr_db: float | None = None
    bias: float | None = None
    tolerance: float | None = None
    lost_share: float | None = None
    bits: float | None = None
    peak: float | None = None
    rms_drift: float | None = None
    residual_over_gradient: float | None = None
