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

import numpy as np
import torch
import torch.distributed as dist

from examples.sequences.data import HeldOutBatches, Sequences
from examples.sequences.model import TABLE
from examples.sequences.options import STOCK, build_parser, check_options, load_sequences, setup_of
from examples.sequences.trainer import Trainer, metrics_of, ranks_of, silence_start
from trec_qcomm import QComm
from trec_qcomm.lab import records
from trec_qcomm.testing import run_ranks


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
        dist.init_process_group("gloo")
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
    losses, stats = trainer.mean_losses(), None if qcomm is None else qcomm.stats()
    metrics = trainer.score()
    exact = {} if qcomm is None else trainer.score(exact=True)
    if dist.get_rank() == 0:
        name = f"{Path(options.config).stem}-{options.plan}-seed{options.seed}"
        path = options.out / f"{options.name or name}.jsonl"
        timed = trainer.step_s[10:] or trainer.step_s
        seconds = {f"p{q}": float(np.percentile(timed, q)) for q in (20, 50, 80) if timed}
        record = records.TrainingRecord.from_qcomm(
            qcomm,
            name=Path(options.config).stem,
            losses=losses,
            metrics=metrics,
            metrics_exact=exact,
            setup=setup_of(options),
            seed=options.seed,
            progressive_logloss=float(np.mean(losses)) if losses else None,
            step_s=records.Percentiles(**seconds) if seconds else None,
            steps=trainer.step,
            shardings={options.plan: 1},
            traffic=None if stats is None else records.traffic_of(stats, len(losses)),
        )
        records.append(path, record)
        bags = None if stats is None else stats.bags.tables[TABLE]
        if bags is not None and losses:
            ids = f"{bags.num_sent / len(losses):.0f} of {bags.num_bags / len(losses):.0f}"
            print(f"  distinct ids         {ids} a step")
        print_result(record, popularity_metrics(options, sequences), path)


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
    """Print bytes of rank 0 by kind of traffic, and a last line with the test."""
    for kind, traffic in (record.traffic or {}).items():
        if traffic.wire_nbytes:
            raw = traffic.raw_nbytes or traffic.distinct_nbytes or 0
            print(f"  {kind:<20} {raw / 1e3:.1f} -> {traffic.wire_nbytes / 1e3:.1f} KB a step")
    metrics, names = record.metrics, ("ndcg_10", "hit_rate_10")
    shown = ", ".join(f"{n} {metrics[n]:.4f} (popularity {popularity[n]:.4f})" for n in names)
    users, steps = int(metrics["num_users"]), record.steps
    print(f"{record.configuration}: {shown} of {users} users after {steps} steps; {path}")


if __name__ == "__main__":
    sys.exit(main())
