"""What a run leaves behind: a progress bar, records, TensorBoard's scalars, a table at the end.

Knows: a Trainer, options of train.py, QComm's counters. Does not know: how to train. Runs of one
name follow one another in one file of records: progress records, and one of the training (or of its
interruption). Every rank calls the functions that are marked "Collective".
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from compare import format_table
from options import setup_of
from ranks import gather
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc
from torchrec.metrics.calibration import compute_calibration, get_calibration_states
from torchrec.metrics.ne import compute_logloss, compute_ne, get_ne_states
from tqdm import tqdm
from trainer import Trainer

from trec_qcomm import DeltaExport
from trec_qcomm.lab import records
from trec_qcomm.lab.records import (
    TRAFFIC_KINDS,
    Environment,
    Percentiles,
    ProgressRecord,
    TableTraffic,
    TrafficBytes,
    TrainingRecord,
    traffic_of,
)

METRICS = ("auc", "logloss", "ne", "calibration")
_ETA = 1e-12  # predictions are kept this far from 0 and 1
_NBYTES = ("raw_nbytes", "distinct_nbytes", "wire_nbytes")


def score(predictions: Tensor, labels: Tensor) -> dict[str, float]:
    """Return AUC, logloss (nats), normalized entropy and calibration.

    Where all labels are equal only logloss is defined; the others are left out.
    Args: predictions, labels: [N] float64, a probability and 0 or 1.
    """
    ones = labels * 0 + 1
    ne = get_ne_states(labels, predictions, ones, _ETA)
    sums = (ne["cross_entropy_sum"], ne["pos_labels"], ne["neg_labels"])
    nats = float(compute_logloss(*sums, _ETA)) * float(np.log(2))
    always = {"logloss": nats, "num_rows": len(labels)}
    if labels.min() == labels.max():
        return always
    calibration = get_calibration_states(labels, predictions, ones).values()
    return always | {
        "auc": float(binary_auroc(predictions, labels.long())),
        "ne": float(compute_ne(sums[0], ne["weighted_num_samples"], *sums[1:], _ETA)),
        "calibration": float(compute_calibration(*calibration)),
    }


def shown(metrics: Mapping[str, float], name: str, digits: int) -> str:
    """Return a metric as text; "n/a" where it is not defined."""
    return f"{metrics[name]:.{digits}f}" if name in metrics else "n/a"


def step_seconds(step_s: Sequence[float], *, skip: int = 10) -> Percentiles | None:
    """Return percentiles of the steps' seconds without the first `skip`; None without a step."""
    timed = step_s[skip:] or step_s
    if not timed:
        return None
    return Percentiles(**{f"p{q}": float(np.percentile(timed, q)) for q in (20, 50, 80)})


def traffic_fields(trainer: Trainer) -> dict[str, Any]:
    """Return the fields `traffic` and `tables` of a record, bytes of a step. Collective.

    They are means over ranks of what a rank sends to the others; without the plugin, or without a
    step, there are none.
    """
    num_steps = len(trainer.losses)
    if trainer.qcomm is None or not num_steps:
        return {}
    stats = trainer.qcomm.stats()
    sent = (traffic_of(stats, num_steps), stats.to_dict(), trainer.qcomm.forward_params())
    per_rank = gather(sent)
    num_ranks = len(per_rank)
    traffic = {
        k: _bytes([vars(sent[k]) for sent, *_ in per_rank], num_ranks) for k in TRAFFIC_KINDS
    }
    names = sorted({t for _, stats, _ in per_rank for t in stats["embedding_forward"]["tables"]})
    by_table = {name: _table_traffic(name, per_rank, num_steps * num_ranks) for name in names}
    return {"traffic": traffic, "tables": by_table}


def _table_traffic(table: str, per_rank: Sequence[Any], divisor: int) -> TableTraffic:
    forward, backward = (
        [stats[f"embedding_{direction}"]["tables"].get(table) for _, stats, _ in per_rank]
        for direction in ("forward", "backward")
    )
    bags = [stats["input"]["bags"]["tables"].get(table, {}) for _, stats, _ in per_rank]
    counts = {n: sum(b.get(n, 0) for b in bags) / divisor for n in ("num_bags", "num_sent")}
    tolerances = [
        of_rank[table]
        for counters, (*_, of_rank) in zip(forward, per_rank, strict=True)
        if counters and counters["wire_nbytes"] and table in of_rank
    ]
    return TableTraffic(
        forward=_bytes([counters for counters in forward if counters], divisor),
        backward=_bytes([counters for counters in backward if counters], divisor),
        tolerances=tuple(tolerances),
        **counts,
    )


def _bytes(counters: Sequence[Mapping[str, Any]], divisor: int) -> TrafficBytes:
    """Sum counters of several ranks; a count that some rank lacks is None."""
    known = [n for n in _NBYTES if all(counter.get(n) is not None for counter in counters)]
    return TrafficBytes(**{n: sum(counter[n] for counter in counters) / divisor for n in known})


