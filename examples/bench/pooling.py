"""What merging equal bags gives where a sample has several ids of a feature, by pooling factor.

  python -m examples.bench.pooling                          pooling factors 1 to 100
  python -m examples.bench.pooling --pooling 3 30 --steps 9
  python -m examples.bench.pooling --out pooling.jsonl      and append the records to a file

Two kinds of bags of P ids. "mapped": the first id is drawn, and the others follow from it, as in
the multi-hot rows of MLPerf's DLRM-DCNv2, where a table gives each id of the one-hot rows its bag.
"drawn": all ids are drawn, so two bags are hardly ever equal. Ids are drawn with Zipf's popularity,
exponent 1.1. Two emulated ranks train tables of dim 64 in turn with `unique_bags` auto and false,
both in float32 with packed ids or TorchRec's; times are CPU time of this process.

One line a case: shares of distinct bags and of distinct ids in a rank's batch, bytes that a rank
sends a step and CPU time, both over those without merging, and the time that finding the distinct
bags takes of a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import trec_qcomm
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Environment
from trec_qcomm.ops.batch.unique import unique_bags

RANKS, NUM_TABLES, DIM, NUM_ROWS, ZIPF_EXPONENT = 2, 8, 64, 20_000, 1.1
FUSED = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.01}
KINDS = ("mapped", "drawn")
TABLES = [f"t{k}" for k in range(NUM_TABLES)]
_WARM_UP = 2  # steps before those that are timed


@dataclass(frozen=True)
class Bags:
    """Batches of bags of P ids from a seed. Args: kind: one of KINDS.  pooling: P."""

    kind: str
    pooling: int

    def batch(self, batch_size: int, generator: torch.Generator) -> KeyedJaggedTensor:
        """Return the bags of a rank's samples, P ids each."""
        size = (NUM_TABLES, batch_size, 1 if self.kind == "mapped" else self.pooling)
        ids = _drawn(size, generator)
        if self.kind == "mapped":
            others = torch.arange(self.pooling) * 2_654_435_761
            ids = (ids + ids * others % NUM_ROWS) % NUM_ROWS
        lengths = torch.full((NUM_TABLES * batch_size,), self.pooling, dtype=torch.int32)
        return KeyedJaggedTensor(TABLES, ids.reshape(-1), lengths=lengths)


def _drawn(size: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return ids of 0..NUM_ROWS-1, the k-th as often as (k + 1) ** -ZIPF_EXPONENT says."""
    weight = torch.arange(1.0, NUM_ROWS + 1, dtype=torch.float64) ** -ZIPF_EXPONENT
    at = torch.rand(*size, generator=generator, dtype=torch.float64) * weight.sum()
    return torch.searchsorted(weight.cumsum(0), at).clamp(max=NUM_ROWS - 1)


class Lookup(nn.Module):
    """Pooled rows of all tables, summed up: nothing but the exchange."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=t, feature_names=[t], embedding_dim=DIM, num_embeddings=NUM_ROWS
            )
            for t in TABLES
        ]
        self.bags = EmbeddingBagCollection(tables=tables)

    def forward(self, ids: KeyedJaggedTensor) -> Tensor:
        """Return a number whose gradient reaches every row."""
        total: Tensor = self.bags(ids).values().sum()
        return total


