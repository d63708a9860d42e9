"""Makes Criteo's TSV ready to be trained on, once: arrays that every rank maps.

  python examples/criteo/preprocess.py train.txt                  to train.txt.min_count_2/
  python examples/criteo/preprocess.py train.txt --out criteo     to criteo/
  python examples/criteo/preprocess.py days/ --hash-buckets 1000000 --jobs 16
  python examples/criteo/train.py --config best --data criteo     trains on it

It takes one file, plain, .gz or .xz, or a folder of day files, and writes what TorchRec's own
readers have: day_N_dense.npy, day_N_sparse.npy, day_N_labels.npy, numbered in time order, and
dataset.json. Disk: 160 bytes a row, and 130 more while it works. Memory: about 40 bytes a row.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from data.convert import DEFAULT_MIN_COUNT, convert, default_folder
from data.dataset import IdChoice


def main() -> int:
    """Convert as the command line says; the exit status is 1 after an error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", type=Path, help="TSV (.gz, .xz), or a folder of such files")
    add("--out", type=Path, help="folder to write (default: beside the source)")
    ids = parser.add_mutually_exclusive_group().add_argument
    ids("--min-count", type=int, help="rarer categories become id 0 (default 2)")
    ids("--hash-buckets", type=int, help="hash instead of a vocabulary")
    ids("--as-they-are", action="store_true", help="the categories are ids already")
    add("--jobs", type=int, default=os.cpu_count(), help="processes (default: all cores)")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s", level="WARNING", force=True)
    kinds = ("min_count", "hash_buckets", "as_they_are")
    chosen = {name: value for name in kinds if (value := getattr(options, name))}
    try:
        choice = IdChoice(**(chosen or {"min_count": DEFAULT_MIN_COUNT}))
        out = options.out or default_folder(options.source, choice)
        made = convert(options.source, out, choice, jobs=options.jobs)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows, sizes = made["num_rows"], made["num_embeddings"]
    trained = f"{rows:,} rows, {made['num_train']:,} of them to train on"
    print(f"{out}: {trained}; tables of {min(sizes):,} to {max(sizes):,} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