class Report:
    """Progress and results of one run, written by rank 0; other ranks only take part in gathers.

    TensorBoard gets of each --log-every steps the loss and the median time of a step, and since the
    start the bytes that rank 0 has sent, and float32 bytes over those sent; at the end the metrics.
    """

    def __init__(self, options: argparse.Namespace, *, first_step: int, num_steps: int) -> None:
        self.options, self.is_writer = options, dist.get_rank() == 0
        default = f"{Path(options.config).stem}-{Path(options.plan).stem}-seed{options.seed}"
        self.name: str = options.name or default
        self.path: Path = options.out / f"{self.name}.jsonl"
        counts = {"initial": first_step, "total": num_steps, "unit": "step"}
        self.bar = tqdm(desc=self.name, disable=not self.is_writer, **counts)
        self.scalars: Any = None
        if self.is_writer and options.tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            folder = options.tensorboard / self.name  # what came after the checkpoint is not shown
            self.scalars = SummaryWriter(folder, purge_step=first_step + 1)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
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
        traffic = None if trainer.qcomm is None else traffic_of(trainer.qcomm.stats(), 1)
        progress = {"loss": loss, "step_s": step_s, "traffic": traffic}
        self._write(ProgressRecord(**self._identity(trainer), **progress))
        self._add_scalars("train", trainer.step, {"loss": loss, "step_ms": 1e3 * step_s.p50})
        for kind, sent in (traffic or {}).items():
            if sent.wire_nbytes:
                self._add_scalars("sent_nbytes", trainer.step, {kind: sent.wire_nbytes})
                ratio = (sent.raw_nbytes or 0) / sent.wire_nbytes
                self._add_scalars("ratio", trainer.step, {kind: ratio})
        nbytes = sum(sent.wire_nbytes for sent in (traffic or {}).values())
        told = "-" if traffic is None else f"{nbytes / 1e6:.1f} MB"
        self.bar.set_postfix_str(f"loss {loss:.4f}, sent {told}")

    def add_export(self, export: DeltaExport) -> None:
        """Write the rows of this rank that changed, and say how long it took."""
        begin = time.perf_counter()
        path = export.write(self.options.deltas)
        took = f"{path.stat().st_size / 1e3:.1f} KB in {time.perf_counter() - begin:.3f} s"
        self.bar.write(f"{path}: {took}")

    def interrupted(self, trainer: Trainer) -> None:
        """Say where a run that was told to stop can be resumed."""
        if self.is_writer:
            self._write(ProgressRecord(**self._identity(trainer), is_interrupted=True))
            self._say(f"interrupted after step {trainer.step}; continue with --resume")

    def finish(
        self, trainer: Trainer, sent: dict[str, Any], metrics: dict[str, dict[str, float]]
    ) -> None:
        """Write the record of the training and print its table. Collective.

        Args:
            sent: traffic_fields at the end of the training, without the evaluation.
            metrics: metrics of the test by mode: with the codec "on" or "off".
        """
        losses = [float(np.mean(step)) for step in zip(*gather(trainer.losses), strict=True)]
        if not self.is_writer:
            return
        is_stock, identity = trainer.qcomm is None, self._identity(trainer)
        shardings = (t.sharding_type for m in trainer.dmp.plan.plan.values() for t in m.values())
        record = TrainingRecord(
            steps=identity.pop("step"),
            **identity,
            environment=Environment.current(repository=Path(__file__).parent),
            choice=records.choice_of(trainer.qcomm),
            num_ranks=dist.get_world_size(),
            losses=tuple(losses),
            metrics=metrics.get("off" if is_stock else "on", {}),
            metrics_exact={} if is_stock else metrics.get("off", {}),
            progressive_logloss=float(np.mean(losses)) if losses else None,
            step_s=step_seconds(trainer.step_s),
            shardings=dict(Counter(shardings)),
            **sent,
        )
        self._write(record)
        for mode, values in metrics.items():
            known = {name: values[name] for name in METRICS if name in values}
            self._add_scalars(f"test_{mode}", trainer.step, known)
        rows = [record]
        if record.metrics and record.metrics_exact:
            off = {"metrics": record.metrics_exact, "configuration": "codec off"}
            rows.append(replace(record, **off))
        self._say(format_table(rows))
        first = next(iter(metrics.values()))
        self._say(
            f"{self.name}: AUC {shown(first, 'auc', 4)}, logloss {shown(first, 'logloss', 4)} on "
            f"{first['num_rows']} test rows after {trainer.step} steps; {self.path}"
        )

    def _identity(self, trainer: Trainer) -> dict[str, Any]:
        """Return the fields that all records of this run share, and the step."""
        file = Path(self.options.config)
        return {
            "configuration": file.stem, "config": file.read_text() if file.is_file() else None,
            "setup": setup_of(self.options), "seed": self.options.seed, "time": time.time(),
            "run": self.name, "step": trainer.step,
        }  # fmt: skip

    def _write(self, record: records.Record) -> None:
        records.append(self.path, record)

    def _add_scalars(self, group: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items() if self.scalars is not None else ():
            self.scalars.add_scalar(f"{group}/{name}", value, step)

    def _say(self, text: str) -> None:
        self.bar.close()
        print(text, flush=True)
