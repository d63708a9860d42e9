"""Kinds of record of benches, predictions, searches, sizes of segments and guards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trec_qcomm.lab.records.record import Percentiles, Record, Scalar

Assumptions = Mapping[str, Scalar | None]  # by option; None: as it was measured
Stage = Literal[
    "probe",  # shadow of the numeric debugger in a float32 training
    "evaluation",  # the float32 model, scored with this codec of one table, or of all ("*")
    "merging",  # rows of a float32 training with one choice of `unique_bags`
    "done",  # the last line of a seed; lines of a seed without one do not count
    "plan",  # a configuration that was chosen: its bytes and changes
]
GuardEvent = Literal["trip", "raise", "lower", "warn", "error", "calm"]
GuardReason = Literal[
    "loss",  # codecs add more to the loss than the limit
    "calm",  # the loss was below the limit for long
    "nan",  # values are NaN or infinite before they are coded
    "unencodable",  # finite values are NaN or infinite after the codec
    "pointless",  # coded bytes are more than float32's
    "drift",  # the codec does much worse than it did
    "no_table_left",  # the loss is above the limit, and no table has a finer codec
    "undecidable",  # the loss without codecs is NaN or infinite
    "resumed",  # a checkpoint does not fit: a table or its rung is new or gone
]


@dataclass(frozen=True, kw_only=True)
class CodecRecord(Record, kind="codec"):
    """A codec's ratio and speed. `configuration` is its name, `config` its YAML if it is ours.

    Args:
        is_ours: whether it is a codec of this package.
        values: what was coded.
        dim: values of a row.
        threads: number of threads.
        bound: the error bound, absolute or relative as the codec has it; None without one.
        raw_nbytes, wire_nbytes: bytes as float32, and encoded.
        ratio: raw over wire bytes.
        encode_gb_s, decode_gb_s: GB of float32 a second.
        break_even_gb_s: rate of a link up to which encoding, sending and decoding takes less time
            than sending float32.
        max_error: largest absolute error.
        error_over_bound: the largest error as a share of its bound.
    """

    is_ours: bool
    values: Literal["rows", "gradients"]
    dim: int
    threads: int
    bound: float | None = None
    raw_nbytes: int | None = None
    wire_nbytes: int | None = None
    ratio: float
    encode_gb_s: Percentiles
    decode_gb_s: Percentiles
    break_even_gb_s: float | None = None
    max_error: float | None = None
    error_over_bound: float | None = None


@dataclass(frozen=True, kw_only=True)
class BenchRecord(Record, kind="bench"):
    """One line of a bench's table: the figures of one case.

    Args:
        bench: name of the bench.
        case: what was measured, by name: sizes, options, direction.
        figures: the numbers that came out, by name with their unit, such as encode_gb_s.
    """

    bench: str
    case: Mapping[str, Scalar] = field(default_factory=dict)
    figures: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ValidationRecord(Record, kind="validation"):
    """A predicted step beside the measured one.

    Args:
        num_hosts, ranks_per_host, rate: the network that was measured, see NetworkRecord.
        predicted_s, measured_s: seconds of a step.
        is_fitted: whether the model was fitted to this measurement, too.
        fit: the fitted numbers.
        plan: sharding of all tables; None in older records, which are table-wise.
    """

    num_hosts: int
    ranks_per_host: int = 1
    rate: str
    predicted_s: float
    measured_s: float
    is_fitted: bool
    fit: Mapping[str, float] = field(default_factory=dict)
    plan: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScaleRecord(Record, kind="scale"):
    """A predicted step on a cluster that nobody measured.

    Args:
        num_gpus, plan: size of the cluster, and sharding of all tables.
        network_gbit_s: Gbit/s of a GPU's link between nodes.
        step_s: seconds of a step.
        communication_share: share of the step that is communication.
        parts_s: seconds of each part.
        assumed: options that were not measured.
        extrapolated: what no run has tested; see trec_qcomm.lab.simulate.report.
    """

    num_gpus: int
    plan: str
    network_gbit_s: float
    step_s: float
    communication_share: float
    parts_s: Mapping[str, float] = field(default_factory=dict)
    assumed: Assumptions = field(default_factory=dict)
    extrapolated: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BreakEvenRecord(Record, kind="break_even"):
    """The link between nodes up to which a configuration is faster than another.

    Args:
        against: name of the other configuration.
        num_gpus, plan: size of the cluster, and sharding of all tables.
        pays: links on which it is faster: those below network_gbit_s, all ("always"), or none
            ("never").
        network_gbit_s: Gbit/s of a GPU's link; None unless `pays` is "below".
        assumed: options that were not measured.
    """

    against: str
    num_gpus: int
    plan: str
    pays: Literal["below", "always", "never"]
    network_gbit_s: float | None = None
    assumed: Assumptions = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SearchRecord(Record, kind="search"):
    """Figures of one stage of a search.

    A line is unique by (configuration, stage, seed, table, direction, codec); of two the later one
    counts.

    Args:
        stage: what was done (Stage).
        num_ranks: number of ranks, emulated or real.
        table: name of the table, "*" for all; None for a plan, and where done.
        direction: "forward" or "backward"; None for a plan, and where done or merging.
        codec: the codec as the call that makes it; where done, all that were tried; the choice
            where merging ("off", "auto", "on"); None for a plan.
        figures: the numbers. Of a probe: `nbytes` (of a rank and step), `rows` (the same),
            `dim`, `energy` (sum of squares of a rank and step), `noise` (the same of the errors;
            missing where the codec refuses the values). Of merging: `rows`, or nothing where the
            choice is refused. Of an evaluation: metrics. Of a plan: `nbytes`, `float32_nbytes`,
            `budget`, `expected` and `error` (percent), and where it was verified `METRIC mean`,
            `METRIC low`, `METRIC high` (percent) and `num_seeds`.
    """

    stage: Stage
    num_ranks: int
    table: str | None = None
    direction: Literal["forward", "backward"] | None = None
    codec: str | None = None
    figures: Mapping[str, float]


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


@dataclass(frozen=True, kw_only=True)
class GuardRecord(Record, kind="guard"):
    """One event of a guard: a table that got another codec, or something that was told.

    Args:
        step: number of the training step.
        probe: number of the probe, from 0.
        event: what was done: `trip` (an episode begins), `raise` (to a finer codec), `lower` (to a
            coarser one), `warn` (nothing was changed), `error`, `calm` (an episode has ended).
        reason: why (GuardReason).
        message: one sentence for people.
        table, direction: what it is about; None where it is about the whole model.
        rung_before, rung_after: rungs, 0 is the coarsest one.
        codec_before, codec_after: codecs as the calls that make them, "Rowwise(bits=4, ...)".
        change: mean change of the loss by codecs that the decision rests on, in percent.
        low, high: 95 % interval of that mean.
        figures: further numbers by name: signals, and the effect of tables ("effect t_C3").
        run: name of the training, which its other records have, too.
    """

    step: int
    probe: int
    event: GuardEvent
    reason: GuardReason
    message: str
    table: str | None = None
    direction: Literal["forward", "backward"] | None = None
    rung_before: int | None = None
    rung_after: int | None = None
    codec_before: str | None = None
    codec_after: str | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    run: str | None = None


@dataclass(frozen=True, kw_only=True)
class GuardProbeRecord(Record, kind="guard_probe"):
    """One probe of a guard: the change of the loss, and the rungs that it was read with.

    Args:
        step: number of the training step.
        probe: number of the probe, from 0.
        limit_ne: the guard's limit, in percent.
        change: change of the loss by codecs in this probe, in percent, the mean over its batches;
            None where it is NaN or infinite.
        mean, low, high: mean over the probes since rungs last changed, with its 95 % interval.
        forward, backward: rung of each table, 0 is the coarsest one.
        num_rungs: number of rungs by "TABLE DIRECTION".
        wire_nbytes: bytes that a rank sent in a step since the last probe; None: not counted.
        run: name of the training, which its other records have, too.
    """

    step: int
    probe: int
    limit_ne: float
    change: float | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    forward: Mapping[str, int] = field(default_factory=dict)
    backward: Mapping[str, int] = field(default_factory=dict)
    num_rungs: Mapping[str, int] = field(default_factory=dict)
    wire_nbytes: float | None = None
    run: str | None = None
