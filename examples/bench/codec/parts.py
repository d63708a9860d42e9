"""What bench-codec codes: rows and gradients of a dump, dealt out to threads.

Knows: the files of `train.py --dump-rows`. Does not know: codecs, times.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from error_bounded import dim_of
from torch import Tensor
from trained import Tables, load, merged

from trec_qcomm.core.segments import Segments

TRAIN = Path(__file__).resolve().parents[2] / "criteo" / "train.py"
# Small enough for a minute; the last 8192 samples are dumped.
TRAINING = "--config stock --ranks 1 --rows 20000 --min-count 1 --out"


@dataclass(frozen=True)
class Case:
    """Rows or gradients [n, D] by table, of the distinct ids of one batch.

    data: the file's name.  seed: of its training.  forward: of gradients, the rows they are of.
    """

    data: str
    seed: int
    kind: str
    dim: int
    tables: Tables
    forward: Tables | None = None

    @property
    def raw_nbytes(self) -> int:
        return 4 * sum(rows.numel() for rows in self.tables.values())


@dataclass(frozen=True, eq=False)
class Part:
    """Some tables one behind the other: rows [R, D], a segment a table; forward: as in Case."""

    rows: Tensor
    segments: Segments
    forward: Tensor | None = None


def read_cases(path: Path, kinds: Sequence[str], num_samples: int) -> Iterator[Case]:
    """A case a kind. Raises ValueError: a file with too few samples, or without its seed."""
    meta = torch.load(path, weights_only=True, mmap=True).get("meta", {})
    if "seed" not in meta:
        raise ValueError(f"{path}: no meta.seed; expected a file of train.py --dump-rows")
    batch = merged(load(path, num_samples, 1)[0])
    for kind in kinds:
        tables = getattr(batch, kind)
        forward = batch.rows if kind == "gradients" else None
        yield Case(path.name, meta["seed"], kind, dim_of(path, tables), tables, forward)


def train(folder: Path, dim: int, seed: int) -> Path:
    """The dump of a short training on synthetic rows; made unless it is there."""
    path = folder / f"synthetic-dim{dim}-seed{seed}.pt"
    if not path.exists():
        print(f"no --rows: training on synthetic rows for {path}", file=sys.stderr, flush=True)
        unfinished = path.with_suffix(".unfinished")
        command = [sys.executable, str(TRAIN), *TRAINING.split(), str(folder)]
        command += ["--name", path.stem, "--embedding-dim", str(dim), "--seed", str(seed)]
        command += ["--dump-rows", str(unfinished)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        unfinished.rename(path)
    return path


def deal(case: Case, num_parts: int) -> list[Part]:
    """The tables in parts, whole, the largest first, each to whoever has the fewest rows so far.

    Fewer parts where there are fewer tables.
    """
    hands: list[list[str]] = [[] for _ in range(min(num_parts, len(case.tables)))]
    held = [0] * len(hands)
    for name, rows in sorted(case.tables.items(), key=lambda item: -len(item[1])):
        least = held.index(min(held))
        hands[least].append(name)
        held[least] += len(rows)
    return [part_of(case, hand) for hand in hands]


def part_of(case: Case, names: Sequence[str]) -> Part:
    segments = Segments.packed([len(case.tables[name]) for name in names], case.dim)
    rows, forward = (
        None if tables is None else torch.cat([tables[name] for name in names]).contiguous()
        for tables in (case.tables, case.forward)
    )
    assert rows is not None
    return Part(rows, segments, forward)
