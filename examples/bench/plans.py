"""What TorchRec's planner chooses for a cluster when codecs are priced as they are.

  python -m examples.bench.plans                  26 tables of MLPerf's DLRM, 16 and 128 GPUs
  python -m examples.bench.plans --model synthetic --gpus 64      60 tables, some very large
  python -m examples.bench.plans --inter-gb-s 50 --encode-gb-s 800 --out plans.jsonl

Needs no GPU and measures nothing: every number is TorchRec's performance model with the given
bandwidths and codec speeds. `step` is its rating of a plan: of all ranks the largest sum of lookup,
communication and codec time of the embeddings, forward and backward, without any overlap, dense
layers or ids; `comms` the share of communication and codec in it. `fp32's plan` is the step when
the codec is used but the tables stay where the planner puts them for fp32.
fp32 is TorchRec's own price, where copies count nothing. 16x is no codec of ours: a sixteenth of
the bytes at the same speed, to see what one would be worth.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torchrec
from torch import Tensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, ShardingOption, Stats
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trec_qcomm import Codec, Contract, Identity, QComm, Rowwise, Throughput
from trec_qcomm.config import Config, TableRule
from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.lab.records import BenchRecord, Environment, append

RANKS_PER_NODE = 8
RESERVED = 0.15  # of the memory, for everything but tables
MIN_COLUMNS = 32  # of a column shard
SHORT = {
    "table_wise": "TW", "column_wise": "CW", "table_column_wise": "TWCW", "row_wise": "RW",
    "table_row_wise": "TWRW", "grid_shard": "GRID", "data_parallel": "DP",
}  # fmt: skip
# MLPerf's DLRM-DCNv2 on the multi-hot Criteo 1TB: rows of each table, and ids of each sample.
MLPERF_ROWS = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209,
    11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
MLPERF_IDS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)


@dataclass(frozen=True)
class Table:
    """A table of a model: its rows, columns, and ids a sample."""

    num_rows: int
    dim: int
    num_ids: float


@dataclass(frozen=True)
class Hypothetical:
    """A codec of which only the size is known, for estimates; it cannot encode."""

    ratio: int

    name: ClassVar[str] = "hypothetical"
    fixed_size: ClassVar[bool] = True
    tolerance: ClassVar[None] = None
    contract: ClassVar[Contract] = Contract.BIASED
    wire_id: ClassVar[int] = 255

    def max_nbytes(self, segments: Segments) -> Tensor:
        return aligned(segments.num_rows * segments.dim * 4 // self.ratio)

    def encode(
        self,
        values: Tensor,
        segments: Segments,
        payload: Tensor,
        at: Tensor,
        *,
        seed: int = 0,
        tolerances: Tensor | None = None,
    ) -> Encoded:
        raise NotImplementedError("a hypothetical codec is for estimates")

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        raise NotImplementedError("a hypothetical codec is for estimates")


CODECS: dict[str, Codec] = {
    "fp32": Identity(),
    "int8": Rowwise(8),
    "int4": Rowwise(4),
    "16x": Hypothetical(16),
}


def mlperf() -> list[Table]:
    return [Table(n, 128, ids) for n, ids in zip(MLPERF_ROWS, MLPERF_IDS, strict=True)]


def synthetic(num_tables: int = 60, seed: int = 0) -> list[Table]:
    """Return tables of log-uniform rows, 1e4 to 2e8: most are small, most rows lie in few."""
    draw = random.Random(seed)
    return [
        Table(int(10 ** draw.uniform(4, 8.3)), draw.choice((64, 128, 256)), draw.randint(1, 30))
        for _ in range(num_tables)
    ]


MODELS = {"mlperf": mlperf, "synthetic": synthetic}


class BestPlan(Stats):
    """The plan that the planner chose, with ranks and prices."""

    def __init__(self) -> None:
        self.options: list[ShardingOption] = []

    def log(self, *args: Any, best_plan: list[ShardingOption], **kwargs: Any) -> None:
        self.options = best_plan


class Problem:
    """Tables on a simulated cluster; plans them for one codec after another."""

    def __init__(self, tables: list[Table], num_gpus: int, options: argparse.Namespace) -> None:
        names = [f"t_{k}" for k in range(len(tables))]
        self.batch_size = options.batch_size
        self.topology = Topology(
            world_size=num_gpus,
            local_world_size=min(RANKS_PER_NODE, num_gpus),
            compute_device="cuda",
            hbm_cap=int(options.hbm_gib * 2**30),
            hbm_mem_bw=options.hbm_gb_s * 1e6,  # bytes a ms
            intra_host_bw=options.intra_gb_s * 1e6,
            inter_host_bw=options.inter_gb_s * 1e6,
        )
        self.constraints = {
            name: ParameterConstraints(
                sharding_types=[kind.value for kind in ShardingType],
                compute_kernels=["fused", "dense"],
                min_partition=MIN_COLUMNS,
                pooling_factors=[table.num_ids],
            )
            for name, table in zip(names, tables, strict=True)
        }
        configs = [
            EmbeddingBagConfig(
                name=name,
                embedding_dim=table.dim,
                num_embeddings=table.num_rows,
                feature_names=[f"f_{name}"],
            )
            for name, table in zip(names, tables, strict=True)
        ]
        self.module = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.sharders = [EmbeddingBagCollectionSharder()]
        speed = Throughput(encode_gb_s=options.encode_gb_s, decode_gb_s=options.decode_gb_s)
        free = Throughput(encode_gb_s=math.inf, decode_gb_s=math.inf)
        self.throughput = {"identity": free, "rowwise": speed, "hypothetical": speed}

    def plan(self, codec: Codec) -> tuple[list[ShardingOption], EmbeddingEnumerator]:
        """Return the planner's plan, and the enumerator that has the prices of all others."""
        rule = TableRule(tables=("*",), forward=codec, backward=codec)
        estimator = QComm(Config(embedding=(rule,))).estimator(
            self.topology, self.constraints, throughput=self.throughput
        )
        enumerator = EmbeddingEnumerator(
            self.topology,
            self.batch_size,
            self.constraints,
            estimator=[estimator, EmbeddingStorageEstimator(self.topology, self.constraints)],
        )
        best = BestPlan()
        EmbeddingShardingPlanner(
            topology=self.topology,
            batch_size=self.batch_size,
            enumerator=enumerator,
            storage_reservation=FixedPercentageStorageReservation(RESERVED),
            constraints=self.constraints,
            stats=best,
            debug=False,
        ).plan(self.module, self.sharders)  # type: ignore[arg-type]
        return best.options, enumerator

    def priced(
        self, plan: list[ShardingOption], enumerator: EmbeddingEnumerator
    ) -> list[ShardingOption]:
        """Return the placement of a plan at that enumerator's prices."""
        prices = {_key(so): so for so in enumerator.enumerate(self.module, self.sharders)}  # type: ignore[arg-type]
        priced = [prices[_key(so)] for so in plan]
        for ours, theirs in zip(priced, plan, strict=True):
            for shard, placed in zip(ours.shards, theirs.shards, strict=True):
                shard.rank = placed.rank
        return priced


