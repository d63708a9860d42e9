"""All codecs, and what PyPI and FBGEMM offer beside them, on rows and gradients of a training.

  python run.py                                         two dims, of a short training made here
  python run.py --rows rows64.pt rows16.pt              of train.py --dump-rows
  python run.py --rows rows64.pt --kind gradients --threads 1 --codecs 'rowwise 4' zstd-1
  pip install zstandard lz4 blosc2 pcodec zfpy pysz     the others; who is not there is left out

Coded are the rows of the distinct ids of one batch of --samples, or their gradients, summed over
equal ids; a segment a table. On several threads each table goes to one of them, whole, and every
thread calls the codec on its tables (teams.py; our kernels let go of the GIL); with more threads
than tables some have none. Repeats of all codecs are interleaved.

  GB/s        of float32 rows, p20, p50 and p80 of --repeats, without waiting for a core (teams.py)
  bound       fraction of each table's range that an error may have; 0: lossless; null: none stated
  break-even  GB/s of a link below which coding pays: (1 - 1/ratio) / (1/encode + 1/decode)

Whose round trip is wrong (contestants.py says what that is) is named and not timed, and the exit
status is 1. One JSON object a codec, kind, dim and number of threads in --out; what is there
already, by the same versions of packages on the same machine, is not measured again, so the same
command goes on after Ctrl-C. The last line tells how many are of other commits: after a change of a
kernel give another --out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

BENCH = Path(__file__).resolve().parents[1]
sys.path += [str(BENCH), str(BENCH.parent / "criteo")]

import opponents  # noqa: E402
import teams  # noqa: E402
from codec_table import Record, table  # noqa: E402
from contestants import Contestant, contestants, example  # noqa: E402
from error_bounded import percentiles  # noqa: E402
from gpu import break_even_gb_s  # noqa: E402
from json_lines import read  # noqa: E402
from parts import Case, deal, read_cases, train  # noqa: E402
from report import describe_machine  # noqa: E402

from trec_qcomm.config import codec_to_dict  # noqa: E402

KINDS = ("rows", "gradients")
# Records that agree in these are of the same measurement.
IDENTITY = (
    "name", "ours", "config", "bound", "kind", "dim", "threads", "raw_nbytes", "data", "seed",
    "hardware", "versions",
)  # fmt: skip
INTERRUPTED = 130


def main() -> int:
    """Measure what is missing in --out, and show all of it."""
    options = _parser().parse_args()
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine, started = describe(), time.monotonic()
    if not teams.SCHEDSTAT.exists():
        print(f"no {teams.SCHEDSTAT}: times hold waiting for a core, too", file=sys.stderr)
    shown, refused = [], []
    try:
        before = len(read(options.out))
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    for one in contestants(example(), options.bound):
        if one.missing and chosen(one, options):
            print(f"left out: {one.name}: {one.missing}", file=sys.stderr)
    try:
        for case in cases(options):
            for threads in options.threads:
                everyone = contestants(case, options.bound)
                found = [one for one in everyone if chosen(one, options) and not one.missing]
                labels = [label(case, threads, one, machine) for one in found]
                done = [identity(record) for record in read(options.out)]
                todo = [one for one, own in zip(found, labels, strict=True) if own not in done]
                refused += measure(case, threads, todo, options, machine)
                shown += [r for r in read(options.out) if identity(r) in labels]
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {options.out}", file=sys.stderr)
        return INTERRUPTED
    for data in dict.fromkeys((r["data"], r["dim"]) for r in shown):
        print(table([r for r in shown if (r["data"], r["dim"]) == data]) + "\n")
    told = f"; REFUSED: {'; '.join(refused)}" if refused else ""
    new, took = len(read(options.out)) - before, time.monotonic() - started
    old = other_commits(shown, machine["commit"])
    print(f"{len(shown)} measurements, {new} of them new{old}, {took:.0f} s; {options.out}{told}")
    return int(bool(refused))


def other_commits(records: Sequence[Record], now: str | None) -> str:
    """For the last line: how many were not measured at the commit that is checked out."""
    others = [str(r.get("commit")) for r in records if r.get("commit") != now]
    return f", {len(others)} of other commits ({', '.join(sorted(set(others)))})" if others else ""


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Of the files given, or of trainings made here."""
    made = (train(options.out.parent, dim, options.seed) for dim in options.dims)
    for path in options.rows or made:
        try:
            yield from read_cases(path, options.kind, options.samples)
        except (ValueError, OSError) as error:
            raise SystemExit(f"error: {error}") from error


