"""What bench-codec compares: our codecs, and what else there is for float32 rows.

An entry makes a Compressor (compressors.py) of a group of tables, and tells what is wrong with the
rows that this decoded:
  our EXACT codecs        other bits
  our BOUNDED codecs      a value beyond the bound, without slack
  our other codecs        other bits than the codec's definition (the backend `reference`) decodes
  lossless compressors    other bits
  bounded compressors     a value beyond the bound
  formats                 a value further off than FBGEMM's or a cast's format allows (formats.py)

Bytes are those of the segments; neither ours nor the others have a frame's header.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from examples.bench import formats
from examples.bench.codecs import compressors
from examples.bench.codecs.compressors import Compressor
from examples.bench.codecs.workload import TableGroup, Workload
from examples.bench.formats import Format
from trec_qcomm import Contract
from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.core.codec import Codec, MaskUse, check_dim, keeps_nonfinite, mask_use
from trec_qcomm.core.segments import Encoded, Masks, Segments, exclusive_cumsum
from trec_qcomm.ext.dct import ForwardMask, Threshold, TopK
from trec_qcomm.ext.fbgemm.codec import Fbgemm, Precision
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.testing import error_bounds, max_error_in_bounds

ENCODERS = ("bitpack", "vector_lz", "rans")
TOP = TopK(density=0.1, values="fp16")
KEPT = 0.01  # share of all values that `threshold` keeps
FBGEMM_PIP = "pip install fbgemm-gpu-cpu"


@dataclass(frozen=True, eq=False)
class CompressorEntry:
    """One line of the table.

    Args:
        name: name in tables and records.
        make: what to measure, for a group of tables.
        mistake: (group, decoded [R, D]) -> what is wrong with it, or None.
        codec: our codec; None of others.
        bound: error bound as a fraction of each table's range; 0: lossless; None: none is stated.
        keeps_nan: NaN arrives.
        missing: pip line where it is not installed.
    """

    name: str
    make: Callable[[TableGroup], Compressor]
    mistake: Callable[[TableGroup, Tensor], str | None]
    codec: Codec | None = None
    bound: float | None = None
    keeps_nan: bool = False
    missing: str | None = None


class CodecCompressor:
    """One of our codecs on the rows of a group of tables."""

    def __init__(self, codec: Codec, rows: Tensor, segments: Segments) -> None:
        self.codec, self.rows, self.segments = codec, rows, segments
        most = codec.max_nbytes(segments)
        self.at, self.decoded = exclusive_cumsum(most)[:-1], torch.empty_like(rows)
        self.out = self.decoded.view(-1).numpy()
        self.payload = torch.empty(int(most.sum()), dtype=torch.uint8)
        self.encoded: Encoded

    def encode(self) -> None:
        self.encoded = self.codec.encode(self.rows, self.segments, self.payload, self.at)

    def decode(self) -> None:
        self.codec.decode(self.encoded, self.segments, self.decoded)

    def nbytes(self) -> int:
        return int(self.encoded.nbytes.sum())


class FormatCompressor:
    """A format of formats.py on the rows of all tables, in one call. Its output is not copied."""

    def __init__(self, format: Format, rows: Tensor) -> None:
        self.format, self.rows, self.prepared = format, rows, format.prepare(rows)
        self.out = np.empty(0, np.float32)

    def encode(self) -> None:
        self.coded = self.format.encode(self.prepared)

    def decode(self) -> None:
        made = self.format.restore(self.format.decode(self.coded), self.rows)
        self.out = made.reshape(-1).numpy()

    def nbytes(self) -> int:
        return self.format.nbytes(self.coded)


def entries(workload: Workload, bound: float) -> list[CompressorEntry]:
    """Return all entries, installed or not. Args: bound: a fraction of each table's range."""
    return [*_codecs(workload, bound), *_formats(), *_lossless(), *_bounded(bound)]


def example() -> Workload:
    """Return a workload that every entry can take, to ask for their names."""
    one = {"t": torch.ones(1, 32)}
    return Workload("", 0, "gradients", 32, one, one)


def error_over_bound(bound: float, group: TableGroup, decoded: Tensor) -> float:
    """Return the worst error of all tables over the bound that our codec with it states."""
    return max_error_in_bounds(ErrorBounded(bound), group.rows, decoded, group.segments)


def build_bounded(name: str, group: TableGroup, bound: float) -> Compressor:
    """Return a bounded compressor with the absolute bounds that our codec would have."""
    segments = group.segments
    tables = [segments.block(group.rows, s).numpy() for s in range(segments.num_segments)]
    bounds = error_bounds(ErrorBounded(bound), group.rows, segments).tolist()
    return compressors.build(name, tables, bound, bounds)