def rate(plan: list[ShardingOption]) -> tuple[float, float]:
    """Return the predicted step in ms, as TorchRec rates plans, and the share of communication."""
    totals: Counter[int] = Counter()
    comms: Counter[int] = Counter()
    for so in plan:
        for shard in so.shards:
            totals[shard.rank] += shard.perf.total
            comms[shard.rank] += shard.perf.fwd_comms + shard.perf.bwd_comms
    slowest = max(totals, key=totals.__getitem__)
    return totals[slowest], comms[slowest] / totals[slowest]


def _key(so: ShardingOption) -> tuple[Any, ...]:
    sizes = tuple(tuple(shard.size) for shard in so.shards)
    return so.name, so.sharding_type, so.compute_kernel, sizes


def solve(tables: list[Table], num_gpus: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one record a codec; the first is fp32."""
    problem = Problem(tables, num_gpus, options)
    records = []
    first: list[ShardingOption] = []
    for name, codec in CODECS.items():
        begin = time.perf_counter()
        plan, enumerator = problem.plan(codec)
        first = first or plan
        step_ms, comms = rate(plan)
        records.append(
            {
                "num_gpus": num_gpus,
                "codec": name,
                "shardings": dict(Counter(so.sharding_type for so in plan)),
                "predicted_step_ms": step_ms,
                "comms_share": comms,
                "predicted_step_ms_with_the_plan_of_fp32": rate(problem.priced(first, enumerator))[
                    0
                ],
                "planning_s": time.perf_counter() - begin,
            }
        )
    return records


def format_table(records: list[dict[str, Any]]) -> str:
    """Return markdown, a row for each number of GPUs and codec."""
    head = ["GPUs", "codec", *SHORT.values(), "step [ms]", "comms", "fp32's plan [ms]"]
    lines = [head, ["---:"] * len(head), *(_cells(record) for record in records)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(record: Mapping[str, Any]) -> list[str]:
    return [
        str(record["num_gpus"]),
        record["codec"],
        *(str(record["shardings"].get(kind, "")) for kind in SHORT),
        f"{record['predicted_step_ms']:.2f}",
        f"{100 * record['comms_share']:.0f} %",
        f"{record['predicted_step_ms_with_the_plan_of_fp32']:.2f}",
    ]


def _typed(
    records: list[dict[str, Any]], options: argparse.Namespace, tables: list[Table]
) -> list[BenchRecord]:
    setup = {k: v for k, v in vars(options).items() if isinstance(v, int | float | str)}
    setup |= {"num_tables": len(tables), "kind": "prediction of TorchRec's performance model"}
    environment = Environment.current()
    return [
        BenchRecord(
            configuration=record["codec"],
            bench="plans",
            setup=setup,
            environment=environment,
            case={"num_gpus": record["num_gpus"]} | record["shardings"],
            figures={k: v for k, v in record.items() if isinstance(v, float)},
        )
        for record in records
    ]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default="mlperf", help="default mlperf")
    add("--max-tables", type=int, default=None, help="plan only the first so many of its tables")
    add("--gpus", type=int, nargs="+", default=[16, 128], help="default 16 128; 8 a node")
    add("--batch-size", type=int, default=2048, help="samples a GPU (default 2048)")
    add("--hbm-gib", type=float, default=80, help="memory of a GPU (default 80)")
    add("--hbm-gb-s", type=float, default=2039, help="its bandwidth (default 2039, A100)")
    add("--intra-gb-s", type=float, default=300, help="inside a node, a GPU (default 300)")
    add("--inter-gb-s", type=float, default=25, help="between nodes, a GPU (default 25)")
    add(
        "--encode-gb-s", type=float, default=400, help="GB/s of float32 rows, assumed (default 400)"
    )
    add(
        "--decode-gb-s", type=float, default=400, help="GB/s of float32 rows, assumed (default 400)"
    )
    add("--out", type=Path, default=None, metavar="FILE", help="append the records to this file")
    return parser


def main() -> None:
    """Plan, print, and say again what the numbers are."""
    parser = build_parser()
    options = parser.parse_args()
    for name in ("max_tables", "batch_size", "hbm_gib", "hbm_gb_s", "intra_gb_s", "inter_gb_s"):
        if getattr(options, name) is not None and getattr(options, name) <= 0:
            parser.error(f"{name} {getattr(options, name)}: must be positive")
    for num_gpus in options.gpus:
        if num_gpus < 1 or (num_gpus > RANKS_PER_NODE and num_gpus % RANKS_PER_NODE):
            parser.error(f"gpus {num_gpus}: not a multiple of {RANKS_PER_NODE}")
    logging.disable(logging.WARNING)  # one for each table, of TorchRec
    tables = MODELS[options.model]()[: options.max_tables]
    nbytes = sum(table.num_rows * table.dim * 4 for table in tables)
    print(
        f"{options.model}: {len(tables)} tables, {nbytes / 1e9:.0f} GB; {options.batch_size} "
        f"samples a GPU; GB/s: {options.inter_gb_s:g} between nodes, {options.intra_gb_s:g} "
        f"inside, {options.hbm_gb_s:g} memory, {options.encode_gb_s:g} encode, "
        f"{options.decode_gb_s:g} decode\n"
    )
    records = [record for n in options.gpus for record in solve(tables, n, options)]
    print(format_table(records))
    if options.out is not None:
        append(options.out, *_typed(records, options, tables))
    print(
        f"\ndone: predictions of TorchRec {torchrec.__version__}'s model with the speeds given "
        "above, not measurements"
    )


if __name__ == "__main__":
    main()
