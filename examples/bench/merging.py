"""Whether merging equal ids wins back its time in the encoder: its time beside encoding all rows.

  python -m examples.bench.merging                          synthetic ids, dims 16 and 64
  python -m examples.bench.merging --rows rows.pt           a file of train.py --dump-rows

Synthetic are 26 tables of 2048 ids each, of 620 different ones. The two sides take turns; times are
CPU time of this thread, as others may share the machine. One line an input and codec: the time of
finding distinct ids, taking them and encoding their rows, over that of encoding all rows; below 1
merging saves time, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from examples.bench.codecs.entries import CodecCompressor
from examples.bench.codecs.workload import Batch, load
from trec_qcomm.codecs import ErrorBounded, Rowwise
from trec_qcomm.core.segments import Segments
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Environment
from trec_qcomm.ops.batch.unique import UniqueBags, take_bags, unique_bags


def measure(batch: Batch, data: str, repeats: int, environment: Environment) -> list[BenchRecord]:
    """Return one record a codec."""
    rows = torch.cat(list(batch.rows.values())).contiguous()
    sizes, dim = [len(ids) for ids in batch.ids.values()], rows.shape[1]
    ids, lengths = torch.cat(list(batch.ids.values())), torch.ones(len(rows), dtype=torch.int32)
    all_shares = torch.ones(len(sizes), dtype=torch.float64)

    def find() -> UniqueBags:
        return unique_bags(ids, lengths, torch.tensor(sizes), all_shares)

    distinct = find()
    distinct_rows = rows[distinct.first].contiguous()
    made = []
    for codec in (ErrorBounded(0.01), Rowwise(4)):
        whole = CodecCompressor(codec, rows, Segments.packed(sizes, dim))
        few = CodecCompressor(codec, distinct_rows, Segments.packed(distinct.counts.tolist(), dim))

        def merge(few: CodecCompressor = few) -> None:
            find()
            take_bags(ids, lengths, distinct.first)
            few.encode()

        made.append(
            BenchRecord(
                configuration=repr(codec),
                bench="merging",
                environment=environment,
                case={"data": data, "dim": dim, "num_ids": len(ids)},
                figures={
                    "distinct_share": len(distinct.first) / len(ids),
                    "time_over_all": float(np.median(_ratios(merge, whole.encode, repeats))),
                },
            )
        )
    return made


def _ratios(first: Callable[[], object], second: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of one over the other; which of the two goes first alternates."""
    _seconds(first), _seconds(second)
    ratios = []
    for i in range(repeats):
        if i % 2:
            divisor, dividend = _seconds(second), _seconds(first)
        else:
            dividend, divisor = _seconds(first), _seconds(second)
        ratios.append(dividend / divisor)
    return ratios


def _seconds(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def synthetic(dim: int, seed: int) -> Batch:
    """Return 26 tables, 2048 ids each of 620 different ones: seven in ten occurred before."""
    generator = torch.Generator().manual_seed(seed)
    rows, ids = {}, {}
    for t in range(26):
        numbers = torch.randint(620, (2048,), generator=generator)
        rows[f"t{t}"] = torch.randn(620, dim, generator=generator)[numbers]
        ids[f"t{t}"] = numbers * 1_000_003
    return Batch(rows, {}, ids)


def _inputs(options: argparse.Namespace) -> Iterator[tuple[str, Batch]]:
    for path in options.rows:
        yield path.name, load(path, options.samples, 1)[0]
    for dim in () if options.rows else (16, 64):
        yield "synthetic", synthetic(dim, options.seed)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=Path, nargs="+", default=[], metavar="FILE.pt", help="from --dump-rows")
    add("--samples", type=int, default=2048, help="the first of --rows (default 2048)")
    add("--repeats", type=int, default=51, help="default 51")
    add("--seed", type=int, default=0, help="seed of synthetic ids")
    add("--out", type=Path, default=None, metavar="FILE", help="append the records to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    environment, num_records = Environment.current(), 0
    for data, batch in _inputs(options):
        for record in measure(batch, data, options.repeats, environment):
            case, figures = record.case, record.figures
            print(
                f"{data}, dim {case['dim']}, {record.configuration}: "
                f"{figures['time_over_all']:.2f} of the time of encoding all rows, "
                f"{figures['distinct_share']:.0%} of the ids are distinct",
                flush=True,
            )
            num_records += 1
            if options.out is not None:
                records.append(options.out, record)
    print(f"{num_records} cases; {options.out or 'no --out'}")


if __name__ == "__main__":
    main()
