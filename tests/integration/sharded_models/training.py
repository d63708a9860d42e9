"""Training of a Case with stock sharders or ours; each rank brings back what came out."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torchrec.distributed.comm as torchrec_comm
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.fused_embeddingbag import FusedEmbeddingBagCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv, ShardingPlan

from tests.integration.sharded_models.batches import batch, coefficients
from tests.integration.sharded_models.cases import (
    CPU,
    LEARNING_RATE,
    Case,
    Model,
    Table,
    fill,
    full_table,
    local_tables,
    plan,
)
from trec_qcomm import Config, Identity, QComm, TableRule
from trec_qcomm.config import IdRule
from trec_qcomm.core.codec import Codec

OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
FULL_ADAGRAD = {"full_adagrad": EmbOptimType.EXACT_ADAGRAD}  # takes no variable batch
logging.getLogger("torchrec").setLevel(logging.ERROR)  # it warns of every group of a node
_node_groups: dict[tuple[Any, int], tuple[Any, Any]] = {}  # by world and ranks of a node

Parts = dict[str, list[tuple[int, int, Tensor]]]


@dataclass
class RankResult:
    """Result of one rank. outputs: the outputs of each step, by key."""

    outputs: list[dict[str, Tensor]]
    weights: Parts
    stats: dict[str, Any]


def qcomm_of(forward: Codec, backward: Codec | None = None, **options: Any) -> QComm:
    """One rule for all tables."""
    rule = TableRule(tables=("*",), forward=forward, backward=backward or forward)
    return QComm(Config(embedding=(rule,), **options))


def exact_qcomm() -> QComm:
    """Return a QComm that changes no bit of a training. With 4 ranks ids are packed, too."""
    packs = dist.get_world_size() == 4
    return qcomm_of(Identity(), ids=IdRule(codec="packed") if packs else None)


def emulate_nodes(node_size: int) -> None:
    """Let TorchRec take `node_size` consecutive ranks for a node; 0: all ranks. Collective."""
    size = node_size or dist.get_world_size()
    os.environ["LOCAL_WORLD_SIZE"] = str(size)
    os.environ["TORCHREC_RESOLVED_POD_SIZE"] = "1"  # nodes; it warns of every use if it is unset
    key = dist.group.WORLD, size
    torchrec_comm._INTRA_PG, torchrec_comm._CROSS_PG = _node_groups.get(key, (None, None))
    _node_groups[key] = torchrec_comm.intra_and_cross_node_pg()


def stock_sharders(case: Case) -> list[Any]:
    fused = fused_params(case)
    ebc = EmbeddingBagCollectionSharder(fused_params=fused)
    ec = EmbeddingCollectionSharder(fused_params=fused, use_index_dedup=case.dedup)
    return [
        ebc,
        ec,
        FusedEmbeddingBagCollectionSharder(),
        FeatureProcessedEmbeddingBagCollectionSharder(ebc),
        ManagedCollisionEmbeddingBagCollectionSharder(ebc),
        ManagedCollisionEmbeddingCollectionSharder(ec),
    ]


def fused_params(case: Case) -> dict[str, Any]:
    optimizer = (OPTIMIZERS | FULL_ADAGRAD)[case.optimizer]
    return {"optimizer": optimizer, "learning_rate": LEARNING_RATE} | dict(case.fused_params)


def shard(
    case: Case, qcomm: QComm | None, model: nn.Module | None = None
) -> DistributedModelParallel:
    """Shard the model of a case with our sharders, or with TorchRec's where qcomm is None."""
    emulate_nodes(case.node_size)
    options: dict[str, Any] = {"sharders": stock_sharders(case)}
    if qcomm is not None:
        dedup = {"use_index_dedup": True} if case.dedup else {}
        options["sharders"] = qcomm.sharders(fused_params=fused_params(case), **dedup)
        options["data_parallel_wrapper"] = qcomm.data_parallel_wrapper()
    return shard_by(case, model, **options)


