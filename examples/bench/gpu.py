"""Every codec's GPU kernels: checks them, then times them, beside what others offer.

  python -m examples.bench.gpu --out gpu.jsonl                  on a machine with a CUDA device
  python -m examples.bench.gpu --rows 262144 --dim 128 --data gradients --codecs rowwise4 fp16
  TRITON_INTERPRET=1 python -m examples.bench.gpu --check-only --rows 32 --tables 2 --device cpu

Rows lie as a lookup leaves them, [rows of all tables side by side], and are coded as an all-to-all
codes them: a segment for each of --tables and --ranks. Timed are whole calls, launches included,
between device events, over several inputs in turn so that none is found in the cache; median.
  GB/s      of float32 rows
  ceiling   the fraction of what a copy that moves the same bytes would reach: rows read and coded
            bytes written, at the bandwidth of a large copy measured in the same run
  B*        GB/s of a link below which coding pays: (1 - 1/ratio) / (1/encode + 1/decode)
A codec that decodes wrongly is named and not timed, and the exit status is 1. Wrong are other bytes
or rows than the CPU's; of fbgemm, whose kernels are not ours, an error above 1.01 of the CPU's.
What is not installed (FBGEMM, nvidia-nvcomp) or does not take --dim is named and left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from examples.bench import formats
from examples.bench.codecs.table import break_even_gb_s
from examples.bench.formats import Format
from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Rowwise
from trec_qcomm.core.codec import Codec, check_dim
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ext.dct import Threshold, TopK
from trec_qcomm.ext.fbgemm import is_installed
from trec_qcomm.ext.fbgemm.codec import Fbgemm, Precision
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Environment
from trec_qcomm.ops.batch.unique import unique_bags
from trec_qcomm.ops.dispatch import default_backend

CODECS: dict[str, Codec] = {
    "fp16": Cast("fp16"),
    "bf16": Cast("bf16"),
    "rowwise8": Rowwise(8),
    "rowwise4": Rowwise(4),
    "rowwise4_stochastic": Rowwise(4, "stochastic"),
    "rowwise2": Rowwise(2),
    "float6": Float6(),
    "error_bounded": ErrorBounded(0.01),
    "error_bounded_rans": ErrorBounded(0.01, encoder="rans"),
    "topk": TopK(0.1, values="fp16"),
    "threshold": Threshold(0.05, values="int8"),
}
if is_installed():
    CODECS |= {f"fbgemm_{precision}": Fbgemm(precision) for precision in get_args(Precision)}
BOUND = 0.01  # of error_bounded, and of the indices that nvCOMP gets
Closure = Callable[[], object]


def make_rows(kind: str, rows: int, width: int, seed: int) -> Tensor:
    """Return [rows, width] float32.

    Args:
        kind: "trained", columns of tables of different scale; or "gradients", many magnitudes, and
            a tenth of the rows zero.
        rows, width: shape.
        seed: seed of the values.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    if kind == "trained":
        return x * torch.linspace(0.02, 0.3, width)
    spread = torch.exp(2 * torch.randn(rows, 1, generator=generator)) * 1e-4
    return x * spread * (torch.rand(rows, 1, generator=generator) > 0.1)


