"""Record: the fields that every measurement has, and the kinds of record that are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trec_qcomm.lab.records.environment import Environment

SCHEMA_VERSION = 1
Scalar = str | int | float | bool

RECORD_TYPES: dict[str, type[Record]] = {}  # by kind


@dataclass(frozen=True)
class Origin:
    """The line that a record was read from. Args: file: its path."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measurement, one line of JSON. A subclass is a kind of record and names it.

        @dataclass(frozen=True, kw_only=True)
        class LatencyRecord(Record, kind="latency"):
            latency_s: float

    Args:
        configuration: name of what was measured, such as "best" or "stock".
        config: YAML text of its config; None where it has none, as plain TorchRec.
        setup: all that must be equal for two measurements to be compared, and only that. Whoever
            measures chooses the names; titles show batch_size, embedding_dim and dense_optimizer
            where they are there.
        seed: seed of the random numbers.
        environment: commit, versions, machine; None where they are not known.
        time: seconds since 1970 at the end of the measurement.
        origin: the line that it was read from. It is no part of the JSON.
    """

    kind: ClassVar[str] = ""

    configuration: str
    config: str | None = None
    setup: Mapping[str, Scalar] = field(default_factory=dict)
    seed: int = 0
    environment: Environment | None = None
    time: float | None = None
    origin: Origin | None = field(
        default=None, compare=False, repr=False, metadata={"stored": False}
    )

    def __init_subclass__(cls, kind: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        if RECORD_TYPES.get(kind, cls).__qualname__ != cls.__qualname__:
            raise ValueError(f"kind {kind!r}: is already {RECORD_TYPES[kind].__qualname__}")
        cls.kind = kind
        RECORD_TYPES[kind] = cls

    @property
    def setup_key(self) -> tuple[tuple[str, Scalar], ...]:
        """The setup as a sorted tuple, to compare and to group by."""
        return tuple(sorted(self.setup.items()))


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """20th, 50th and 80th percentile of repeated measurements."""

    p20: float
    p50: float
    p80: float


@dataclass(frozen=True, kw_only=True)
class TrafficBytes:
    """Bytes that a rank sends to other ranks in a step, counted three times.

    Args:
        raw_nbytes: float32 of all rows, before equal bags are merged; None where not counted.
        distinct_nbytes: float32 of the rows that are sent; None where not counted.
        wire_nbytes: what the collectives are given, headers included.
    """

    raw_nbytes: float | None = None
    distinct_nbytes: float | None = None
    wire_nbytes: float


TrafficByKind = Mapping[str, TrafficBytes]  # by kind of traffic, see TRAFFIC_KINDS