def _codecs(workload: Workload, bound: float) -> Iterator[CompressorEntry]:
    codecs: dict[str, Codec] = {
        "identity": Identity(),
        "cast fp16": Cast("fp16"),
        "cast bf16": Cast("bf16"),
        "rowwise 8": Rowwise(8),
        "rowwise 4": Rowwise(4),
        "rowwise 4 stochastic": Rowwise(4, "stochastic"),
        "rowwise 2": Rowwise(2),
        "float6": Float6(),
        "float6 stochastic": Float6("e4m1", "stochastic"),
    }
    codecs |= _of_fbgemm(workload.dim)
    codecs |= {f"error_bounded {e}": ErrorBounded(bound, encoder=e) for e in ENCODERS}
    codecs["topk 10 %"] = TOP
    if workload.forward is not None:
        codecs["forward_mask 10 %"] = ForwardMask(TOP.values)
    codecs |= {"threshold 1 %": Threshold(_smallest_kept(workload), "int8")}
    for name, codec in codecs.items():
        yield CompressorEntry(
            name,
            partial(_make_codec, codec),
            partial(_codec_mistake, codec),
            codec,
            {Contract.EXACT: 0.0, Contract.BOUNDED: bound}.get(codec.contract),
            keeps_nonfinite(codec) and mask_use(codec) is not MaskUse.READS,
        )


def _of_fbgemm(dim: int) -> dict[str, Codec]:
    """Return codec fbgemm by name, of the precisions that take this dim; none without FBGEMM."""
    codecs: dict[str, Codec] = {}
    for precision in get_args(Precision):
        with contextlib.suppress(ValueError):
            codec = Fbgemm(precision)
            check_dim(codec, dim, "")
            codecs[f"fbgemm {precision}"] = codec
    return codecs


def _smallest_kept(workload: Workload) -> float:
    """Return the magnitude that a share KEPT of all values reaches, to 3 digits."""
    magnitudes = torch.cat([rows.abs().flatten() for rows in workload.tables.values()])
    count = max(1, int(KEPT * len(magnitudes)))
    return float(f"{float(magnitudes.topk(count).values[-1]):.3g}")


def _make_codec(codec: Codec, group: TableGroup) -> CodecCompressor:
    reads_mask = mask_use(codec) is MaskUse.READS
    return CodecCompressor(codec, group.rows, _masked(group) if reads_mask else group.segments)


def _masked(group: TableGroup) -> Segments:
    """Return segments with the columns that topk kept of the forward rows."""
    assert group.forward is not None, "only gradients have rows that topk coded"
    dims = torch.full_like(group.segments.num_rows, group.segments.dim)
    masks = Masks.of_all_columns(group.segments.num_rows, dims)
    segments = replace(group.segments, masks=masks)
    CodecCompressor(TOP, group.forward, segments).encode()
    return segments


def _codec_mistake(codec: Codec, group: TableGroup, decoded: Tensor) -> str | None:
    if codec.contract is Contract.EXACT:
        return _other_bits(group, decoded)
    if isinstance(codec, ErrorBounded):
        return _beyond_bound(codec.bound, group, decoded)
    with default_backend("reference"):
        defined = _make_codec(codec, group)
        defined.encode()
        defined.decode()
    expected = replace(group, rows=defined.decoded)
    return None if _other_bits(expected, decoded) is None else "other rows than its definition"


def _other_bits(group: TableGroup, decoded: Tensor) -> str | None:
    same = torch.equal(group.rows.view(torch.int32), decoded.view(torch.int32))
    return None if same else "other bits"


def _beyond_bound(bound: float, group: TableGroup, decoded: Tensor) -> str | None:
    worst = error_over_bound(bound, group, decoded)
    return None if worst <= 1 else f"an error of {worst:.4g} times the bound"


def _formats() -> Iterator[CompressorEntry]:
    for cast in formats.casts():
        yield replace(_format_entry(cast), keeps_nan=True)
    try:
        yield from map(_format_entry, formats.fbgemm())
    except ImportError as error:
        name = "FBGEMM INT8, INT4, MX4"
        yield CompressorEntry(name, _never, _never, missing=f"{FBGEMM_PIP} ({error})")


def _format_entry(format: Format) -> CompressorEntry:
    def make(group: TableGroup) -> FormatCompressor:
        return FormatCompressor(format, group.rows)

    return CompressorEntry(format.name, make, partial(_format_mistake, format))


def _format_mistake(format: Format, group: TableGroup, decoded: Tensor) -> str | None:
    within = (decoded - group.rows).abs() <= format.allowed(group.rows)
    return None if bool(within.all()) else "an error that its format does not allow"


def _lossless() -> Iterator[CompressorEntry]:
    for name in compressors.LOSSLESS_NAMES:

        def make(group: TableGroup, name: str = name) -> Compressor:
            return compressors.build_lossless(name, group.rows.view(-1).numpy())

        line = compressors.missing(name)
        yield CompressorEntry(name, make, _other_bits, bound=0.0, keeps_nan=True, missing=line)


def _bounded(bound: float) -> Iterator[CompressorEntry]:
    for name in compressors.BOUNDED_NAMES:

        def make(group: TableGroup, name: str = name) -> Compressor:
            return build_bounded(name, group, bound)

        mistake, line = partial(_beyond_bound, bound), compressors.missing(name)
        yield CompressorEntry(name, make, mistake, bound=bound, missing=line)


def _never(*_: object) -> None:
    raise AssertionError("not installed")