def segments_of(rows: int, dim: int, tables: int, ranks: int) -> Segments:
    """Return segments of a [rows, tables * dim] matrix, rank after rank, table after table."""
    per_rank = torch.full((ranks,), rows // ranks)
    per_rank[: rows % ranks] += 1
    width = tables * dim
    first = exclusive_cumsum(per_rank)[:-1]
    start = (first[:, None] * width + torch.arange(tables) * dim).reshape(-1)
    offsets = exclusive_cumsum(per_rank.repeat_interleave(tables))
    return Segments(offsets, dim, start, torch.full_like(start, width))


class Coded:
    """One codec on some inputs, with memory for its output."""

    def __init__(self, codec: Codec, inputs: list[Tensor], segments: Segments) -> None:
        self.codec, self.inputs, self.segments = codec, inputs, segments
        most = codec.max_nbytes(segments)
        self.at = exclusive_cumsum(most)[:-1]
        device = inputs[0].device
        size = int(most.sum())
        self.payloads = [torch.empty(size, dtype=torch.uint8, device=device) for _ in inputs]
        self.out = torch.empty_like(inputs[0])
        self.encoded = [self.encode(i) for i in range(len(inputs))]

    def encode(self, i: int) -> Encoded:
        return self.codec.encode(self.inputs[i], self.segments, self.payloads[i], self.at, seed=i)

    def decode(self, i: int) -> None:
        self.codec.decode(self.encoded[i], self.segments, self.out)

    def wrong(self) -> str | None:
        """Return what differs from the CPU's kernels: bytes, or rows decoded from them."""
        where = torch.empty_like(self.payloads[0], device="cpu")
        for i, values in enumerate(self.inputs):
            rows, decoded = values.cpu(), torch.empty_like(values, device="cpu")
            with default_backend("cpu"):
                there = self.codec.encode(rows, self.segments, where, self.at, seed=i)
                self.codec.decode(there, self.segments, decoded)
            if not torch.equal(there.nbytes, self.encoded[i].nbytes):
                return "sizes differ from the CPU's"
            if isinstance(self.codec, Fbgemm) and values.is_cuda:
                self.decode(i)
                if _is_further_off(rows, self.out.cpu(), decoded):
                    return "is further off than on the CPU"
                continue
            written = _written(there)
            if not torch.equal(where[written], self.payloads[i].cpu()[written]):
                return "bytes differ from the CPU's"
            self.out.fill_(float("nan"))
            self.decode(i)
            if not torch.equal(decoded.view(torch.int32), self.out.cpu().view(torch.int32)):
                return "decodes other rows than the CPU"
        return None

    def closures(self) -> Iterator[tuple[str, list[Closure]]]:
        every = range(len(self.inputs))
        yield "encode", [lambda i=i: self.encode(i) for i in every]
        yield "decode", [lambda i=i: self.decode(i) for i in every]

    @property
    def ratio(self) -> float:
        raw = 4 * int(self.segments.offsets[-1]) * self.segments.dim
        return raw * len(self.encoded) / sum(int(e.nbytes.sum()) for e in self.encoded)


def _is_further_off(rows: Tensor, made: Tensor, expected: Tensor) -> bool:
    within = (made - rows).abs() <= 1.01 * (expected - rows).abs().max()
    return not bool(within.all())


def _written(encoded: Encoded) -> Tensor:
    """Return [W] bool: the bytes that belong to a segment."""
    change = torch.zeros(len(encoded.payload) + 1, dtype=torch.int32)
    change.index_add_(0, encoded.at, torch.ones(len(encoded.at), dtype=torch.int32))
    ends = encoded.at + encoded.nbytes
    change.index_add_(0, ends, torch.full((len(ends),), -1, dtype=torch.int32))
    return change.cumsum(0)[:-1] > 0


class FormatCoded:
    """A format of others on the same rows, contiguous."""

    def __init__(self, format: Format, inputs: list[Tensor]) -> None:
        self.format, self.inputs = format, inputs
        self.prepared = [format.prepare(rows) for rows in inputs]
        self.coded = [format.encode(prepared) for prepared in self.prepared]

    def wrong(self) -> str | None:
        for rows, coded in zip(self.inputs, self.coded, strict=True):
            made = self.format.restore(self.format.decode(coded), rows)
            if bool(((made - rows).abs() > self.format.allowed(rows)).any()):
                return "is further off than its format allows"
        return None

    def closures(self) -> Iterator[tuple[str, list[Closure]]]:
        yield "encode", [lambda x=x: self.format.encode(x) for x in self.prepared]
        yield "decode", [lambda x=x: self.format.decode(x) for x in self.coded]

    @property
    def ratio(self) -> float:
        raw = sum(4 * rows.numel() for rows in self.inputs)
        return raw / sum(self.format.nbytes(coded) for coded in self.coded)


def seconds(closures: list[Closure], repeats: int) -> float:
    """Return the median of calls in turn, between device events, after a warm-up."""
    for call in closures * 2:
        call()
    times = []
    for _ in range(repeats):
        for call in closures:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            times.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in times) / 1e3


def copy_bandwidth(inputs: list[Tensor], repeats: int) -> float:
    """Return the bytes that a copy of the rows reads and writes a second."""
    target = torch.empty_like(inputs[0])
    closures: list[Closure] = [lambda x=x: target.copy_(x) for x in inputs]
    return 2 * target.numel() * 4 / seconds(closures, repeats)


def figures(case: Coded | FormatCoded, copy: float, raw: int, repeats: int) -> dict[str, float]:
    """Return the figures of a line of the table."""
    ratio, line = case.ratio, {"ratio": round(case.ratio, 2)}
    gb_s = {}
    for name, closures in case.closures():
        gb_s[name] = raw / seconds(closures, repeats) / 1e9
        ceiling = copy / (1 + 1 / ratio) / 1e9
        line |= {f"{name}_gb_s": round(gb_s[name], 1)}
        line |= {f"{name}_of_ceiling": round(gb_s[name] / ceiling, 3)}
    line["break_even_gb_s"] = round(break_even_gb_s(ratio, **gb_s), 1)
    return line


