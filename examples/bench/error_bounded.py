"""error_bounded beside other compressors at the same bound, on one thread; and merging of ids.

    pip install zstandard lz4 blosc2 pcodec zfpy pysz
    python examples/bench/error_bounded.py
    python examples/bench/error_bounded.py --rows rows.pt --kind rows gradients --json speed.jsonl

Input: `--rows FILE.pt` of `examples/criteo/train.py --dump-rows`: the first batch of it, one
segment a table, the rows of its distinct ids, or the gradients summed over equal ids. By default
normal rows of 26 tables, 5 to 2000 rows each, sigma 0.01 to 0.3, at dims 16 and 64.

Each compressor and quantize + zstd level 1 are called in turn; a speed-up is of two calls that
follow one another, above 1 where the named one is faster. Times are CPU time of this thread, as
others may share the machine. GB/s and ratios are of float32 rows. Every round trip is held against
the bound first, without slack: one that breaks it is named and not timed. What the others are given
is in opponents.py. One JSON object a line with --json, a table, and at last what the targets say.
"""

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import opponents
import torch
from opponents import BASELINE, Opponent
from torch import Tensor
from trained import Batch, load, merged

from trec_qcomm.codecs import ErrorBounded, Rowwise
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ops.error_bound import reference
from trec_qcomm.ops.unique import UniqueBags, take_bags, unique_bags
from trec_qcomm.testing import error_bounds, max_error_in_bounds

PERCENTILES = (20, 50, 80)
LEAST_REPEATS = 7
ENCODERS = ("bitpack", "vector_lz", "rans", "auto")
# (encoder, measure, its limit, "least" or "most"); see `figure`.
TARGETS = (
    ("bitpack", "encode_speedup", 2.0, "least"),
    ("bitpack", "decode_speedup", 1.4, "least"),
    ("rans", "encode_gb_per_s", 0.8, "least"),
    ("rans", "decode_gb_per_s", 2.0, "least"),
    ("rans", "wire_over_entropy", 1.03, "most"),
)


@dataclass(frozen=True)
class Case:
    """Rows [R, D] of all tables and their segments."""

    source: str
    kind: str
    rows: Tensor
    segments: Segments


class Ours:
    """A codec of ours on the same; see opponents.Opponent."""

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


def worst_error(one: Opponent, codec: ErrorBounded, case: Case) -> float:
    """The largest error of a round trip, over the bound."""
    one.out[:] = np.nan
    one.encode()
    one.decode()
    decoded = torch.from_numpy(one.out).view_as(case.rows)
    return max_error_in_bounds(codec, case.rows, decoded, case.segments)


