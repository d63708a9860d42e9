"""Every codec's GPU kernels: checks them, then times them, beside what others offer.

  python gpu.py --json gpu.jsonl                  # on a machine with a CUDA device
  python gpu.py --rows 262144 --dim 128 --data gradients --codecs rowwise4 fp16
  TRITON_INTERPRET=1 python gpu.py --check-only --rows 32 --tables 2 --device cpu

Rows lie as a lookup leaves them, [rows of all tables side by side], and are coded as an all-to-all
codes them: a segment for each of --tables and --peers. Timed are whole calls, launches included,
between device events, over several inputs in turn so that none is found in the cache; median.
  GB/s      of float32 rows
  ceiling   the fraction of what a copy that moves the same bytes would reach: rows read and coded
            bytes written, at the bandwidth of a large copy measured in the same run
  B*        GB/s of a link below which coding pays: (1 - 1/ratio) / (1/encode + 1/decode)
A codec that decodes wrongly is named and not timed, and the exit status is 1. What is not installed
(FBGEMM, nvidia-nvcomp) is named and left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu_peers
import torch
from gpu_peers import Peer
from torch import Tensor

from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Rowwise, Threshold, TopK
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.ops.unique import unique_bags

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
BOUND = 0.01  # of error_bounded, and of the indices that nvCOMP gets
Closure = Callable[[], object]


def make_rows(kind: str, rows: int, width: int, seed: int) -> Tensor:
    """[rows, width] float32. trained: columns of tables of different scale; gradients: many
    magnitudes, and a tenth of the rows zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    if kind == "trained":
        return x * torch.linspace(0.02, 0.3, width)
    spread = torch.exp(2 * torch.randn(rows, 1, generator=generator)) * 1e-4
    return x * spread * (torch.rand(rows, 1, generator=generator) > 0.1)