def unique_columns(device: torch.device, columns: int = 26, ids: int = 65536) -> Closure:
    """Return the call that makes one-hot columns distinct, of ids drawn as unevenly as real ones.

    Raises: RuntimeError: the CPU's result is another one.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(columns * ids, generator=generator).pow(4).mul(1_000_000).long()
    ones = torch.ones(columns * ids, dtype=torch.int32)
    where = torch.full((columns,), ids), torch.ones(columns, dtype=torch.float64)
    there, on_device = unique_bags(drawn, ones, *where), (drawn.to(device), ones.to(device))
    here = unique_bags(*on_device, *where)
    for name in ("counts", "first", "inverse"):
        if not torch.equal(getattr(there, name), getattr(here, name).cpu()):
            raise RuntimeError(f"unique: {name} differ from the CPU's, not timed")
    return lambda: unique_bags(*on_device, *where)


def installed_formats() -> Iterator[Format]:
    """Yield the formats that are installed; print which are not."""
    yield formats.copy()
    yield from formats.casts()
    for name, make in (
        ("fbgemm-gpu", formats.fbgemm),
        ("nvidia-nvcomp-cu13", lambda: formats.nvcomp(BOUND)),
    ):
        try:
            yield from make()
        except ImportError as error:
            print(f"left out: {name} ({error}); pip install {name}")


def run(data: str, device: torch.device, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a line for each case on rows of this kind."""
    batch, width = max(1, options.rows // options.tables), options.tables * options.dim
    segments = segments_of(batch, options.dim, options.tables, options.ranks)
    inputs = [make_rows(data, batch, width, seed).to(device) for seed in range(options.inputs)]
    copy = 0.0 if options.check_only else copy_bandwidth(inputs, options.repeats)

    def cases() -> Iterator[tuple[str, Coded | FormatCoded]]:
        for name in options.codecs:
            try:
                check_dim(CODECS[name], options.dim, "--dim")
            except ValueError as error:
                print(f"left out: {name}: {error}")
                continue
            yield name, Coded(CODECS[name], inputs, segments)
        if device.type == "cuda":
            contiguous = [x.view(-1, options.dim) for x in inputs]
            for format in installed_formats():
                yield format.name, FormatCoded(format, contiguous)

    for name, case in cases():
        line: dict[str, Any] = {"codec": name, "data": data}
        reason = case.wrong()
        if reason is not None:
            line["wrong"] = reason
        elif not options.check_only:
            line |= figures(case, copy, 4 * inputs[0].numel(), options.repeats)
            line["copy_gb_s"] = round(copy / 1e9)
        yield line


def main() -> int:
    """Parse, check, time, print. The exit status is 1 where something decodes wrongly."""
    options = _parser().parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device; TRITON_INTERPRET=1 with --device cpu --check-only checks without")
    if device.type == "cpu" and not options.check_only:
        sys.exit("--device cpu: only with --check-only; timings are of a GPU")
    lines: list[dict[str, Any]] = []
    with default_backend("gpu"):
        for data in options.data:
            for line in run(data, device, options):
                lines.append(line)
                print("  ".join(f"{k} {v}" for k, v in line.items()), flush=True)
    if not options.check_only:
        took = round(seconds([unique_columns(device)], options.repeats) * 1e3, 3)
        lines.append({"codec": "unique", "data": "26 columns of 65536 ids", "ms": took})
        print(f"unique: 26 columns of 65536 ids in {took} ms")
    if options.out is not None:
        records.append(options.out, *_records(lines, device, options))
    failed = sum("wrong" in line for line in lines)
    done = "checked" if options.check_only else "timed"
    print(f"{len(lines) - failed} {done}, {failed} wrong; {options.out or 'no --out'}")
    return 1 if failed else 0


def _records(
    lines: list[dict[str, Any]], device: torch.device, options: argparse.Namespace
) -> Iterator[BenchRecord]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "none, interpreted"
    environment = Environment.current(hardware={"gpu": name})
    case = {n: getattr(options, n) for n in ("rows", "dim", "tables", "ranks", "repeats")}
    for line in lines:
        figures = {k: v for k, v in line.items() if k not in ("codec", "data")}
        yield BenchRecord(
            configuration=line["codec"],
            bench="gpu",
            environment=environment,
            case=case | {"data": line["data"]},
            figures=figures,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=int, default=2**20, help="rows of all tables together (default 2^20)")
    add("--dim", type=int, default=64)
    add("--tables", type=int, default=26)
    add("--ranks", type=int, default=8, help="ranks that each table's rows go to (default 8)")
    kinds = ("trained", "gradients")
    add("--data", nargs="+", choices=kinds, default=kinds, help="default: both")
    add("--codecs", nargs="+", choices=tuple(CODECS), default=tuple(CODECS), metavar="NAME",
        help=f"some of {', '.join(CODECS)} (default all)")  # fmt: skip
    add("--inputs", type=int, default=3, help="number of inputs, taken in turn (default 3)")
    add("--repeats", type=int, default=50, help="repeats of each input (default 50)")
    add("--device", default="cuda")
    add("--check-only", action="store_true", help="time nothing")
    add("--out", type=Path, metavar="FILE", help="append the records to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
