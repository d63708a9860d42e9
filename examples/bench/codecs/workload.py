"""What the benches of codecs code: rows and gradients of a dump.

Knows: the files of `train.py --dump-rows`. Does not know: codecs, times.
Shapes: n samples, R rows of several tables, D values a row.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trec_qcomm.core.segments import Segments
from trec_qcomm.ops.batch.unique import BagBlocks, sum_by_bag, unique_bags

TRAIN = Path(__file__).resolve().parents[2] / "criteo" / "train.py"
# Small enough for a minute; the last 8192 samples are dumped.
TRAINING = "--config stock --ranks 1 --rows 20000 --min-count 1 --out"

Tables = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """What one rank's samples look up, by table: rows and gradients [n, D], ids [n]."""

    rows: Tables
    gradients: Tables
    ids: Tables


@dataclass(frozen=True)
class Workload:
    """Rows or gradients of the distinct ids of one batch.

    Args:
        data: name of the dump's file.
        seed: seed of its training.
        kind: "rows" or "gradients".
        dim: values of a row.
        tables: [n, D] by table.
        forward: the rows that gradients are gradients of, by table; None of rows.
    """

    data: str
    seed: int
    kind: str
    dim: int
    tables: Tables
    forward: Tables | None = None

    @property
    def raw_nbytes(self) -> int:
        """Bytes as float32."""
        return 4 * sum(rows.numel() for rows in self.tables.values())


@dataclass(frozen=True, eq=False)
class TableGroup:
    """Tables one behind the other.

    Args:
        rows: [R, D] float32.
        segments: a segment a table.
        forward: [R, D], the rows that gradients are gradients of; None of rows.
    """

    rows: Tensor
    segments: Segments
    forward: Tensor | None = None


def load(path: Path, num_samples: int) -> Batch:
    """Return the first samples of a dump. Raises ValueError: a file with fewer."""
    dump = torch.load(path, weights_only=True)
    available = len(next(iter(dump["ids"].values())))
    if available < num_samples:
        raise ValueError(f"{path}: {available} samples, {num_samples} are needed")
    kinds = ("rows", "gradients", "ids")
    return Batch(*({t: x[:num_samples] for t, x in dump[kind].items()} for kind in kinds))


def merged(batch: Batch) -> Batch:
    """Return each distinct bag once: its row, and the sum of its gradients."""
    rows, gradients, ids = {}, {}, {}
    for table, table_ids in batch.ids.items():
        n, dim = batch.rows[table].shape
        one = torch.ones(1, dtype=torch.float64)
        lengths = torch.ones(n, dtype=torch.int32)
        distinct = unique_bags(table_ids, lengths, torch.tensor([n]), one)
        count = len(distinct.first)
        places = (torch.tensor([x]) for x in (0, count, dim, 0, 0))
        sums = torch.empty(count * dim)
        sum_by_bag(batch.gradients[table], BagBlocks(*places), distinct.inverse[None], sums)
        rows[table] = batch.rows[table][distinct.first]
        gradients[table], ids[table] = sums.view(count, dim), table_ids[distinct.first]
    return Batch(rows, gradients, ids)


def read_workloads(path: Path, kinds: Sequence[str], num_samples: int) -> Iterator[Workload]:
    """Yield a workload a kind. Raises ValueError: a file that is no dump or has too few samples."""
    meta = torch.load(path, weights_only=True, mmap=True).get("meta", {})
    if "seed" not in meta:
        raise ValueError(f"{path}: no meta.seed; expected a file of train.py --dump-rows")
    batch = merged(load(path, num_samples))
    for kind in kinds:
        tables = getattr(batch, kind)
        forward = batch.rows if kind == "gradients" else None
        yield Workload(path.name, meta["seed"], kind, dim_of(path, tables), tables, forward)


def dim_of(path: Path, tables: Tables) -> int:
    """Return the dim of all tables. Raises ValueError: several, or values that are not finite."""
    dims = {table.shape[1] for table in tables.values()}
    if len(dims) != 1:
        raise ValueError(f"{path}: tables of dims {sorted(dims)}, expected one")
    for name, rows in tables.items():
        if rows.dtype != torch.float32 or not bool(rows.isfinite().all()):
            raise ValueError(f"{path}: {name}: expected finite float32: others carry no NaN")
    return dims.pop()


def train(folder: Path, dim: int, seed: int) -> Path:
    """Return the dump of a short training on synthetic rows; it is made unless it is there."""
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


def grouped(workload: Workload) -> TableGroup:
    """Return all tables, one behind the other, as the compressors take them."""
    tables = list(workload.tables.values())
    segments = Segments.packed([len(rows) for rows in tables], workload.dim)
    forward = workload.forward
    return TableGroup(
        torch.cat(tables).contiguous(),
        segments,
        None if forward is None else torch.cat([forward[name] for name in workload.tables]),
    )
