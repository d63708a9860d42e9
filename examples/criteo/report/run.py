"""What a run leaves behind: a progress bar, records, TensorBoard's scalars, a table at the end.

Knows: a Trainer, options of train.py. Does not know: how to train. Runs of one name follow one
another in one file of records: progress records, and one of the training (or of its interruption).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch.distributed as dist
from failures import gather
from options import setup_of
from tqdm import tqdm
from trainer import Trainer

from report.metrics import count_shardings, shown, step_seconds
from report.scalars import Scalars
from trec_qcomm.lab import records
from trec_qcomm.lab.records import TRAFFIC_KINDS, Environment, ProgressRecord, TrainingRecord

METRICS = ("auc", "logloss", "ne", "calibration")


class Report:
    """Progress and results of one run, written by rank 0; other ranks only take part in gathers."""

    def __init__(self, options: argparse.Namespace, *, first_step: int, num_steps: int) -> None:
        self.options, self.first_step = options, first_step
        self.is_writer = dist.get_rank() == 0
        default = f"{Path(options.config).stem}-{Path(options.plan).stem}-seed{options.seed}"
        self.name: str = options.name or default
        self.path: Path = options.out / f"{self.name}.jsonl"
        self.bar = tqdm(
            desc=self.name,
            unit="step",
            initial=first_step,
            total=num_steps,
            disable=not self.is_writer,
        )
        self.scalars: Scalars | None = None

    def __enter__(self) -> Report:
        if self.is_writer and self.options.tensorboard is not None:
            folder = self.options.tensorboard / self.name
            self.scalars = Scalars(folder, first_step=self.first_step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.bar.close()
        if self.scalars is not None:
            self.scalars.close()

    def add_step(self, trainer: Trainer) -> None:
        """Advance the bar; every --log-every steps show and write the loss and the bytes."""
        self.bar.update(1)
        if trainer.step % self.options.log_every:
            return
        losses = trainer.losses  # on every rank, or those of the others would stay unread
        if not self.is_writer:
            return
        loss = float(np.mean(losses[-self.options.log_every :]))
        step_s = step_seconds(trainer.step_s[-self.options.log_every :], skip=0)
        stats = None if trainer.qcomm is None else trainer.qcomm.stats()
        traffic = None if stats is None else records.traffic_of(stats, 1)
        self._write(
            ProgressRecord(
                **self._identity(),
                step=trainer.step,
                run=self.name,
                loss=loss,
                step_s=step_s,
                traffic=traffic,
            )
        )
        if self.scalars is not None:
            self.scalars.add_progress(trainer.step, loss, step_s, stats and stats.to_dict())
        sent = "-" if traffic is None else f"{_wire_nbytes(traffic) / 1e6:.1f} MB"
        self.bar.set_postfix_str(f"loss {loss:.4f}, sent {sent}")

    def interrupted(self, trainer: Trainer) -> None:
        """Say where a run that was told to stop can be resumed."""
        if self.is_writer:
            self._write(
                ProgressRecord(
                    **self._identity(), step=trainer.step, run=self.name, is_interrupted=True
                )
            )
            self._say(f"interrupted after step {trainer.step}; continue with --resume")

    def finish(
        self,
        trainer: Trainer,
        traffic: records.TrafficByKind | None,
        tables: dict[str, records.TableTraffic] | None,
        metrics: dict[str, dict[str, float]],
    ) -> None:
        """Write the record of the training and print its table. Collective.

        Args:
            traffic, tables: bytes of the training's steps, without those of the evaluation.
            metrics: metrics of the test by mode, see train.evaluate.
        """
        losses = [float(np.mean(step)) for step in zip(*gather(trainer.losses), strict=True)]
        if not self.is_writer:
            return
        is_stock = trainer.qcomm is None
        record = TrainingRecord(
            **self._identity(),
            environment=Environment.current(repository=Path(__file__).parent),
            steps=trainer.step,
            num_ranks=dist.get_world_size(),
            losses=tuple(losses),
            metrics=metrics.get("off" if is_stock else "on", {}),
            metrics_exact={} if is_stock else metrics.get("off", {}),
            progressive_logloss=float(np.mean(losses)) if losses else None,
            step_s=step_seconds(trainer.step_s),
            traffic=traffic,
            tables=tables,
            shardings=count_shardings(trainer),
            run=self.name,
        )
        self._write(record)
        if self.scalars is not None:
            self.scalars.add_metrics(trainer.step, metrics)
        self._say(format_training(record))
        first = next(iter(metrics.values()))
        self._say(
            f"{self.name}: AUC {shown(first, 'auc', 4)}, logloss {shown(first, 'logloss', 4)} on "
            f"{first['num_rows']} test rows after {trainer.step} steps; {self.path}"
        )

    def _identity(self) -> dict[str, Any]:
        """Return the fields that all records of this run share."""
        file = Path(self.options.config)
        return {
            "configuration": file.stem,
            "config": file.read_text() if file.is_file() else None,
            "setup": setup_of(self.options),
            "seed": self.options.seed,
            "time": time.time(),
        }

    def _write(self, record: records.Record) -> None:
        records.append(self.path, record)

    def _say(self, text: str) -> None:
        self.bar.close()
        print(text, flush=True)


def format_training(record: TrainingRecord) -> str:
    """Return the table of one training."""
    rows = []
    trained = "plain TorchRec" if record.config is None else "codec on"
    for mode, metrics in ((trained, record.metrics), ("codec off", record.metrics_exact)):
        rows += [(f"{name} ({mode})", shown(metrics, name, 5)) for name in METRICS if metrics]
    step_s = record.step_s
    times = f"{_ms(step_s.p20)} / {_ms(step_s.p50)} / {_ms(step_s.p80)}" if step_s else "-"
    rows.append(("step p20 / p50 / p80 [ms]", times))
    shardings = (record.shardings or {}).items()
    rows.append(("tables by sharding", ", ".join(f"{n} {sharding}" for sharding, n in shardings)))
    for kind in TRAFFIC_KINDS:
        traffic = (record.traffic or {}).get(kind)
        rows.append((f"{kind} raw -> wire [KB/step]", "-" if traffic is None else _kb(traffic)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def _kb(traffic: records.TrafficBytes) -> str:
    raw = traffic.distinct_nbytes if traffic.raw_nbytes is None else traffic.raw_nbytes
    return f"{(raw or 0) / 1e3:.1f} -> {traffic.wire_nbytes / 1e3:.1f}"


def _wire_nbytes(traffic: records.TrafficByKind) -> float:
    return sum(counted.wire_nbytes for counted in traffic.values())
