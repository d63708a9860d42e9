"""Numbers of a training: quality, step times, bytes by kind of traffic and by table.

Knows: a Trainer, QComm's counters. Does not know: files. Every rank calls the functions
that are marked "Collective".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from failures import gather
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc
from torchrec.metrics.calibration import compute_calibration, get_calibration_states
from torchrec.metrics.ne import compute_logloss, compute_ne, get_ne_states
from trainer import Trainer

from trec_qcomm.lab.records import (
    TRAFFIC_KINDS,
    Percentiles,
    TableTraffic,
    TrafficByKind,
    TrafficBytes,
    traffic_of,
)

_ETA = 1e-12  # predictions are kept this far from 0 and 1


def score(predictions: Tensor, labels: Tensor) -> dict[str, float]:
    """Return AUC, logloss (nats), normalized entropy and calibration.

    Where all labels are equal only logloss is defined; the others are left out.
    Args: predictions, labels: [N] float64, a probability and 0 or 1.
    """
    weights = torch.ones_like(labels)
    ne = get_ne_states(labels, predictions, weights, _ETA)
    calibration = get_calibration_states(labels, predictions, weights)
    sums = (ne["cross_entropy_sum"], ne["pos_labels"], ne["neg_labels"])
    bits = compute_logloss(*sums, _ETA)
    always = {"logloss": float(bits) * float(np.log(2)), "num_rows": len(labels)}
    if labels.min() == labels.max():
        return always
    return always | {
        "auc": float(binary_auroc(predictions, labels.long())),
        "ne": float(compute_ne(sums[0], ne["weighted_num_samples"], *sums[1:], _ETA)),
        "calibration": float(compute_calibration(*calibration.values())),
    }


def shown(metrics: Mapping[str, float], name: str, digits: int) -> str:
    """Return a metric as text; "n/a" where it is not defined."""
    return f"{metrics[name]:.{digits}f}" if name in metrics else "n/a"


def step_seconds(step_s: list[float], *, skip: int = 10) -> Percentiles | None:
    """Return percentiles of the steps' seconds without the first `skip`; None without a step."""
    timed = step_s[skip:] or step_s
    if not timed:
        return None
    return Percentiles(**{f"p{q}": float(np.percentile(timed, q)) for q in (20, 50, 80)})


def mean_traffic(trainer: Trainer) -> TrafficByKind | None:
    """Return the bytes that a rank sends to others in a step, the mean over ranks. Collective."""
    if trainer.qcomm is None or not trainer.losses:
        return None
    per_rank = gather(traffic_of(trainer.qcomm.stats(), len(trainer.losses)))
    return {kind: _mean([traffic[kind] for traffic in per_rank]) for kind in TRAFFIC_KINDS}


def table_records(trainer: Trainer) -> dict[str, TableTraffic] | None:
    """Return what each table sent in a step: None without the plugin or a step. Collective."""
    if trainer.qcomm is None or not trainer.losses:
        return None
    per_rank = gather((trainer.qcomm.stats().to_dict(), trainer.qcomm.forward_params()))
    divisor = len(trainer.losses) * len(per_rank)
    tables = sorted({t for stats, _ in per_rank for t in stats["embedding_forward"]["tables"]})
    return {table: _table_traffic(table, per_rank, divisor) for table in tables}


def _table_traffic(
    table: str, per_rank: list[tuple[dict[str, Any], dict[str, float]]], divisor: int
) -> TableTraffic:
    directions = {}
    for direction in ("forward", "backward"):
        rows = [stats[f"embedding_{direction}"]["tables"].get(table) for stats, _ in per_rank]
        directions[direction] = _bytes([row for row in rows if row], divisor)
    counts = [stats["input"]["bags"]["tables"].get(table) for stats, _ in per_rank]
    senders = [
        tolerances
        for stats, tolerances in per_rank
        if stats["embedding_forward"]["tables"].get(table, {}).get("wire_nbytes")
    ]
    return TableTraffic(
        **directions,
        num_bags=sum(count["num_bags"] for count in counts if count) / divisor,
        num_sent=sum(count["num_sent"] for count in counts if count) / divisor,
        tolerances=tuple(tolerances[table] for tolerances in senders if table in tolerances),
    )


def _bytes(counters: list[dict[str, Any]], divisor: int) -> TrafficBytes:
    """Sum counters of several ranks; a count that some rank lacks is None."""
    names = ("raw_nbytes", "distinct_nbytes", "wire_nbytes")
    known = [n for n in names if all(counter.get(n) is not None for counter in counters)]
    return TrafficBytes(**{n: sum(counter[n] for counter in counters) / divisor for n in known})


def _mean(per_rank: list[TrafficBytes]) -> TrafficBytes:
    return _bytes([vars(traffic) for traffic in per_rank], len(per_rank))


def count_shardings(trainer: Trainer) -> dict[str, int]:
    """Return the number of tables of each sharding type, which the planner may have chosen."""
    modules = trainer.dmp.plan.plan.values()
    return dict(Counter(table.sharding_type for tables in modules for table in tables.values()))
