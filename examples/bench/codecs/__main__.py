"""All codecs, and casts and FBGEMM's quantizers beside them, on rows and gradients of a training.

  python -m examples.bench.codecs                             two dims, of a training made here
  python -m examples.bench.codecs --rows rows64.pt rows16.pt  files of train.py --dump-rows
  python -m examples.bench.codecs --kind gradients --codecs 'rowwise 4' 'FBGEMM INT4'

Coded are the rows of the distinct ids of one batch of --samples, or their gradients, summed over
equal ids; a segment a table. All run on one thread, and repeats of all codecs are interleaved.
Times are CPU time of that thread, so that other work on the machine is left out.

  GB/s        of float32 rows, p20, p50 and p80 of --repeats
  bound       fraction of each table's range that an error may have; 0: lossless; none: none stated
  break-even  GB/s of a link below which coding pays: (1 - 1/ratio) / (1/encode + 1/decode)

A codec whose round trip is wrong (entries.py says what that is) is named and not timed, and the
exit status is 1. One record a codec, kind and dim in --out; what is there already, by the same
versions of packages on the same machine, is not measured again, so the same command goes on after
Ctrl-C. The last line tells how many are of other commits: after a change of a kernel give another
--out.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tqdm import tqdm

from examples.bench import command
from examples.bench.codecs import formats
from examples.bench.codecs.entries import (
    Compressor,
    CompressorEntry,
    break_even_gb_s,
    entries,
    entry_names,
    error_over_bound,
)
from examples.bench.codecs.workload import TableGroup, Workload, grouped, read_workloads, train
from examples.bench.command import fraction, positive
from examples.bench.tables import codec_table
from trec_qcomm.config import codec_to_dict
from trec_qcomm.lab import records
from trec_qcomm.lab.records import CodecRecord, Environment, Percentiles

KINDS = ("rows", "gradients")
CALLS = ("encode", "decode")
PACKAGES = ("torch", "numpy", "numba", "fbgemm-gpu", "fbgemm-gpu-cpu")
LEAST_S, MOST_CALLS = 5e-3, 1000  # a repeat is as many calls as take so long


def main() -> int:
    """Measure what is missing in --out, and show all of it."""
    options = _parser().parse_args()
    torch.set_num_threads(1)
    environment, started = Environment.current(PACKAGES), time.monotonic()
    for reason in formats.installed()[1]:
        print(f"left out: {reason}", file=sys.stderr)
    try:
        num_before = len(command.read_so_far(options.out, CodecRecord))
        shown, refused = _measure_all(options, environment)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {options.out}", file=sys.stderr)
        return command.INTERRUPTED
    for setup in dict.fromkeys((r.setup_key, r.dim) for r in shown):
        print(codec_table([r for r in shown if (r.setup_key, r.dim) == setup]) + "\n")
    told = f"; REFUSED: {'; '.join(refused)}" if refused else ""
    new = len(command.read_so_far(options.out, CodecRecord)) - num_before
    old, took = _other_commits(shown, environment.commit), time.monotonic() - started
    print(f"{len(shown)} measurements, {new} of them new{old}, {took:.0f} s; {options.out}{told}")
    return int(bool(refused))


def _measure_all(
    options: argparse.Namespace, environment: Environment
) -> tuple[list[CodecRecord], list[str]]:
    """Measure what is missing; return the records of all that was asked for, and who is wrong."""
    shown: list[CodecRecord] = []
    refused: list[str] = []
    for workload in _workloads(options):
        chosen = {
            identity(identity_fields(workload, entry, environment)): entry
            for entry in entries(workload, options.bound)
            if entry.name in options.codecs
        }
        so_far = command.read_so_far(options.out, CodecRecord)
        done = {identity(vars(record)) for record in so_far}
        todo = [entry for key, entry in chosen.items() if key not in done]
        refused += _measure(workload, todo, options, environment)
        so_far = command.read_so_far(options.out, CodecRecord)
        shown += [r for r in so_far if identity(vars(r)) in chosen]
    return shown, refused


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
    todo: Sequence[CompressorEntry],
    options: argparse.Namespace,
    environment: Environment,
) -> list[str]:
    """Time all entries with a right round trip in turn, append their records to --out.

    Returns: what is wrong with the others.
    """
    where, group = f"{workload.kind}, dim {workload.dim}", grouped(workload)
    running, refused = {}, []
    for entry in todo:
        compressor = round_trip(entry, group)
        reason = mistake(entry, compressor, group)
        if reason is None:
            running[entry.name] = entry, compressor
        else:
            refused.append(f"{entry.name} ({where}): {reason}")
            print(f"refused: {refused[-1]}; not timed", file=sys.stderr, flush=True)
    seconds = in_turn({name: c for name, (_, c) in running.items()}, options.repeats, where)
    made = []
    for name, (entry, compressor) in running.items():
        error = float((group.rows.double() - compressor.out.double()).abs().max())
        over = error_over_bound(entry.bound, group, compressor.out) if entry.bound else None
        fields = identity_fields(workload, entry, environment)
        fields |= rates(
            workload.raw_nbytes, compressor.nbytes(), {c: seconds[name, c] for c in CALLS}
        )
        made.append(CodecRecord(**fields, max_error=error, error_over_bound=over))
    records.append(options.out, *made)
    return refused


def round_trip(entry: CompressorEntry, group: TableGroup) -> Compressor:
    """Return a compressor that has encoded and decoded once."""
    compressor = entry.make(group)
    compressor.encode()
    compressor.decode()
    return compressor


def mistake(entry: CompressorEntry, compressor: Compressor, group: TableGroup) -> str | None:
    """Return what is wrong with the decoded rows, or with NaN where the entry keeps them."""
    made = compressor.out
    if made.dtype != torch.float32 or made.shape != group.rows.shape:
        return f"{list(made.shape)} {made.dtype} for {list(group.rows.shape)}"
    reason = entry.mistake(group, made)
    if reason is not None or not entry.keeps_nan:
        return reason
    poisoned = replace(group, rows=group.rows.clone())  # a NaN at the start of every table
    poisoned.rows[group.segments.offsets[:-1], 0] = math.nan
    decoded = round_trip(entry, poisoned).out
    return None if bool(decoded.isnan()[poisoned.rows.isnan()].all()) else "NaN is lost"


def in_turn(
    compressors: Mapping[str, Compressor], num_repeats: int, label: str
) -> dict[tuple[str, str], list[float]]:
    """Return (name, call) -> CPU seconds of each repeat.

    All take turns in every repeat, so that drift hits all alike. A repeat is several calls in a
    row where one is short.

    Args:
        compressors: what to time, by name.
        num_repeats: number of repeats.
        label: text of the progress on stderr.
    """
    times = {
        (name, call): min(MOST_CALLS, math.ceil(LEAST_S / _seconds(compressor, call)))
        for name, compressor in compressors.items()
        for call in CALLS
    }
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in times}
    for _ in tqdm(range(num_repeats), desc=label, unit="repeat", disable=not times):
        for (name, call), number in times.items():
            seconds[name, call].append(_seconds(compressors[name], call, number))
    return seconds


def _seconds(compressor: Compressor, call: str, times: int = 1) -> float:
    begin = time.thread_time()
    for _ in range(times):
        getattr(compressor, call)()
    return max(time.thread_time() - begin, 1e-9) / times


def identity_fields(
    workload: Workload, entry: CompressorEntry, environment: Environment
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
        "threads": 1,
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
    parser = command.build_parser(__doc__, out="runs/codec.jsonl")
    add = parser.add_argument
    add("--rows", type=Path, nargs="+", default=[], metavar="FILE.pt", help="from --dump-rows")
    add("--samples", type=positive, default=2048, help="the first of --rows (default 2048)")
    add("--kind", choices=KINDS, nargs="+", default=list(KINDS), help="default: both")
    names = entry_names()
    add("--codecs", nargs="+", choices=names, default=names, metavar="NAME",
        help=f"some of {', '.join(names).replace('%', '%%')} (default: all)")  # fmt: skip
    add("--bound", type=fraction, default=0.01, help="error bound / range (default 0.01)")
    add("--repeats", type=positive, default=21, help="repeats of each call (default 21)")
    add("--dims", type=positive, nargs="+", default=[64, 16], help="without --rows (64 16)")
    add("--seed", type=int, default=0, help="seed of the training made here (default 0)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
