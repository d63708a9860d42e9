"""What the benches of codecs compare: our codecs, and what else there is for float32 rows.

An entry makes a Compressor of some tables, and tells what is wrong with the rows that this decoded:
  our EXACT codecs        other bits
  our BOUNDED codecs      a value beyond the bound, without slack
  our other codecs        other bits than the codec's definition (the backend `reference`) decodes
  formats                 a value further off than FBGEMM's or a cast's format allows (formats.py)

Bytes are those of the segments; neither ours nor the others have a frame's header.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, get_args

import torch
from torch import Tensor

from examples.bench.codecs import formats
from examples.bench.codecs.formats import Format
from examples.bench.codecs.workload import TableGroup, Workload
from trec_qcomm import Contract
from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Float8, Identity, Rowwise
from trec_qcomm.core.codec import Codec, check_dim
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ext.dct import ForwardMask, Threshold, TopK
from trec_qcomm.ext.dct.masks import Masks
from trec_qcomm.ext.fbgemm.codec import Fbgemm, Precision
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.testing import max_error_in_bounds

ENCODERS = ("bitpack", "vector_lz", "rans")
TOP = TopK(density=0.1, values="fp16")
KEPT = 0.01  # share of all values that `threshold` keeps
MOST_VALUES = 2**24  # that are looked at for it


class Compressor(Protocol):
    """A compressor on some rows: `encode` keeps its bytes, `decode` their rows as `out`."""

    @property
    def out(self) -> Tensor: ...

    def encode(self) -> object: ...

    def decode(self) -> object: ...

    def nbytes(self) -> int: ...


class CodecCompressor:
    """One of our codecs on the rows of some tables.

    Args:
        codec: the codec.
        rows: [R, D], or as the segments say.
        segments: where the rows of each table lie.
        out: memory for what is decoded; None: NaN, so that what is not written is seen.
    """

    def __init__(
        self, codec: Codec, rows: Tensor, segments: Segments, out: Tensor | None = None
    ) -> None:
        self.codec, self.rows, self.segments = codec, rows, segments
        most = codec.max_nbytes(segments)
        self.at = exclusive_cumsum(most)[:-1]
        self.out = torch.full_like(rows, math.nan) if out is None else out
        self.payload = torch.empty(int(most.sum()), dtype=torch.uint8, device=rows.device)
        self.encoded: Encoded

    def encode(self) -> None:
        self.encoded = self.codec.encode(self.rows, self.segments, self.payload, self.at)

    def decode(self) -> None:
        self.codec.decode(self.encoded, self.segments, self.out)

    def nbytes(self) -> int:
        return int(self.encoded.nbytes.sum())


class FormatCompressor:
    """A format of formats.py on the rows of all tables, in one call. Its output is not copied."""

    def __init__(self, format: Format, rows: Tensor) -> None:
        self.format, self.rows = format, rows
        self.coded, self.made = rows, rows

    def encode(self) -> None:
        self.coded = self.format.encode(self.rows)

    def decode(self) -> None:
        self.made = self.format.decode(self.coded)

    @property
    def out(self) -> Tensor:
        return self.made.view(-1)[: self.rows.numel()].view(self.rows.shape)

    def nbytes(self) -> int:
        return self.coded.numel() * self.coded.element_size()


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
    """

    name: str
    make: Callable[[TableGroup], Compressor]
    mistake: Callable[[TableGroup, Tensor], str | None]
    codec: Codec | None = None
    bound: float | None = None
    keeps_nan: bool = False


def entries(workload: Workload, bound: float) -> list[CompressorEntry]:
    """Return all entries that are installed. Args: bound: a fraction of each table's range."""
    ours = our_codecs(workload.dim, bound, smallest_kept(workload.tables.values()))
    if workload.forward is not None:
        ours["forward_mask 10 %"] = ForwardMask(TOP.values)
    return [*_codec_entries(ours, bound), *map(_format_entry, formats.installed()[0])]


def entry_names() -> list[str]:
    """Return the names of all entries that are installed."""
    one = {"t": torch.ones(1, 32)}  # which every entry can take
    return [entry.name for entry in entries(Workload("", 0, "gradients", 32, one, one), 0.01)]


