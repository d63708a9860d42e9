"""What a run leaves behind: metrics, a progress bar, one JSON object a measurement, a table.

Knows: what a Trainer has measured. Does not know: how to train. A file of records has "progress"
objects and one "final" (or "interrupted") a run; runs of one name follow one another in it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
import torch
import torch.distributed as dist
from loop import Trainer
from scalars import Scalars
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc
from torchrec.metrics.calibration import compute_calibration, get_calibration_states
from torchrec.metrics.ne import compute_logloss, compute_ne, get_ne_states
from tqdm import tqdm

TRAFFIC_KINDS = (
    "embedding_forward", "embedding_backward", "intra_embedding_forward",
    "intra_embedding_backward", "dense", "data_parallel", "input",
)  # fmt: skip
_ETA = 1e-12  # predictions are kept this far from 0 and 1
METRICS = ("auc", "logloss", "ne", "calibration")

Traffic = dict[str, dict[str, float]]


def score(predictions: Tensor, labels: Tensor) -> dict[str, float]:
    """AUC, logloss (nats), normalized entropy and calibration of predictions [N] for labels [N]."""
    weights = torch.ones_like(labels)
    ne = get_ne_states(labels, predictions, weights, _ETA)
    calibration = get_calibration_states(labels, predictions, weights)
    sums = (ne["cross_entropy_sum"], ne["pos_labels"], ne["neg_labels"])
    bits = compute_logloss(*sums, _ETA)
    return {
        "auc": float(binary_auroc(predictions, labels.long())),
        "logloss": float(bits) * float(np.log(2)),
        "ne": float(compute_ne(sums[0], ne["weighted_num_samples"], *sums[1:], _ETA)),
        "calibration": float(compute_calibration(*calibration.values())),
        "num_rows": len(labels),
    }


def step_ms(step_s: list[float], *, skip: int = 10) -> dict[str, float]:
    """The 20th, 50th and 80th percentile of step times in ms, without the first `skip` steps.

    Without any step there are none.
    """
    timed = step_s[skip:] or step_s
    if not timed:
        return {}
    return {f"p{q}": float(np.percentile(timed, q)) * 1e3 for q in (20, 50, 80)}


def mean_traffic(trainer: Trainer) -> Traffic | None:
    """Bytes a step that a rank sends to others, by kind, the mean over ranks. Collective."""
    if trainer.qcomm is None or not trainer.losses:
        return None
    per_rank = gather(trainer.qcomm.stats().to_dict())
    divisor = len(trainer.losses) * len(per_rank)
    return {
        kind: {
            name: sum(stats[kind][name] for stats in per_rank) / divisor
            for name in ("raw_nbytes", "wire_nbytes")
        }
        for kind in TRAFFIC_KINDS
    }


def table_records(trainer: Trainer) -> dict[str, dict[str, Any]] | None:
    """What each table sent in a step: None without the plugin, or without a step. Collective.

    By table: raw_nbytes and wire_nbytes, {"forward": ..., "backward": ...}, the mean over ranks,
    without the headers of frames; num_bags and num_sent, likewise: the bags of ids that there were
    and how many were sent, 0 where none are merged; params: of each rank that sent rows, the error
    bound or threshold at the end of the training, without those that have none.
    """
    if trainer.qcomm is None or not trainer.losses:
        return None
    per_rank = gather((trainer.qcomm.stats().to_dict(), trainer.qcomm.forward_params()))
    divisor = len(trainer.losses) * len(per_rank)
    tables = sorted({t for stats, _ in per_rank for t in stats["embedding_forward"]["tables"]})
    return {table: _table_record(table, per_rank, divisor) for table in tables}


def _table_record(
    table: str, per_rank: list[tuple[dict[str, Any], dict[str, float]]], divisor: int
) -> dict[str, Any]:
    record: dict[str, Any] = {"raw_nbytes": {}, "wire_nbytes": {}}
    for direction in ("forward", "backward"):
        rows = [stats[f"embedding_{direction}"]["tables"].get(table) for stats, _ in per_rank]
        for name in ("raw_nbytes", "wire_nbytes"):
            record[name][direction] = sum(row[name] for row in rows if row) / divisor
    bags = [stats["input"]["bags"]["tables"].get(table) for stats, _ in per_rank]
    for name in ("num_bags", "num_sent"):
        record[name] = sum(row[name] for row in bags if row) / divisor
    senders = [
        params
        for stats, params in per_rank
        if stats["embedding_forward"]["tables"].get(table, {}).get("raw_nbytes")
    ]
    return record | {"params": [params[table] for params in senders if table in params]}


def count_shardings(trainer: Trainer) -> dict[str, int]:
    """How many tables are sharded in each way, which is news after a plan of the planner."""
    modules = trainer.dmp.plan.plan.values()
    return dict(Counter(table.sharding_type for tables in modules for table in tables.values()))


class Report:
    """Progress and results of one run, written by rank 0; other ranks only take part in gathers."""

    def __init__(self, options: argparse.Namespace, *, first_step: int, num_steps: int) -> None:
        self.options = options
        self.is_writer = dist.get_rank() == 0
        default = f"{Path(options.config).stem}-{Path(options.plan).stem}-seed{options.seed}"
        self.name = options.name or default
        self.path: Path = options.out / f"{self.name}.jsonl"
        self.bar = tqdm(
            desc=self.name,
            unit="step",
            initial=first_step,
            total=num_steps,
            disable=not self.is_writer,
        )
        self.first_step = first_step
        self.file: TextIO | None = None
        self.scalars: Scalars | None = None

    def __enter__(self) -> Report:
        if self.is_writer:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = self.path.open("a")
            if self.options.tensorboard is not None:
                folder = self.options.tensorboard / self.name
                self.scalars = Scalars(folder, first_step=self.first_step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.bar.close()
        if self.file is not None:
            self.file.close()
        if self.scalars is not None:
            self.scalars.close()

    def add_step(self, trainer: Trainer) -> None:
        """Advance the bar; every --log-every steps show and write the loss and the bytes."""
        self.bar.update(1)
        if not self.is_writer or trainer.step % self.options.log_every:
            return
        record: dict[str, Any] = {
            "kind": "progress",
            "step": trainer.step,
            "loss": float(np.mean(trainer.losses[-self.options.log_every :])),
            "step_ms": step_ms(trainer.step_s[-self.options.log_every :], skip=0),
            "nbytes": None if trainer.qcomm is None else trainer.qcomm.stats().to_dict(),
        }
        self._write(record)
        if self.scalars is not None:
            self.scalars.add_progress(record)
        self.bar.set_postfix_str(f"loss {record['loss']:.4f}, sent {_sent(record['nbytes'])}")

    def interrupted(self, trainer: Trainer) -> None:
        """Say where a run that was told to stop can be resumed."""
        self._write({"kind": "interrupted", "step": trainer.step})
        self._say(f"interrupted after step {trainer.step}; continue with --resume")

    def finish(
        self,
        trainer: Trainer,
        traffic: Traffic | None,
        tables: dict[str, dict[str, Any]] | None,
        metrics: dict[str, dict[str, float]],
    ) -> None:
        """Write the final record and print the table; `traffic` and `tables` are the training's.
        Collective."""
        losses = [float(np.mean(step)) for step in zip(*gather(trainer.losses), strict=True)]
        record = describe_run(self.options) | {
            "kind": "final",
            "step": trainer.step,
            "metrics": metrics,
            "progressive_logloss": float(np.mean(losses)) if losses else None,
            "losses": losses,
            "losses_sha256": hashlib.sha256(json.dumps(losses).encode()).hexdigest(),
            "step_ms": step_ms(trainer.step_s),
            "nbytes_per_step": traffic,
            "tables": tables,
            "shardings": count_shardings(trainer),
        }
        self._write(record)
        if self.scalars is not None:
            self.scalars.add_final(record)
        self._say(format_run(record))
        first = next(iter(metrics.values()))
        self._say(
            f"{self.name}: AUC {first['auc']:.4f}, logloss {first['logloss']:.4f} on "
            f"{first['num_rows']} test rows after {trainer.step} steps; {self.path}"
        )

    def _write(self, record: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(record | {"name": self.name, "time": time.time()}) + "\n")
            self.file.flush()

    def _say(self, text: str) -> None:
        if self.is_writer:
            self.bar.close()
            print(text, flush=True)


def describe_run(options: argparse.Namespace) -> dict[str, Any]:
    """What is needed to run it again: options, commit, versions, machine."""
    return {
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()},
        "config": Path(options.config).read_text() if Path(options.config).is_file() else None,
        **describe_machine(),
        "world_size": dist.get_world_size(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def describe_machine() -> dict[str, Any]:
    """What any measurement should say: commit, versions, machine."""
    packages = ("torch", "torchrec", "torchmetrics", "numpy")
    return {
        "commit": commit(),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in packages},
        "hardware": {"cpu": platform.machine(), "num_cpus": os.cpu_count()},
    }


def format_run(record: dict[str, Any]) -> str:
    """The table of one run."""
    rows = []
    for mode, metrics in record["metrics"].items():
        rows += [(f"{name} (codec {mode})", f"{metrics[name]:.5f}") for name in METRICS]
    times = " / ".join(f"{value:.1f}" for value in record["step_ms"].values()) or "-"
    rows.append(("step p20 / p50 / p80 [ms]", times))
    kinds = ", ".join(f"{count} {kind}" for kind, count in record["shardings"].items())
    rows.append(("tables by sharding", kinds))
    for kind in TRAFFIC_KINDS:
        sizes = (record["nbytes_per_step"] or {}).get(kind)
        rows.append((f"{kind} raw -> wire [KB/step]", "-" if sizes is None else _sizes(sizes)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def gather(value: Any) -> list[Any]:
    """The value of every rank, in rank order. Collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _sizes(sizes: Mapping[str, float]) -> str:
    return f"{sizes['raw_nbytes'] / 1e3:.1f} -> {sizes['wire_nbytes'] / 1e3:.1f}"


def _sent(nbytes: dict[str, dict[str, int]] | None) -> str:
    if nbytes is None:
        return "-"
    return f"{sum(nbytes[kind]['wire_nbytes'] for kind in TRAFFIC_KINDS) / 1e6:.1f} MB"


def commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
