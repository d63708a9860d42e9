"""All codecs, and what PyPI and FBGEMM offer beside them, on rows and gradients of a training.

  python -m examples.bench.codecs                             two dims, of a training made here
  python -m examples.bench.codecs --rows rows64.pt rows16.pt  files of train.py --dump-rows
  python -m examples.bench.codecs --kind gradients --threads 1 --codecs 'rowwise 4' zstd-1
  pip install zstandard lz4 blosc2 pcodec zfpy pysz           the others; missing ones are left out

Coded are the rows of the distinct ids of one batch of --samples, or their gradients, summed over
equal ids; a segment a table. On several threads each table goes to one of them, whole, and every
thread calls the codec on its tables (timing.py; our kernels let go of the GIL); with more threads
than tables some have none. Repeats of all codecs are interleaved.

  GB/s        of float32 rows, p20, p50 and p80 of --repeats, without waiting for a core (timing.py)
  bound       fraction of each table's range that an error may have; 0: lossless; none: none stated
  break-even  GB/s of a link below which coding pays: (1 - 1/ratio) / (1/encode + 1/decode)

A codec whose round trip is wrong (entries.py says what that is) is named and not timed, and the
exit status is 1. One record a codec, kind, dim and number of threads in --out; what is there
already, by the same versions of packages on the same machine, is not measured again, so the same
command goes on after Ctrl-C. The last line tells how many are of other commits: after a change of a
kernel give another --out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from examples.bench.codecs import compressors, timing
from examples.bench.codecs.entries import CompressorEntry, entries, example
from examples.bench.codecs.table import break_even_gb_s, table
from examples.bench.codecs.workload import Workload, deal, read_workloads, train
from trec_qcomm.config import codec_to_dict
from trec_qcomm.lab import records
from trec_qcomm.lab.records import CodecRecord, Environment, Percentiles

KINDS = ("rows", "gradients")
PACKAGES = ("torch", "numpy", "numba", "fbgemm-gpu", "fbgemm-gpu-cpu", *compressors.PIP.values())
INTERRUPTED = 130


def main() -> int:
    """Measure what is missing in --out, and show all of it."""
    options = _parser().parse_args()
    torch.set_num_threads(1)
    environment, started = Environment.current(PACKAGES), time.monotonic()
    if not timing.SCHEDSTAT.exists():
        print(f"no {timing.SCHEDSTAT}: times hold waiting for a core, too", file=sys.stderr)
    try:
        num_before = len(_read(options.out))
        for entry in entries(example(), options.bound):
            if entry.missing and entry.name in options.codecs:
                print(f"left out: {entry.name}: {entry.missing}", file=sys.stderr)
        shown, refused = _measure_all(options, environment)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {options.out}", file=sys.stderr)
        return INTERRUPTED
    for setup in dict.fromkeys((r.setup_key, r.dim) for r in shown):
        print(table([r for r in shown if (r.setup_key, r.dim) == setup]) + "\n")
    told = f"; REFUSED: {'; '.join(refused)}" if refused else ""
    new, took = len(_read(options.out)) - num_before, time.monotonic() - started
    old = _other_commits(shown, environment.commit)
    print(f"{len(shown)} measurements, {new} of them new{old}, {took:.0f} s; {options.out}{told}")
    return int(bool(refused))


def _measure_all(
    options: argparse.Namespace, environment: Environment
) -> tuple[list[CodecRecord], list[str]]:
    """Measure what is missing; return the records of all that was asked for, and who is wrong."""
    shown: list[CodecRecord] = []
    refused: list[str] = []
    for workload in _workloads(options):
        for threads in options.threads:
            chosen = {
                identity(identity_fields(workload, threads, entry, environment)): entry
                for entry in entries(workload, options.bound)
                if entry.name in options.codecs and not entry.missing
            }
            done = {identity(vars(record)) for record in _read(options.out)}
            todo = [entry for key, entry in chosen.items() if key not in done]
            refused += _measure(workload, threads, todo, options, environment)
            shown += [r for r in _read(options.out) if identity(vars(r)) in chosen]
    return shown, refused


def _read(path: Path) -> list[CodecRecord]:
    """Return the records so far. Raises ValueError: a line that is no record of a codec."""
    read = records.read(path) if path.exists() else []
    for record in read:
        if not isinstance(record, CodecRecord):
            raise ValueError(f"{record.origin}: a record of kind {record.kind}, not codec")
    return read


def _workloads(options: argparse.Namespace) -> Iterator[Workload]:
    """Yield rows and gradients of the files given, or of trainings made here."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    made = (train(options.out.parent, dim, options.seed) for dim in options.dims)
    for path in options.rows or made:
        try:
            yield from read_workloads(path, options.kind, options.samples)
        except OSError as error:
            raise ValueError(str(error)) from error