def seconds(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def in_turn(
    first: Callable[[], object], second: Callable[[], object], repeats: int, most_s: float
) -> np.ndarray:
    """[repeats, 2] seconds; which of the two goes first alternates. Fewer beyond `most_s`."""
    once = seconds(first) + seconds(second)
    repeats = min(repeats, max(LEAST_REPEATS, int(most_s / max(once, 1e-9))))
    times = np.empty((repeats, 2))
    for i in range(repeats):
        if i % 2:
            times[i, 1], times[i, 0] = seconds(second), seconds(first)
        else:
            times[i, 0], times[i, 1] = seconds(first), seconds(second)
    return times


def percentiles(values: np.ndarray) -> dict[str, float]:
    return {f"p{p}": float(f"{np.percentile(values, p):.4g}") for p in PERCENTILES}


def entropy_nbytes(codec: ErrorBounded, case: Case) -> float:
    """Empirical entropy of each segment's indices, as the definition quantizes, summed."""
    total = 0.0
    for s, bound in enumerate(error_bounds(codec, case.rows, case.segments).tolist()):
        bound32 = reference.round_down(bound)
        step, inverse = reference.step_of(bound32)
        if step > 0:
            x = case.segments.block(case.rows, s).reshape(-1)
            q, _ = reference.quantize(x, bound32, step, inverse)
            share = q.unique(return_counts=True)[1].double() / len(q)
            total -= float((share * share.log2()).sum()) * len(q) / 8
    return total


def contestants(
    case: Case, bound: float, options: argparse.Namespace
) -> Iterator[tuple[str, Opponent]]:
    for encoder in options.encoders:
        codec = ErrorBounded(bound, encoder=encoder)
        yield encoder, Ours(codec, case.rows, case.segments)
    for name in options.opponents:
        if name != BASELINE:
            yield name, build(name, case, bound)


def build(name: str, case: Case, bound: float) -> Opponent:
    segments = case.segments
    tables = [segments.block(case.rows, s).numpy() for s in range(segments.num_segments)]
    bounds = error_bounds(ErrorBounded(bound), case.rows, segments).tolist()
    return opponents.build(name, tables, bound, bounds)


def measure(case: Case, bound: float, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record a compressor. Raises SystemExit where ours or the baseline breaks the bound."""
    codec, raw = ErrorBounded(bound), case.rows.numel() * 4
    shape = {"source": case.source, "kind": case.kind, "dim": case.segments.dim, "bound": bound}
    shape |= {"tables": case.segments.num_segments, "rows": len(case.rows), "raw_nbytes": raw}
    shape["entropy_nbytes"] = round(entropy_nbytes(codec, case))
    baseline = build(BASELINE, case, bound)
    everyone = [(BASELINE, baseline), *contestants(case, bound, options)]
    for name, one in everyone:
        error = worst_error(one, codec, case)
        record: dict[str, Any] = {"name": name, "ours": isinstance(one, Ours)} | shape
        if isinstance(one, Ours):
            record["codec"] = repr(one.codec)
        record |= {"wire_nbytes": one.nbytes(), "max_error_over_bound": error}
        record["compression_ratio"] = round(raw / one.nbytes(), 3)
        if not error <= 1:
            if isinstance(one, Ours) or one is baseline:
                raise SystemExit(f"{name}: an error of {error} times the bound; nothing is timed")
            yield record
            continue
        for call in ("encode", "decode"):
            own, theirs = getattr(one, call), getattr(baseline, call)
            times = in_turn(own, theirs, options.repeats, options.seconds)
            record[f"{call}_repeats"] = len(times)
            record[f"{call}_gb_per_s"] = percentiles(raw / times[:, 0] / 1e9)
            record[f"{call}_speedup"] = percentiles(times[:, 1] / times[:, 0])
        yield record


def measure_merging(batch: Batch, source: str, repeats: int, most_s: float) -> dict[str, Any]:
    """Finding distinct ids: its time, and whether the encoder wins it back."""
    rows = torch.cat(list(batch.rows.values())).contiguous()
    sizes, dim = [len(ids) for ids in batch.ids.values()], rows.shape[1]
    ids, lengths = torch.cat(list(batch.ids.values())), torch.ones(len(rows), dtype=torch.int32)
    all_shares = torch.ones(len(sizes), dtype=torch.float64)

    def find() -> UniqueBags:
        return unique_bags(ids, lengths, torch.tensor(sizes), all_shares)

    found = find()

    def take() -> None:
        take_bags(ids, lengths, found.first)

    distinct = rows[found.first].contiguous()
    record: dict[str, Any] = {"name": "merging", "source": source, "dim": dim, "ids": len(ids)}
    record["distinct_share"] = len(found.first) / len(ids)
    for codec in (ErrorBounded(0.01), Rowwise(4)):
        whole = Ours(codec, rows, Segments.packed(sizes, dim))
        few = Ours(codec, distinct, Segments.packed(found.counts.tolist(), dim))

        def merge(few: Ours = few) -> None:
            find()
            take()
            few.encode()

        merge()
        times = in_turn(merge, whole.encode, repeats, most_s)
        record[f"time_over_all {codec!r}"] = percentiles(times[:, 0] / times[:, 1])
    times = in_turn(find, take, repeats, most_s) / len(ids) * 1e9
    record["find_ns_an_id"], record["take_ns_an_id"] = map(percentiles, times.T)
    return record


def synthetic(dim: int, seed: int) -> Case:
    """26 tables of 5 to 2000 normal rows with sigmas of 0.01 to 0.3."""
    generator = torch.Generator().manual_seed(seed)
    tables = []
    for t in range(26):
        num_rows, sigma = round(5 * 400 ** (t / 25)), 0.01 * 30 ** ((t * 7 % 26) / 25)
        tables.append(torch.randn(num_rows, dim, generator=generator) * sigma)
    segments = Segments.packed([len(table) for table in tables], dim)
    return Case("synthetic", "rows", torch.cat(tables), segments)


def synthetic_batch(dim: int, seed: int) -> Batch:
    """26 tables, 2048 ids each of 620 different ones: seven in ten occurred before."""
    generator = torch.Generator().manual_seed(seed)
    rows, ids = {}, {}
    for t in range(26):
        numbers = torch.randint(620, (2048,), generator=generator)
        rows[f"t{t}"] = torch.randn(620, dim, generator=generator)[numbers]
        ids[f"t{t}"] = numbers * 1_000_003
    return Batch(rows, {}, ids)


def inputs(options: argparse.Namespace) -> Iterator[tuple[str, Batch, list[Case]]]:
    """(source, batch for merging, cases)."""
    for dim in () if options.rows else (16, 64):
        batch = synthetic_batch(dim, options.seed)
        yield "synthetic", batch, [synthetic(dim, options.seed)]
    for path in options.rows:
        batch = load(path, options.samples, 1)[0]
        distinct, cases = merged(batch), []
        for kind in options.kind:
            tables = getattr(distinct, kind)
            segments = Segments.packed([len(x) for x in tables.values()], dim_of(path, tables))
            cases.append(Case(path.name, kind, torch.cat(list(tables.values())), segments))
        yield path.name, batch, cases


def dim_of(path: Path, tables: dict[str, Tensor]) -> int:
    """The one dim of all tables. Raises SystemExit: several, or values that are not finite."""
    dims = {table.shape[1] for table in tables.values()}
    if len(dims) != 1:
        raise SystemExit(f"{path}: tables of dims {sorted(dims)}, expected one")
    for name, rows in tables.items():
        if rows.dtype != torch.float32 or not bool(rows.isfinite().all()):
            raise SystemExit(f"{path}: {name}: expected finite float32: others carry no NaN")
    return dims.pop()


def row_of_table(record: dict[str, Any]) -> str:
    """One line of markdown: GB/s as p50, speed-ups as p50 (p20 to p80)."""
    cells = [record["source"], record["kind"], record["dim"], record["bound"], record["name"]]
    cells += [f"{record['compression_ratio']:.2f}", f"{record['max_error_over_bound']:.6f}"]
    for call in ("encode", "decode"):
        if f"{call}_speedup" not in record:
            cells += ["", "breaks the bound"]
            continue
        speedup = record[f"{call}_speedup"]
        cells.append(f"{record[f'{call}_gb_per_s']['p50']:.2f}")
        cells.append("{p50:.2f} ({p20:.2f} to {p80:.2f})".format(**speedup))
    return "| " + " | ".join(map(str, cells)) + " |"


HEADER = (
    "| input | kind | dim | bound | compressor | ratio | error / bound | encode GB/s | "
    f"over {BASELINE} | decode GB/s | over {BASELINE} |\n|" + "---|" * 11
)


def figure(record: dict[str, Any], what: str) -> float:
    """The figure that a target is about: p50 where there are percentiles."""
    if what == "wire_over_entropy":
        return float(record["wire_nbytes"] / record["entropy_nbytes"])
    return float(record[what]["p50"])


def verdict(records: list[dict[str, Any]]) -> str:
    """Each target beside the worst case of all; "not measured" where there is none."""
    parts = []
    for name, what, limit, sense in TARGETS:
        found = [figure(r, what) for r in records if r["name"] == name]
        label = f"{name} {what} at {sense} {limit:g}"
        if not found:
            parts.append(f"{label}: not measured")
            continue
        worst = min(found) if sense == "least" else max(found)
        number = sum(f >= limit if sense == "least" else f <= limit for f in found)
        met = "met in all" if number == len(found) else f"NOT met in {len(found) - number}"
        parts.append(f"{label}: {met} of {len(found)} (worst {worst:.3f})")
    return "targets (p50): " + "; ".join(parts)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=Path, nargs="+", default=[], metavar="FILE.pt", help="of --dump-rows")
    add("--kind", choices=("rows", "gradients"), nargs="+", default=["rows"], help="of --rows")
    add("--samples", type=int, default=2048, help="of --rows, the first ones (default 2048)")
    add("--bounds", type=float, nargs="+", default=[0.01, 0.03], help="fractions of the range")
    add("--encoders", choices=ENCODERS, nargs="+", default=list(ENCODERS), help="of ours")
    add("--opponents", choices=opponents.NAMES, nargs="+", default=list(opponents.NAMES))
    add("--repeats", type=int, default=51)
    add("--seconds", type=float, default=1.0, help="most for one measurement, 7 repeats at least")
    add("--seed", type=int, default=0, help="of synthetic rows")
    add("--json", type=Path, default=None, metavar="FILE", help="one object a line is added")
    options = parser.parse_args()
    if options.kind != ["rows"] and not options.rows:
        parser.error("--kind gradients: needs --rows, synthetic input has none")
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: expected at least 1")
    return options


def environment(seed: int) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    where = {"commit": commit, "cpu": platform.processor() or platform.machine(), "seed": seed}
    where |= {"load_average": os.getloadavg()[0], "torch": torch.__version__}
    return where | {"numba": numba.__version__, "numpy": np.__version__} | opponents.versions()


def main() -> None:
    """Parse, check, time, print."""
    options = parse()
    torch.set_num_threads(1)
    absent = {n: line for n in {*options.opponents, BASELINE} if (line := opponents.missing(n))}
    for name, line in absent.items():
        print(f"skipped: {name}: {line}")
    if BASELINE in absent:
        raise SystemExit(f"{BASELINE} is what all others are measured against")
    options.opponents = [name for name in options.opponents if name not in absent]
    where, records, mergings = environment(options.seed), [], []
    print(HEADER)
    for source, batch, cases in inputs(options):
        for case in cases:
            for bound in options.bounds:
                for record in measure(case, bound, options):
                    records.append(record | where)
                    print(row_of_table(record), flush=True)
        mergings.append(measure_merging(batch, source, options.repeats, options.seconds) | where)
    for record in mergings:
        print("merging: " + json.dumps({k: v for k, v in record.items() if k not in where}))
    if options.json is not None:
        with options.json.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records + mergings)
    broken = {r["name"] for r in records if "encode_speedup" not in r}
    if broken:
        print("not timed, breaks the bound somewhere: " + ", ".join(sorted(broken)))
    print(verdict(records))


if __name__ == "__main__":
    main()
