"""Scalars of a run in TensorBoard, each --log-every steps.

    train/loss, train/step_ms        means and medians since the last record
    sent_nbytes/KIND, ratio/KIND     a step, since the last record; float32 bytes over those sent
    table_ratio/KIND/TABLE           the same ratio of each table
    max_abs_err/KIND/TABLE           since the start or the resume, with measure_error in the config
    bags_sent/TABLE                  share of the bags that were sent, where equal ones merge
    test_MODE/METRIC                 at the end; MODE: the codec on or off

All but the metrics are rank 0's own. Knows: QComm's counters. Does not know: process groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trec_qcomm.lab.records import Percentiles

Stats = dict[str, Any]


def check_installed() -> None:
    """Raise ValueError, with the remedy, where the package is missing."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"tensorboard: cannot be imported ({error}); pip install tensorboard, or leave the "
            "option out"
        ) from error


class Scalars:
    """One run's folder of events, written by one process.

    Args:
        folder: a folder for this run alone; TensorBoard shows folders side by side.
        first_step: number of steps done before this process, 0 or those of the checkpoint. What an
            earlier process wrote of later steps is no longer shown.
    """

    def __init__(self, folder: Path, *, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Typed in part only.
        self._writer: Any = SummaryWriter(folder, purge_step=first_step + 1)  # type: ignore[no-untyped-call]
        self._step, self._stats = first_step, {}  # where the progress before was

    def add_progress(
        self, step: int, loss: float, step_s: Percentiles | None, stats: Stats | None
    ) -> None:
        """Add what a progress record says, and rates since the one before.

        Args:
            step: steps done.
            loss: mean loss since the progress before.
            step_s: seconds of these steps.
            stats: `QComm.stats().to_dict()`; None of plain TorchRec.
        """
        self._add("train/loss", loss, step)
        if step_s is not None:
            self._add("train/step_ms", 1e3 * step_s.p50, step)
        stats = stats or {}
        for kind, now in stats.items():
            for tag, value in rates(kind, now, self._stats.get(kind, {}), step - self._step):
                self._add(tag, value, step)
        self._step, self._stats = step, stats
        self._writer.flush()

    def add_metrics(self, step: int, metrics: dict[str, dict[str, float]]) -> None:
        """Add the metrics of the test, by mode ("on", "off") and name."""
        for mode, values in metrics.items():
            for name, value in values.items():
                if name != "num_rows":
                    self._add(f"test_{mode}/{name}", value, step)

    def close(self) -> None:
        """Write what was added to disk."""
        self._writer.close()

    def _add(self, tag: str, value: float, step: int) -> None:
        self._writer.add_scalar(tag, value, step)


def rates(kind: str, now: Stats, before: Stats, num_steps: int) -> Iterator[tuple[str, float]]:
    """Yield (tag, value) of one kind of traffic.

    Args:
        kind: name of the kind.
        now, before: counters of QComm.stats, `before` is empty at the start.
        num_steps: steps between the two.
    """
    raw, wire = _gained(now, before)
    if wire:
        yield f"sent_nbytes/{kind}", wire / num_steps
        yield f"ratio/{kind}", raw / wire
    tables = before.get("tables", {})
    for table, counters in now["tables"].items():
        raw, wire = _gained(counters, tables.get(table, {}))
        if wire:
            yield f"table_ratio/{kind}/{table}", raw / wire
        if counters["max_abs_err"] is not None:
            yield f"max_abs_err/{kind}/{table}", counters["max_abs_err"]
    bags = before.get("bags", {}).get("tables", {})
    for table, counters in now.get("bags", {}).get("tables", {}).items():
        earlier = bags.get(table, {})
        num_bags, num_sent = (
            counters[name] - earlier.get(name, 0) for name in ("num_bags", "num_sent")
        )
        if num_bags:
            yield f"bags_sent/{table}", num_sent / num_bags


def _gained(now: Stats, before: Stats) -> tuple[int, int]:
    """Return raw_nbytes, wire_nbytes since `before`."""
    raw, wire = (now[name] - before.get(name, 0) for name in ("raw_nbytes", "wire_nbytes"))
    return raw, wire
