"""Trains SASRec on sequences of items with trec_qcomm, or with plain TorchRec, and scores it.

  python -m examples.sequences.train --config best                 synthetic users, 2 ranks
  python -m examples.sequences.train --config stock                without the plugin
  python -m examples.sequences.train --config best --data ml-1m/ratings.dat --epochs 20 --dim 64
  python -m examples.sequences.train --config my.yaml --plan table_wise --ranks 4
  torchrun --nproc-per-node 2 -m examples.sequences.train --config stock

Run it in the repository's root. The test is each user's last item, ranked among all items that the
user has not seen. A run is a record in --out, which python -m trec_qcomm report draws. Where RANK
is set (torchrun) this process is that rank; else it starts --ranks processes itself.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from examples.sequences.data import HeldOutBatches, Sequences
from examples.sequences.metrics import metrics_of, ranks_of
from examples.sequences.model import TABLE
from examples.sequences.options import (
    STOCK,
    build_parser,
    check_options,
    load_sequences,
    setup_of,
)
from examples.sequences.trainer import Trainer, gather, silence_start
from trec_qcomm import QComm
from trec_qcomm.lab import records
from trec_qcomm.testing import run_ranks

NBYTES, BAGS = ("raw_nbytes", "distinct_nbytes", "wire_nbytes"), ("num_bags", "num_sent")


def main() -> int:
    """Train as the command line says; the exit status is 2 for wrong options, 130 after Ctrl-C."""
    parser = build_parser(__doc__)
    options = parser.parse_args()
    try:
        check_options(options)
        sequences = load_sequences(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if "RANK" in os.environ:
        backend = "gloo" if options.device == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend)
        run(options, sequences)
        dist.destroy_process_group()
        return 0
    try:
        run_ranks(run, options.ranks, options, sequences, timeout_s=options.timeout)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def run(options: argparse.Namespace, sequences: Sequences) -> None:
    """Train, score and record, on this rank. Collective."""
    silence_start()
    qcomm = None if options.config in STOCK else QComm.from_yaml(options.config)
    trainer = Trainer.build(options, sequences, qcomm)
    if options.resume:
        trainer.resume(options.checkpoint_dir)
    trainer.train(show_progress=dist.get_rank() == 0)
    sent = sent_of(trainer)
    losses, metrics = trainer.mean_losses(), trainer.score()
    exact = {} if qcomm is None else trainer.score(exact=True)
    if dist.get_rank() == 0:
        path = options.out / f"{name_of(options)}.jsonl"
        record = records.TrainingRecord.from_qcomm(
            qcomm,
            name=Path(options.config).stem,
            losses=losses,
            metrics=metrics,
            metrics_exact=exact,
            setup=setup_of(options),
            seed=options.seed,
            progressive_logloss=float(np.mean(losses)) if losses else None,
            step_s=records.Percentiles(**percentiles(trainer.step_s)) if losses else None,
            steps=trainer.step,
            shardings={options.plan: 1},
            **sent,
        )
        records.append(path, record)
        print_result(record, popularity_metrics(options, sequences), path)


def sent_of(trainer: Trainer) -> dict[str, Any]:
    """Return the fields `traffic` and `tables` of a record, the means over ranks. Collective.

    They are empty without the plugin, or without a step.
    """
    if trainer.qcomm is None or not trainer.losses:
        return {}
    steps, stats = len(trainer.losses), gather(trainer.qcomm.stats())
    by_rank = [records.traffic_of(one, steps) for one in stats]
    traffic = {k: _mean([vars(one[k]) for one in by_rank], len(stats)) for k in by_rank[0]}
    divisor, rows = steps * len(stats), {}
    for kind in ("forward", "backward"):
        tables = [getattr(one, f"embedding_{kind}").tables for one in stats]
        rows[kind] = _mean([vars(of_rank[TABLE]) for of_rank in tables if of_rank], divisor)
    bags = {name: sum(getattr(one.bags, name) for one in stats) / divisor for name in BAGS}
    return {"traffic": traffic, "tables": {TABLE: records.TableTraffic(**rows, **bags)}}


def _mean(counted: list[dict[str, Any]], divisor: int) -> records.TrafficBytes:
    """Return sums over ranks by a divisor; a count that some rank lacks is None."""
    known = [name for name in NBYTES if all(one.get(name) is not None for one in counted)]
    return records.TrafficBytes(**{n: sum(one[n] for one in counted) / divisor for n in known})


def popularity_metrics(options: argparse.Namespace, sequences: Sequences) -> dict[str, float]:
    """Return what the most popular items reach, the same for all users."""
    scores = torch.from_numpy(sequences.popularity()).double()
    tests = HeldOutBatches(sequences, options.batch_size, options.length, options.part, 0, 1)
    ranks = [
        ranks_of(scores.expand(len(test.targets), -1), test.targets, test.seen)
        for test in (tests[index] for index in range(len(tests)))
    ]
    joined = torch.cat(ranks)
    return metrics_of(joined, torch.zeros(len(joined)))


def print_result(record: records.TrainingRecord, popularity: dict[str, float], path: Path) -> None:
    """Print bytes by kind of traffic, and a last line with the test."""
    for kind, traffic in (record.traffic or {}).items():
        if traffic.wire_nbytes:
            raw = traffic.raw_nbytes or traffic.distinct_nbytes or 0
            sent = f"{raw / 1e3:.1f} -> {traffic.wire_nbytes / 1e3:.1f} KB a step"
            print(f"  {kind:<20} {sent}")
    table = (record.tables or {}).get(TABLE)
    if table is not None and table.num_bags:
        print(f"  distinct ids         {table.num_sent:.0f} of {table.num_bags:.0f} a step")
    metrics, names = record.metrics, ("ndcg_10", "hit_rate_10")
    shown = ", ".join(f"{n} {metrics[n]:.4f} (popularity {popularity[n]:.4f})" for n in names)
    users, steps = int(metrics["num_users"]), record.steps
    print(f"{record.configuration}: {shown} of {users} users after {steps} steps; {path}")


def percentiles(seconds: list[float]) -> dict[str, float]:
    timed = seconds[10:] or seconds
    return {f"p{q}": float(np.percentile(timed, q)) for q in (20, 50, 80)}


def name_of(options: argparse.Namespace) -> str:
    return options.name or f"{Path(options.config).stem}-{options.plan}-seed{options.seed}"


if __name__ == "__main__":
    sys.exit(main())