def shard_by(
    case: Case, model: nn.Module | None = None, **options: Any
) -> DistributedModelParallel:
    """Shard the model of a case. Args: options: arguments of DistributedModelParallel."""
    dmp = DistributedModelParallel(
        module=model or Model(case),
        device=CPU,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"sparse": plan(case, dist.get_world_size())}),
        **options,
    )
    fill(dmp.state_dict(), case)
    torch.manual_seed(0)  # managed collisions draw new rows for evicted ids
    return dmp


def dense_optimizer(dmp: DistributedModelParallel) -> torch.optim.Optimizer:
    """Return SGD for all parameters that no fused optimizer trains."""
    fused = {id(p) for group in dmp.fused_optimizer.param_groups for p in group["params"]}
    fused |= {id(p) for p in dmp.fused_optimizer.params.values()}
    return torch.optim.SGD([p for p in dmp.parameters() if id(p) not in fused], lr=LEARNING_RATE)


def loss_of(case: Case, step: int, outputs: dict[str, Tensor], *, linear: bool) -> Tensor:
    """Return the loss. A linear one has gradients that do not depend on rounded outputs."""
    rank, total = dist.get_rank(), torch.zeros(())
    for key, rows in outputs.items():
        total = total + (rows * coefficients(case, step, rank, key, rows.shape)).sum()
        if not linear:
            total = total + (rows**2).sum() / 64
    return total


def train(
    dmp: DistributedModelParallel, case: Case, num_steps: int, *, linear: bool
) -> list[dict[str, Tensor]]:
    """Return the outputs of each step on this rank. With a linear loss the scales stay 1."""
    optimizer = dense_optimizer(dmp)
    outputs_by_step = []
    for step in range(num_steps):
        outputs = dmp(batch(case, step, dist.get_rank()))
        optimizer.zero_grad()
        loss_of(case, step, outputs, linear=linear).backward()
        if linear:
            _forget_scales(dmp)
        optimizer.step()
        outputs_by_step.append({key: rows.detach().clone() for key, rows in outputs.items()})
    return outputs_by_step


def _forget_scales(dmp: DistributedModelParallel) -> None:
    for name, parameter in dmp.named_parameters():
        if ".scale." in f".{name}":
            parameter.grad = None


def weights(dmp: DistributedModelParallel, case: Case) -> Parts:
    """Return the blocks of each table that this rank has."""
    return {
        table.name: [(row, col, tensor.clone()) for row, col, tensor in parts]
        for table, parts in local_tables(dmp.state_dict(), case)
    }


def run(
    case: Case,
    qcomm: QComm | None,
    num_steps: int = 3,
    *,
    linear: bool = False,
    model: nn.Module | None = None,
) -> RankResult:
    """Shard a case and train it."""
    dmp = shard(case, qcomm, model)
    outputs = train(dmp, case, num_steps, linear=linear)
    stats = {} if qcomm is None else qcomm.stats().to_dict()
    return RankResult(outputs, weights(dmp, case), stats)


def assert_same(
    case: Case, theirs: Sequence[RankResult], ours: Sequence[RankResult], *, trains: bool = True
) -> None:
    """Assert that all ranks' outputs and weights are equal and that tables with ids were trained.

    Args: trains: False for a model that TorchRec itself does not train on CPU
    """
    for rank, (stock, coded) in enumerate(zip(theirs, ours, strict=True)):
        assert len(stock.outputs) == len(coded.outputs) > 0
        for step, (a, b) in enumerate(zip(stock.outputs, coded.outputs, strict=True)):
            assert a.keys() == b.keys()
            for key in a:
                assert torch.equal(a[key], b[key]), f"rank {rank}, step {step}, output {key}"
        for name, parts in stock.weights.items():
            for (row, col, a), (_, _, b) in zip(parts, coded.weights[name], strict=True):
                assert torch.equal(a, b), f"rank {rank}, table {name} at {row}, {col}"
    for table in case.tables:
        parts = [part for result in ours for part in result.weights.get(table.name, ())]
        expected = trains and not set(table.features) <= set(case.empty)
        assert _trained(table, parts) == expected, f"table {table.name} was trained, or not"


def _trained(table: Table, parts: Sequence[tuple[int, int, Tensor]]) -> bool:
    rows = full_table(table)
    return any(not torch.equal(t, rows[r:, c:][: len(t), : t.shape[1]]) for r, c, t in parts)