def measure(
    bags: Bags, ids: str, batch_size: int, num_steps: int, environment: Environment
) -> BenchRecord:
    """Return the record of one case.

    Args: ids: "packed", or "whole" as TorchRec sends them.
    """
    torch.manual_seed(0)
    lookup, sides = Lookup(), {}
    for merge in ("auto", False):
        exact = {"tables": "*", "forward": "identity", "backward": "identity", "unique_bags": merge}
        config = {"embedding": [exact]} | ({"ids": {"codec": "packed"}} if ids == "packed" else {})
        sides[merge] = trec_qcomm.emulate(lookup, config, ranks=RANKS, fused_params=FUSED)
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str | bool, list[float]] = {merge: [] for merge in sides}
    searches, shares = [], []
    for step in range(_WARM_UP + num_steps):
        batches = [bags.batch(batch_size, generator) for _ in range(RANKS)]
        for merge in sorted(sides, key=str, reverse=bool(step % 2)):
            begin = time.process_time()
            sides[merge].run(_train_step, batches)
            seconds[merge].append(time.process_time() - begin)
        searches.append(RANKS * _search_s(batches[0]))
        shares.append(_distinct_shares(batches[0]))
    nbytes = {merge: _sent(side) for merge, side in sides.items()}
    step_s = {merge: median(times[_WARM_UP:]) for merge, times in seconds.items()}
    return BenchRecord(
        configuration=f"{bags.kind}, {ids} ids",
        bench="pooling",
        environment=environment,
        case={"pooling": bags.pooling, "batch_size": batch_size, "dim": DIM, "num_ranks": RANKS},
        figures={
            "distinct_bags": sum(share for share, _ in shares) / len(shares),
            "distinct_ids": sum(share for _, share in shares) / len(shares),
            "nbytes_over_all": nbytes["auto"] / nbytes[False],
            "time_over_all": step_s["auto"] / step_s[False],
            "search_share": median(searches[_WARM_UP:]) / step_s[False],
        },
    )


def _train_step(model: nn.Module, batch: KeyedJaggedTensor) -> None:
    model(batch).backward()


def _sent(side: trec_qcomm.Emulated) -> int:
    """Return the bytes that rank 0 sent so far."""
    kinds = side.qcomms[0].stats().to_dict().values()
    return sum(kind["wire_nbytes"] for kind in kinds if isinstance(kind, dict))


def _search_s(batch: KeyedJaggedTensor) -> float:
    """Return the CPU seconds that finding the distinct bags of a rank's batch takes."""
    num_bags = torch.full((NUM_TABLES,), batch.stride(), dtype=torch.int64)
    shares = torch.full((NUM_TABLES,), 0.9, dtype=torch.float64)
    begin = time.process_time()
    unique_bags(batch.values(), batch.lengths(), num_bags, shares)
    return time.process_time() - begin


def _distinct_shares(batch: KeyedJaggedTensor) -> tuple[float, float]:
    """Return the shares of distinct bags and of distinct ids, over all tables."""
    ids = batch.values().view(NUM_TABLES, batch.stride(), -1)
    num_bags = sum(len(table.unique(dim=0)) for table in ids)
    num_ids = sum(len(table.unique()) for table in ids)
    return num_bags / ids[..., 0].numel(), num_ids / ids.numel()


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    options = _parser().parse_args(words)
    torch.set_num_threads(1)
    environment, num_cases = Environment.current(), 0
    for case in _cases(options.pooling):
        record = measure(*case, options.batch_size, options.steps, environment)
        figures = record.figures
        print(
            f"{record.configuration}, pooling {record.case['pooling']}: "
            f"{figures['distinct_bags']:.0%} of bags and {figures['distinct_ids']:.0%} of ids are "
            f"distinct; {figures['nbytes_over_all']:.2f} of the bytes, "
            f"{figures['time_over_all']:.2f} of the time, search {figures['search_share']:.1%}",
            flush=True,
        )
        num_cases += 1
        if options.out is not None:
            records.append(options.out, record)
    print(f"{num_cases} cases; {options.out or 'no --out'}")


def _cases(pooling: Sequence[int]) -> Iterable[tuple[Bags, str]]:
    return [(Bags(kind, p), ids) for kind in KINDS for p in pooling for ids in ("whole", "packed")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--pooling", type=int, nargs="+", default=[1, 3, 10, 30, 100], help="default 1 3 10 30 100")
    add("--batch-size", type=int, default=1024, help="samples of a rank (default 1024)")
    add("--steps", type=int, default=15, help="timed steps of a case (default 15)")
    add("--out", type=Path, default=None, metavar="FILE", help="append the records to this file")
    return parser


if __name__ == "__main__":
    main()