def _measure(
    workload: Workload,
    threads: int,
    todo: Sequence[CompressorEntry],
    options: argparse.Namespace,
    environment: Environment,
) -> list[str]:
    """Time all entries with a right round trip in turn, append their records to --out.

    Returns: what is wrong with the others.
    """
    where = f"{workload.kind}, dim {workload.dim}, threads {threads}"
    running, refused, groups = {}, [], deal(workload, threads)
    with timing.threads(threads) as pool:
        for entry in todo:
            workers = timing.round_trip(entry, groups, pool)
            mistake = timing.mistake(entry, workers, groups)
            if mistake is None:
                running[entry.name] = entry, workers
            else:
                refused.append(f"{entry.name} ({where}): {mistake}")
                print(f"refused: {refused[-1]}; not timed", file=sys.stderr, flush=True)
        by_name = {name: workers for name, (_, workers) in running.items()}
        seconds = timing.in_turn(by_name, options.repeats, where) if running else {}
        made = []
        for name, (entry, workers) in running.items():
            largest, over_bound = timing.errors(entry, workers, groups)
            fields = identity_fields(workload, threads, entry, environment)
            fields |= rates(
                workload.raw_nbytes, workers.nbytes, {c: seconds[name, c] for c in timing.CALLS}
            )
            made.append(CodecRecord(**fields, max_error=largest, error_over_bound=over_bound))
    if made:
        records.append(options.out, *made)
    return refused


def identity_fields(
    workload: Workload, threads: int, entry: CompressorEntry, environment: Environment
) -> dict[str, Any]:
    """Return the fields of a record that are known before anything is measured."""
    config = None if entry.codec is None else codec_to_dict(entry.codec)
    text = yaml.safe_dump(config, default_flow_style=True, sort_keys=False, width=1000)
    return {
        "configuration": entry.name,
        "config": None if config is None else text,
        "setup": {"data": workload.data},
        "seed": workload.seed,
        "environment": environment,
        "is_ours": config is not None,
        "values": workload.kind,
        "dim": workload.dim,
        "threads": threads,
        "bound": entry.bound,
        "raw_nbytes": workload.raw_nbytes,
    }


def identity(fields: dict[str, Any]) -> tuple[Any, ...]:
    """Return what makes two records measurements of the same. The commit is not part of it."""
    names = (
        "configuration", "config", "seed", "is_ours", "values", "dim", "threads", "bound",
        "raw_nbytes",
    )  # fmt: skip
    environment = fields["environment"] or Environment()
    where = (fields["setup"], environment.versions, environment.hardware)
    return (*(fields[name] for name in names), *(tuple(sorted(x.items())) for x in where))


def rates(raw_nbytes: int, wire_nbytes: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return the fields of bytes, ratio and GB/s, and the break-even link of the medians."""
    ratio = raw_nbytes / wire_nbytes
    gb_s = {call: _percentiles(raw_nbytes / np.array(s) / 1e9) for call, s in seconds.items()}
    link = break_even_gb_s(ratio, gb_s["encode"].p50, gb_s["decode"].p50)
    named = {f"{call}_gb_s": rate for call, rate in gb_s.items()}
    return {"wire_nbytes": wire_nbytes, "ratio": ratio, **named, "break_even_gb_s": link}


def _percentiles(values: np.ndarray) -> Percentiles:
    return Percentiles(**{f"p{p}": float(f"{np.percentile(values, p):.4g}") for p in (20, 50, 80)})


def _other_commits(shown: Sequence[CodecRecord], now: str | None) -> str:
    """Return how many were not measured at the commit that is checked out, for the last line."""
    commits = [str(r.environment.commit) if r.environment else "?" for r in shown]
    others = [commit for commit in commits if commit != str(now)]
    return f", {len(others)} of other commits ({', '.join(sorted(set(others)))})" if others else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=Path, nargs="+", default=[], metavar="FILE.pt", help="from --dump-rows")
    add("--samples", type=_positive, default=2048, help="the first of --rows (default 2048)")
    add("--kind", choices=KINDS, nargs="+", default=list(KINDS), help="default: both")
    cores = sorted({1, os.cpu_count() or 1})
    add("--threads", type=_positive, nargs="+", default=cores, help="default: 1, and all cores")
    names = [entry.name for entry in entries(example(), 0.01)]
    add("--codecs", nargs="+", choices=names, default=names, metavar="NAME",
        help=f"some of {', '.join(names).replace('%', '%%')} (default: all)")  # fmt: skip
    add("--bound", type=_fraction, default=0.01, help="error bound / range (default 0.01)")
    add("--repeats", type=_positive, default=21, help="repeats of each call (default 21)")
    add("--dims", type=_positive, nargs="+", default=[64, 16], help="without --rows (64 16)")
    add("--seed", type=int, default=0, help="seed of the training made here (default 0)")
    add("--out", type=Path, default=Path("runs/codec.jsonl"), help="default runs/codec.jsonl")
    return parser


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected at least 1")
    return int(text)


def _fraction(text: str) -> float:
    if not 0 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected more than 0 and less than 1")
    return float(text)


if __name__ == "__main__":
    sys.exit(main())