def our_codecs(dim: int, bound: float, threshold: float) -> dict[str, Codec]:
    """Return our codecs by name, but for forward_mask and for FBGEMM's that refuse the dim.

    Args:
        dim: values of a row.
        bound: error bound as a fraction of each table's range.
        threshold: magnitude from which `threshold` keeps a value.
    """
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
        "float8": Float8(),
    }
    for precision in get_args(Precision):
        with contextlib.suppress(ValueError):  # of this dim, or without FBGEMM
            codec = Fbgemm(precision)
            check_dim(codec, dim, "")
            codecs[f"fbgemm {precision}"] = codec
    codecs |= {f"error_bounded {e}": ErrorBounded(bound, encoder=e) for e in ENCODERS}
    return codecs | {"topk 10 %": TOP, "threshold 1 %": Threshold(threshold, "int8")}


def smallest_kept(tables: Iterable[Tensor]) -> float:
    """Return the magnitude that a share KEPT of all values reaches, to 3 digits."""
    magnitudes = torch.cat([rows.abs().flatten() for rows in tables])
    magnitudes = magnitudes[:: 1 + len(magnitudes) // MOST_VALUES]
    count = max(1, int(KEPT * len(magnitudes)))
    return float(f"{float(magnitudes.topk(count).values[-1]):.3g}")


def error_over_bound(bound: float, group: TableGroup, decoded: Tensor) -> float:
    """Return the worst error of all tables over the bound that our codec with it states."""
    return max_error_in_bounds(ErrorBounded(bound), group.rows, decoded, group.segments)


def break_even_gb_s(ratio: float, encode: float, decode: float) -> float:
    """Return the GB/s of a link below which coding pays: it saves there what the coder takes.

    It is below 0 where the bytes grow.

    Args:
        ratio: raw over coded bytes.
        encode, decode: GB/s of raw bytes.
    """
    return (1 - 1 / ratio) / (1 / encode + 1 / decode)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal bit for bit."""
    a, b = a.contiguous(), b.contiguous()
    equal = a.shape == b.shape and a.dtype == b.dtype
    return equal and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _codec_entries(codecs: dict[str, Codec], bound: float) -> Iterator[CompressorEntry]:
    for name, codec in codecs.items():
        yield CompressorEntry(
            name,
            partial(_make_codec, codec),
            partial(_codec_mistake, codec),
            codec,
            {Contract.EXACT: 0.0, Contract.BOUNDED: bound}.get(codec.contract),
            codec.keeps_nonfinite and not codec.follows_forward,
        )


def _make_codec(codec: Codec, group: TableGroup) -> CodecCompressor:
    reads_mask = codec.follows_forward
    return CodecCompressor(codec, group.rows, _masked(group) if reads_mask else group.segments)


def _masked(group: TableGroup) -> Segments:
    """Return segments with the columns that topk kept of the forward rows."""
    assert group.forward is not None, "only gradients have rows that topk coded"
    dims = torch.full_like(group.segments.num_rows, group.segments.dim)
    masks = Masks.of_all_columns(group.segments.num_rows, dims)
    segments = group.segments.with_notes(masks)
    CodecCompressor(TOP, group.forward, segments).encode()
    return segments


def _codec_mistake(codec: Codec, group: TableGroup, decoded: Tensor) -> str | None:
    if codec.contract is Contract.EXACT:
        return None if same_bits(group.rows, decoded) else "other bits"
    if isinstance(codec, ErrorBounded):
        worst = error_over_bound(codec.bound, group, decoded)
        return None if worst <= 1 else f"an error of {worst:.4g} times the bound"
    with default_backend("reference"):
        defined = _make_codec(codec, group)
        defined.encode()
        defined.decode()
    return None if same_bits(defined.out, decoded) else "other rows than its definition"


def _format_entry(format: Format) -> CompressorEntry:
    return CompressorEntry(
        format.name,
        lambda group: FormatCompressor(format, group.rows),
        lambda group, decoded: format_mistake(format, group.rows, decoded),
        keeps_nan=format.keeps_nan,
    )


def format_mistake(format: Format, rows: Tensor, decoded: Tensor) -> str | None:
    """Return what is wrong with decoded rows, or None."""
    within = (decoded - rows).abs() <= format.allowed(rows)
    return None if bool(within.all()) else "an error that its format does not allow"
