"""Records of the guard: what it read at a probe, and what it then did or told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trec_qcomm.lab.records.record import Record

GuardEvent = Literal["trip", "raise", "lower", "warn", "error", "calm"]
GuardReason = Literal[
    "loss",  # codecs add more to the loss than the limit
    "calm",  # the loss was below the limit for long
    "nan",  # values are NaN or infinite before they are coded
    "unencodable",  # the codec refuses values, or does not carry them
    "pointless",  # coded bytes are more than float32's
    "snr",  # signal to noise is below least_snr_db
    "drift",  # the codec does much worse than it did
    "no_table_left",  # the loss is above the limit, and no table has a finer codec
    "undecidable",  # the loss without codecs is NaN or infinite
    "resumed",  # a checkpoint does not fit: a table or its rung is new or gone
]


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
