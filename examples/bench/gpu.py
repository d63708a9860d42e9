"""Every codec's GPU kernels: checks them, then times them, beside what others offer.

  python -m examples.bench.gpu --out gpu.jsonl                  on a machine with a CUDA device
  python -m examples.bench.gpu --rows 262144 --dim 128 --data gradients --codecs 'rowwise 4'
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
What is not installed (FBGEMM) or does not take --dim is named and left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from examples.bench.codecs import formats
from examples.bench.codecs.entries import (
    CodecCompressor,
    Compressor,
    FormatCompressor,
    break_even_gb_s,
    format_mistake,
    our_codecs,
    same_bits,
    smallest_kept,
)
from examples.bench.command import build_parser, device_environment, show
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ext.fbgemm.codec import Fbgemm
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Scalar
from trec_qcomm.ops.batch.unique import unique_bags
from trec_qcomm.ops.dispatch import default_backend

BOUND = 0.01  # of error_bounded, a fraction of each table's range
CPU_ONLY = "error_bounded vector_lz"
Calls = Sequence[Callable[[], object]]


def codecs_of(dim: int, rows: Tensor) -> dict[str, Codec]:
    """Return the codecs with GPU kernels that take the dim, by name."""
    codecs = our_codecs(dim, BOUND, smallest_kept([rows]))
    return {name: codec for name, codec in codecs.items() if name != CPU_ONLY}


CODECS = tuple(codecs_of(32, torch.ones(1, 32)))  # names of all; every one takes dim 32


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


def codec_mistake(coded: CodecCompressor) -> str | None:
    """Return what differs from the CPU's kernels: bytes, or rows decoded from them."""
    ours, rows = coded.encoded, coded.rows.cpu()
    cpu = CodecCompressor(coded.codec, rows, coded.segments)
    with default_backend("cpu"):
        cpu.encode()
        cpu.decode()
    if not torch.equal(cpu.encoded.nbytes, ours.nbytes):
        return "sizes differ from the CPU's"
    coded.out.fill_(float("nan"))
    coded.decode()
    decoded = coded.out.cpu()
    if isinstance(coded.codec, Fbgemm) and coded.rows.is_cuda:
        within = (decoded - rows).abs() <= 1.01 * (cpu.out - rows).abs().max()
        return None if bool(within.all()) else "is further off than on the CPU"
    written = _written(cpu.encoded)
    if not torch.equal(cpu.payload[written], coded.payload.cpu()[written]):
        return "bytes differ from the CPU's"
    return None if same_bits(cpu.out, decoded) else "decodes other rows than the CPU"


def _written(encoded: Encoded) -> Tensor:
    """Return [W] bool: the bytes that belong to a segment."""
    change = torch.zeros(len(encoded.payload) + 1, dtype=torch.int32)
    change.index_add_(0, encoded.at, torch.ones(len(encoded.at), dtype=torch.int32))
    ends = encoded.at + encoded.nbytes
    change.index_add_(0, ends, torch.full((len(ends),), -1, dtype=torch.int32))
    return change.cumsum(0)[:-1] > 0


def seconds(calls: Calls, repeats: int) -> float:
    """Return the median of calls in turn, between device events, after a warm-up."""
    for call in [*calls, *calls]:
        call()
    times = []
    for _ in range(repeats):
        for call in calls:
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
    calls: Calls = [lambda x=x: target.copy_(x) for x in inputs]  # type: ignore[misc]
    return 2 * target.numel() * 4 / seconds(calls, repeats)


def speeds(members: Sequence[Compressor], raw: int, copy: float, repeats: int) -> dict[str, Scalar]:
    """Return ratio and speed of a codec. Args: raw: bytes of an input. copy: copy_bandwidth."""
    ratio = raw * len(members) / sum(member.nbytes() for member in members)
    line, gb_s, ceiling = {"ratio": round(ratio, 2)}, {}, copy / (1 + 1 / ratio) / 1e9
    for name in ("encode", "decode"):
        gb_s[name] = raw / seconds([getattr(m, name) for m in members], repeats) / 1e9
        line[f"{name}_gb_s"] = round(gb_s[name], 1)
        line[f"{name}_of_ceiling"] = round(gb_s[name] / ceiling, 3)
    break_even = round(break_even_gb_s(ratio, **gb_s), 1)
    return line | {"break_even_gb_s": break_even, "copy_gb_s": round(copy / 1e9)}


