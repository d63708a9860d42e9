"""Records of benches: codecs beside one another, and any other table of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trec_qcomm.lab.records.record import Percentiles, Record, Scalar


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