def segments_of(rows: int, dim: int, tables: int, peers: int) -> Segments:
    """Peer after peer, table after table, of a [rows, tables * dim] matrix."""
    per_peer = torch.full((peers,), rows // peers)
    per_peer[: rows % peers] += 1
    width = tables * dim
    first = exclusive_cumsum(per_peer)[:-1]
    start = (first[:, None] * width + torch.arange(tables) * dim).reshape(-1)
    offsets = exclusive_cumsum(per_peer.repeat_interleave(tables))
    return Segments(offsets, dim, start, torch.full_like(start, width))


class Coded:
    """One codec on some inputs, with memory for what it gives."""

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
        """What is wrong: bytes other than those of the CPU's kernels, or rows decoded from them."""
        where = torch.empty_like(self.payloads[0], device="cpu")
        for i, values in enumerate(self.inputs):
            rows, decoded = values.cpu(), torch.empty_like(values, device="cpu")
            with default_backend("cpu"):
                there = self.codec.encode(rows, self.segments, where, self.at, seed=i)
                self.codec.decode(there, self.segments, decoded)
            if not torch.equal(there.nbytes, self.encoded[i].nbytes):
                return "sizes differ from the CPU's"
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


def _written(encoded: Encoded) -> Tensor:
    """[W] bool: the bytes of some segment."""
    change = torch.zeros(len(encoded.payload) + 1, dtype=torch.int32)
    change.index_add_(0, encoded.at, torch.ones(len(encoded.at), dtype=torch.int32))
    ends = encoded.at + encoded.nbytes
    change.index_add_(0, ends, torch.full((len(ends),), -1, dtype=torch.int32))
    return change.cumsum(0)[:-1] > 0


class PeerCoded:
    """One of gpu_peers on the same rows, contiguous."""

    def __init__(self, peer: Peer, inputs: list[Tensor]) -> None:
        self.peer, self.inputs = peer, inputs
        self.prepared = [peer.prepare(rows) for rows in inputs]
        self.coded = [peer.encode(prepared) for prepared in self.prepared]

    def wrong(self) -> str | None:
        for rows, coded in zip(self.inputs, self.coded, strict=True):
            made = self.peer.restore(self.peer.decode(coded), rows)
            if bool(((made - rows).abs() > self.peer.allowed(rows)).any()):
                return "is further off than its format allows"
        return None

    def closures(self) -> Iterator[tuple[str, list[Closure]]]:
        yield "encode", [lambda x=x: self.peer.encode(x) for x in self.prepared]
        yield "decode", [lambda x=x: self.peer.decode(x) for x in self.coded]

    @property
    def ratio(self) -> float:
        raw = sum(4 * rows.numel() for rows in self.inputs)
        return raw / sum(self.peer.nbytes(coded) for coded in self.coded)


def seconds(closures: list[Closure], repeats: int) -> float:
    """Median of calls in turn, between device events, after a warm-up."""
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
    """Bytes read and written a second by a copy of the rows."""
    target = torch.empty_like(inputs[0])
    closures: list[Closure] = [lambda x=x: target.copy_(x) for x in inputs]
    return 2 * target.numel() * 4 / seconds(closures, repeats)


def figures(case: Coded | PeerCoded, copy: float, raw: int, repeats: int) -> dict[str, float]:
    """What a row of the table says."""
    ratio, found = case.ratio, {"ratio": round(case.ratio, 2)}
    gb_s = {}
    for name, closures in case.closures():
        gb_s[name] = raw / seconds(closures, repeats) / 1e9
        ceiling = copy / (1 + 1 / ratio) / 1e9
        found |= {f"{name}_gb_s": round(gb_s[name], 1)}
        found |= {f"{name}_of_ceiling": round(gb_s[name] / ceiling, 3)}
    found["break_even_gb_s"] = round(break_even_gb_s(ratio, **gb_s), 1)
    return found


def break_even_gb_s(ratio: float, encode: float, decode: float) -> float:
    """GB/s of a link below which coding pays: what it saves there is what the coder takes. Below 0
    where the bytes grow. Args: encode, decode: GB/s of raw bytes."""
    return (1 - 1 / ratio) / (1 / encode + 1 / decode)


def unique_columns(device: torch.device, columns: int = 26, ids: int = 65536) -> Closure:
    """Making one-hot columns distinct, of ids that are drawn as unevenly as real ones. Raises
    RuntimeError where the CPU finds others."""
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


def peers_installed() -> Iterator[Peer]:
    """Those that there are; says which are not."""
    yield from gpu_peers.casts()
    for name, make in (
        ("fbgemm-gpu", gpu_peers.fbgemm),
        ("nvidia-nvcomp-cu13", lambda: gpu_peers.nvcomp(BOUND)),
    ):
        try:
            yield from make()
        except ImportError as error:
            print(f"left out: {name} ({error}); pip install {name}")


def run(data: str, device: torch.device, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each case on rows of this kind."""
    batch, width = max(1, options.rows // options.tables), options.tables * options.dim
    segments = segments_of(batch, options.dim, options.tables, options.peers)
    inputs = [make_rows(data, batch, width, seed).to(device) for seed in range(options.inputs)]
    copy = 0.0 if options.check_only else copy_bandwidth(inputs, options.repeats)

    def cases() -> Iterator[tuple[str, Coded | PeerCoded]]:
        for name in options.codecs:
            yield name, Coded(CODECS[name], inputs, segments)
        if device.type == "cuda":
            contiguous = [x.view(-1, options.dim) for x in inputs]
            for peer in peers_installed():
                yield peer.name, PeerCoded(peer, contiguous)

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
    about, lines = _about(device, options), []
    with default_backend("gpu"):
        for data in options.data:
            for line in run(data, device, options):
                lines.append(line | about)
                print("  ".join(f"{k} {v}" for k, v in line.items()), flush=True)
    if not options.check_only:
        took = round(seconds([unique_columns(device)], options.repeats) * 1e3, 3)
        lines.append({"unique": "26 columns of 65536 ids", "ms": took} | about)
        print(f"unique: 26 columns of 65536 ids in {took} ms")
    if options.json is not None:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))
    failed = sum("wrong" in line for line in lines)
    done = "checked" if options.check_only else "timed"
    print(f"{len(lines) - failed} {done}, {failed} wrong; {options.json or 'no --json'}")
    return 1 if failed else 0


def _about(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    on = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu, interpreted"
    shape = {name: getattr(options, name) for name in ("rows", "dim", "tables", "peers", "repeats")}
    return {"device": on, "torch": torch.__version__, "commit": commit, **shape}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=int, default=2**20, help="of all tables together (default 2^20)")
    add("--dim", type=int, default=64)
    add("--tables", type=int, default=26)
    add("--peers", type=int, default=8, help="ranks that each table's rows go to (default 8)")
    kinds = ("trained", "gradients")
    add("--data", nargs="+", choices=kinds, default=kinds, help="default: both")
    add("--codecs", nargs="+", choices=tuple(CODECS), default=tuple(CODECS), metavar="NAME",
        help=f"of {', '.join(CODECS)} (default all)")  # fmt: skip
    add("--inputs", type=int, default=3, help="different ones, taken in turn (default 3)")
    add("--repeats", type=int, default=50, help="of each input (default 50)")
    add("--device", default="cuda")
    add("--check-only", action="store_true", help="time nothing")
    add("--json", type=Path, help="write a line a case")
    return parser


if __name__ == "__main__":
    sys.exit(main())