def unique_columns(device: torch.device, columns: int = 26, ids: int = 65536) -> Calls:
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
    return [lambda: unique_bags(*on_device, *where)]


def run(
    data: str, device: torch.device, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Scalar]]]:
    """Yield the name and the figures of each codec and format on rows of this kind."""
    batch, width = max(1, options.rows // options.tables), options.tables * options.dim
    segments = segments_of(batch, options.dim, options.tables, options.ranks)
    inputs = [make_rows(data, batch, width, seed).to(device) for seed in range(options.inputs)]
    copy = 0.0 if options.check_only else copy_bandwidth(inputs, options.repeats)

    def line(members: Sequence[Compressor], mistakes: list[str | None]) -> dict[str, Scalar]:
        wrong = [mistake for mistake in mistakes if mistake is not None]
        if wrong:
            return {"wrong": wrong[0]}
        raw = 4 * inputs[0].numel()
        return {} if options.check_only else speeds(members, raw, copy, options.repeats)

    codecs, out = codecs_of(options.dim, inputs[0]), torch.empty_like(inputs[0])
    for name in options.codecs:
        if name not in codecs:
            print(f"left out: {name}: does not take rows of {options.dim}")
            continue
        members = [CodecCompressor(codecs[name], x, segments, out) for x in inputs]
        for member in members:
            member.encode()
        yield name, line(members, [codec_mistake(member) for member in members])
    if device.type != "cuda":
        return
    known, missing = formats.installed()
    for reason in missing:
        print(f"left out: {reason}")
    for one in known:
        others = [FormatCompressor(one, x.view(-1, options.dim)) for x in inputs]
        for other in others:
            other.encode()
            other.decode()
        yield one.name, line(others, [format_mistake(one, o.rows, o.out) for o in others])


def main() -> int:
    """Parse, check, time, print. The exit status is 1 where something decodes wrongly."""
    options = _parser().parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device; TRITON_INTERPRET=1 with --device cpu --check-only checks without")
    if device.type == "cpu" and not options.check_only:
        sys.exit("--device cpu: only with --check-only; timings are of a GPU")
    lines: list[tuple[str, str, dict[str, Scalar]]] = []
    with default_backend("gpu"):
        for data in options.data:
            for name, figures in run(data, device, options):
                lines.append((name, data, figures))
                show(f"{name}, {data}", figures)
    if not options.check_only:
        took = {"ms": round(seconds(unique_columns(device), options.repeats) * 1e3, 3)}
        lines.append(("unique", "26 columns of 65536 ids", took))
        show(*lines[-1][::2])
    if options.out is not None:
        environment = device_environment(device)
        case = {n: getattr(options, n) for n in ("rows", "dim", "tables", "ranks", "repeats")}
        made = [
            BenchRecord(configuration=name, bench="gpu", environment=environment,
                        case=case | {"data": data}, figures=figures)
            for name, data, figures in lines
        ]  # fmt: skip
        records.append(options.out, *made)
    failed = sum("wrong" in figures for _, _, figures in lines)
    done = "checked" if options.check_only else "timed"
    print(f"{len(lines) - failed} {done}, {failed} wrong; {options.out or 'no --out'}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = build_parser(__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=2**20, help="rows of all tables together (default 2^20)")
    add("--dim", type=int, default=64)
    add("--tables", type=int, default=26)
    add("--ranks", type=int, default=8, help="ranks that each table's rows go to (default 8)")
    kinds = ("trained", "gradients")
    add("--data", nargs="+", choices=kinds, default=kinds, help="default: both")
    add("--codecs", nargs="+", choices=CODECS, default=CODECS, metavar="NAME",
        help=f"some of {', '.join(CODECS).replace('%', '%%')} (default all)")  # fmt: skip
    add("--inputs", type=int, default=3, help="number of inputs, taken in turn (default 3)")
    add("--repeats", type=int, default=50, help="repeats of each input (default 50)")
    add("--device", default="cuda")
    add("--check-only", action="store_true", help="time nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