def chosen(contestant: Contestant, options: argparse.Namespace) -> bool:
    return contestant.name in options.codecs


def measure(
    case: Case,
    threads: int,
    todo: Sequence[Contestant],
    options: argparse.Namespace,
    machine: dict[str, Any],
) -> list[str]:
    """Append to --out a record of each whose round trip is right, all timed in turn; returns what
    is wrong with the others."""
    where = f"{case.kind}, dim {case.dim}, threads {threads}"
    running, refused, parts = {}, [], deal(case, threads)
    with teams.threads(threads) as pool:
        for one in todo:
            team = teams.round_trip(one, parts, pool)
            reason = teams.wrong(one, team, parts)
            if reason is None:
                running[one.name] = one, team
            else:
                refused.append(f"{one.name} ({where}): {reason}")
                print(f"refused: {refused[-1]}; not timed", file=sys.stderr, flush=True)
        by_name = {name: team for name, (_, team) in running.items()}
        seconds = teams.in_turn(by_name, options.repeats, where) if running else {}
        lines = []
        for name, (one, team) in running.items():
            own = {call: seconds[name, call] for call in teams.CALLS}
            record = {"bench": "codec"} | label(case, threads, one, machine)
            record |= errors(one, team, parts) | rates(case, team.nbytes, own) | machine
            lines.append(json.dumps(record) + "\n")
    with options.out.open("a") as file:
        file.write("".join(lines))
    return refused


def label(case: Case, threads: int, one: Contestant, machine: dict[str, Any]) -> dict[str, Any]:
    """What makes a measurement what it is; IDENTITY in full."""
    return {
        "name": one.name,
        "ours": one.codec is not None,
        "config": None if one.codec is None else codec_to_dict(one.codec),
        "bound": one.bound,
        "kind": case.kind,
        "dim": case.dim,
        "threads": threads,
        "raw_nbytes": case.raw_nbytes,
        "data": case.data,
        "seed": case.seed,
        "hardware": machine["hardware"],
        "versions": machine["versions"],
    }


def identity(record: Record) -> dict[str, Any]:
    return {name: record.get(name) for name in IDENTITY}


def errors(one: Contestant, team: teams.Team, parts: Sequence[Any]) -> dict[str, float]:
    largest, over_bound = teams.errors(one, team, parts)
    found = {"max_error": largest}
    return found if over_bound is None else found | {"error_over_bound": over_bound}


def rates(case: Case, wire_nbytes: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Bytes, ratio, GB/s, and the break-even link of the medians."""
    ratio = case.raw_nbytes / wire_nbytes
    gb_s = {
        call: percentiles(case.raw_nbytes / np.array(own) / 1e9) for call, own in seconds.items()
    }
    link = break_even_gb_s(ratio, **{call: rate["p50"] for call, rate in gb_s.items()})
    found = {f"{call}_gb_s": rate for call, rate in gb_s.items()}
    return {"wire_nbytes": wire_nbytes, "ratio": ratio, **found, "break_even_gb_s": link}


def describe() -> dict[str, Any]:
    """Of report.py, and the versions of what is compared."""
    machine = describe_machine()
    machine["versions"] |= opponents.versions("numba", "fbgemm-gpu", "fbgemm-gpu-cpu")
    return machine


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=Path, nargs="+", default=[], metavar="FILE.pt", help="of --dump-rows")
    add("--samples", type=_positive, default=2048, help="of --rows, the first (default 2048)")
    add("--kind", choices=KINDS, nargs="+", default=list(KINDS), help="default: both")
    cores = sorted({1, os.cpu_count() or 1})
    add("--threads", type=_positive, nargs="+", default=cores, help="default: 1, and all cores")
    names = [one.name for one in contestants(example(), 0.01)]
    add("--codecs", nargs="+", choices=names, default=names, metavar="NAME",
        help=f"of {', '.join(names).replace('%', '%%')} (default: all)")  # fmt: skip
    add(
        "--bound", type=_fraction, default=0.01, help="of bounded ones, of the range (default 0.01)"
    )
    add("--repeats", type=_positive, default=21, help="of each call (default 21)")
    add("--dims", type=_positive, nargs="+", default=[64, 16], help="without --rows (64 16)")
    add("--seed", type=int, default=0, help="without --rows: of the training (default 0)")
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
