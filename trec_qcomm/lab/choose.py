"""Time the candidates of `auto` on this machine and network, and print the table.

examples:
  torchrun --nproc-per-node 2 -m trec_qcomm choose
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-endpoint host0:29500 -m trec_qcomm choose \\
      --batch-size 2048 --dim 64 --sharding row_wise

It trains a DLRM of the given sizes with the preset `auto`, until `auto` has chosen. Ids are random
and repeat as --zipf says. In your own training the same preset chooses in its first steps, on your
model and ids. qcomm.summary() tells what it chose.
"""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from trec_qcomm.ext.auto.choice import Choice
from trec_qcomm.ext.auto.extension import AutoExtension
from trec_qcomm.ext.auto.search import Tuned
from trec_qcomm.integration.compat import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
)
from trec_qcomm.lab.ranks.plans import make_plan
from trec_qcomm.qcomm import QComm


class Model(nn.Module):
    """DLRM without its dot products: tables of bags, and layers over their rows."""

    def __init__(self, num_tables: int, rows: int, dim: int) -> None:
        super().__init__()
        sizes = {"embedding_dim": dim, "num_embeddings": rows}
        tables = [
            EmbeddingBagConfig(name=f"t{n}", feature_names=[f"f{n}"], **sizes)
            for n in range(num_tables)
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        widths = (num_tables * dim, 512, 256, 1)
        layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
        self.over = nn.Sequential(*layers[:-1])

    def forward(self, features: Any) -> Tensor:
        logits: Tensor = self.over(self.bags(features).values())
        return logits


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm choose",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--batch-size", type=int, default=256, help="samples a rank (default 256)")
    add("--tables", type=int, default=26, help="number of tables (default 26)")
    add("--rows", type=int, default=10_000, help="rows of each table (default 10000)")
    add("--dim", type=int, default=16, help="columns of each table (default 16)")
    add("--zipf", type=float, default=1.2, help="exponent of the ids' frequencies (default 1.2)")
    kinds = ("table_wise", "row_wise", "column_wise")
    add("--sharding", choices=kinds, default="table_wise", help="default table_wise")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Train until there is a choice, and print it on rank 0."""
    parser = build_parser()
    options = parser.parse_args(words)
    for name in ("batch_size", "tables", "rows", "dim"):
        if getattr(options, name) < 1:
            parser.error(f"{name} {getattr(options, name)}: must be positive")
    if options.zipf <= 1:
        parser.error(f"zipf {options.zipf}: must be above 1")
    if "RANK" not in os.environ:
        parser.error(
            "start it by torchrun, such as torchrun --nproc-per-node 2 -m trec_qcomm choose"
        )
    warnings.simplefilter("ignore")  # of TorchRec, about what it does itself
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    try:
        tuned = _tuned(options)
        if dist.get_rank() == 0:
            print(table(tuned))
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return 0


def _tuned(options: argparse.Namespace) -> Tuned:
    qcomm, num_bags = QComm.from_preset("auto"), options.tables * options.batch_size
    model = Model(options.tables, options.rows, options.dim)
    sharders, num_ranks = {s.module_type: s for s in qcomm.sharders()}, dist.get_world_size()
    plan = make_plan(
        model, options.sharding, sharders, num_ranks=num_ranks, ranks_per_node=num_ranks
    )
    for parameter in plan.plan["bags"].values():
        parameter.compute_kernel = "fused"  # else TorchRec takes the dense kernel on CPU
    dmp = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, **qcomm.dmp_arguments()
    )
    dense = [p for name, p in dmp.named_parameters() if ".over." in f".{name}"]
    optimizer, noise = torch.optim.SGD(dense, lr=0.01), np.random.default_rng(dist.get_rank())
    auto = qcomm.session.extensions["auto"]
    assert isinstance(auto, AutoExtension)
    while auto.is_tuning:
        if dist.get_rank() == 0:
            print(f"\r{auto.in_summary():<100.100}", end="", file=sys.stderr, flush=True)
        ids = torch.from_numpy(noise.zipf(options.zipf, num_bags) % options.rows)
        keys = [f"f{n}" for n in range(options.tables)]
        loss = (dmp(KeyedJaggedTensor(keys, ids, lengths=torch.ones_like(ids))) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert auto.tuned is not None
    return auto.tuned


def table(tuned: Tuned) -> str:
    """Return the timed candidates as text, the fastest first, and the choice."""
    exact = tuned.seconds[Choice()]
    lines = [f"{'ms a step':>10} {'of exact':>9}  what is sent"]
    for choice, seconds in sorted(tuned.seconds.items(), key=lambda pair: pair[1]):
        mark = "   <- chosen" if choice == tuned.choice else ""
        lines.append(f"{1e3 * seconds:10.1f} {seconds / exact:9.2f}  {choice}{mark}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
