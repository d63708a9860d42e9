"""Bytes that the sync of 2D parallelism sends, counted by the kernel: stock's and coded ones.

  torchrun --nproc-per-node 4 examples/criteo/sync_bytes.py --data train.txt
  torchrun --nproc-per-node 4 examples/criteo/sync_bytes.py --syncs '{}' '{"every": 4}'

Every rank runs this once; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which it is. Ranks are
2 replicas of all tables. For stock's average of whole tables, and for each `sync` section, the
model of train.py takes --num-steps steps after one that is not counted, in which replicas become
equal. Bytes are those that the network interface ($GLOO_SOCKET_IFNAME; default lo, where all ranks
count together) sends between barriers around the sync, of the rank that sends the most, with the
headers of TCP; `counted` is what trec_qcomm counts. The options of data and model are train.py's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from data.dataset import Dataset
from emulation.client import batches
from replicas import INT8
from replicated.client import ReplicatedTrainer, run_on_cpu
from train import load_dataset

from trec_qcomm import Config
from trec_qcomm.config import config_from_dict, load_preset


def main() -> int:
    """Measure each section in turn; rank 0 prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--syncs", nargs="+", default=["{}", INT8], help="sections as JSON")
    parser.add_argument("--num-steps", type=int, default=8, help="counted steps (default 8)")
    arguments, rest = parser.parse_known_args()
    run_on_cpu()
    dist.init_process_group("gloo")
    train = ReplicatedTrainer.from_words([*rest, "--ranks", str(dist.get_world_size())])
    train.check({})
    configs = {"stock": load_preset("fp32")} | {
        text: config_from_dict({"sync": json.loads(text)}) for text in arguments.syncs
    }
    dataset = load_dataset(train.options)
    rows = [measured(train, c, dataset, arguments.num_steps) for c in configs.values()]
    if dist.get_rank() == 0:
        head = "| sync | sent a step | counted | times less | seconds a step |"
        print(f"{head}\n|---|---|---|---|---|")
        for name, (sent, counted, seconds) in zip(configs, rows, strict=True):
            less = rows[0][0] / sent
            print(f"| {name} | {sent:.0f} | {counted:.0f} | {less:.1f} | {seconds:.4f} |")
    dist.destroy_process_group()
    return 0


def measured(
    train: ReplicatedTrainer, config: Config, dataset: Dataset, num_steps: int
) -> tuple[float, ...]:
    """Return bytes by the kernel, bytes that we count and seconds, each of one step. Collective."""
    trainer = train.shard(train.options, dataset.num_embeddings, config)
    rows, sync = batches(dataset, train.options, is_test=False), trainer.dmp.coded_sync
    nbytes, seconds = 0, 0.0
    for step in range(num_steps + 1):
        trainer.train_step(rows)
        if step == 1:
            nbytes, seconds = 0, 0.0
            trainer.qcomm.reset_stats()
        dist.barrier()
        before, begin = _sent_nbytes(), time.perf_counter()
        trainer.dmp.sync()
        seconds += time.perf_counter() - begin
        dist.barrier()
        nbytes += _sent_nbytes() - before
    counted = 0 if sync is None else sync.stats().wire_nbytes
    most = torch.tensor([nbytes, counted, seconds], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return tuple((most / num_steps).tolist())


def _sent_nbytes() -> int:
    """Return the bytes that have left by this rank's interface."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


if __name__ == "__main__":
    sys.exit(main())
