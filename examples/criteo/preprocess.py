"""Makes Criteo's TSV ready to be trained on, once: arrays that every rank maps.

  python examples/criteo/preprocess.py train.txt                  to train.txt.min_count_2/
  python examples/criteo/preprocess.py train.txt --out criteo     to criteo/
  python examples/criteo/preprocess.py days/ --hash-buckets 1000000 --jobs 16
  python examples/criteo/train.py --config best --data criteo     trains on it

It takes one file, plain, .gz or .xz, or a folder of day files, and writes what TorchRec's own
readers have: day_N_dense.npy, day_N_sparse.npy, day_N_labels.npy, numbered in time order, and
dataset.json. A run that was ended goes on where it stopped, by the same command.
Disk: 164 bytes a row in the end and at most. Memory of each process: about .5 GB, or, where that is
more, 24 bytes for each distinct category of the column that has most of them.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from data.convert.ready import default_folder
from data.convert.run import convert
from data.ids import IdChoice

INTERRUPTED = 130


def main() -> int:
    """Convert as the command line says; the exit status is 1 after an error, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", type=Path, help="TSV (.gz, .xz), or a folder of such files")
    add("--out", type=Path, default=None, help="folder to write (default: beside the source)")
    ids = parser.add_mutually_exclusive_group()
    ids.add_argument(
        "--min-count", type=int, default=None, help="rarer categories become id 0 (default 2)"
    )
    ids.add_argument("--hash-buckets", type=int, default=None, help="hash instead of a vocabulary")
    ids.add_argument("--as-they-are", action="store_true", help="the categories are ids already")
    add("--jobs", type=int, default=os.cpu_count(), help="processes (default: all cores)")
    add("--replace", action="store_true", help="if the folder holds what was made of other files")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s", level="INFO")
    try:
        choice = choice_of(options)
        if options.jobs < 1:
            raise ValueError(f"jobs {options.jobs}: must be positive")
        out = options.out or default_folder(options.source, choice)
        begin = time.monotonic()
        how = {"jobs": options.jobs, "replace": options.replace}
        told = convert(options.source, out, choice, show=True, **how)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    print(summary(told, out, time.monotonic() - begin))
    return 0


def choice_of(options: argparse.Namespace) -> IdChoice:
    """Return how ids are made. Raises ValueError: a number is not positive."""
    min_count, hash_buckets = options.min_count, options.hash_buckets
    if min_count is None and hash_buckets is None and not options.as_they_are:
        min_count = 2
    return IdChoice(min_count=min_count, hash_buckets=hash_buckets, as_they_are=options.as_they_are)


def summary(told: dict[str, Any], out: Path, seconds: float) -> str:
    """Return the last line: rows, tables, time, and the most memory that a process took."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024
    rows, sizes = told["num_rows"], told["num_embeddings"]
    return (
        f"{out}: {rows:,} rows, {told['num_train']:,} of them to train on; tables of "
        f"{min(sizes):,} to {max(sizes):,} rows; {seconds:.0f} s, at most {peak:.0f} MB a process"
    )


if __name__ == "__main__":
    sys.exit(main())
