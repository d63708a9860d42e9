"""The telescoping identity of error feedback: what was sent and what is kept are what there was.

A model of two tables and one dense parameter, whose gradients are random numbers that depend on
nothing, is trained by plain gradient descent. So its weights are the sum of what arrived, those of
the same training in float32 are the sum of what was to arrive, and the residuals at the end have to
be the difference.

Knows: emulate, the state of a QComm. Does not know: papers.
Shapes: R ranks, B samples a rank, D values a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import trec_qcomm
from examples.papers.measurements import Values
from trec_qcomm import Config, GradientRule, Identity, Rowwise, TableRule, load_preset
from trec_qcomm.comm.dense.error_feedback import owed
from trec_qcomm.ext.feedback.rule import RowFeedback

RANKS, BATCH, DIM, NUM_IDS, NUM_STEPS = 4, 32, 16, 40, 50
FEATURES = ("first", "second")
ALGORITHMS = ("ring", "recursive_doubling")
SETTING = f"gradients that depend on nothing, {RANKS} ranks, {NUM_STEPS} steps"


class Linear(nn.Module):
    """A model whose gradients are the coefficients that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f, feature_names=[f], embedding_dim=DIM, num_embeddings=NUM_IDS
                )
                for f in FEATURES
            ]
        )
        self.dense = nn.Parameter(torch.zeros(1024))

    def forward(self, ids: KeyedJaggedTensor, of_rows: Tensor, of_dense: Tensor) -> Tensor:
        """Return the loss. Args: of_rows: [B, 2 D].  of_dense: [1024]."""
        return (self.tables(ids).values() * of_rows).sum() + (self.dense * of_dense).sum()


def cases() -> Mapping[str, Callable[[], Values]]:
    """Return the measurements by name, `all-to-all, 4 bits`.

    Their values are shares of the largest sum of gradients: `kept`, the largest difference between
    sent + residual and what there was; `lost`, that between what is sent without feedback and what
    there was.
    """
    exact = _train(load_preset("fp32"))
    return {
        f"{collective}, {bits} bits": partial(_measured, collective, bits, exact)
        for collective in ("all-to-all", *ALGORITHMS)
        for bits in (4, 2)
    }


def _measured(collective: str, bits: Any, exact: dict[str, Tensor]) -> Values:
    fed, plain = (_train(_config(collective, bits, is_fed)) for is_fed in (True, False))
    names = FEATURES if collective == "all-to-all" else ("dense",)
    largest = max(float(exact[name].abs().max()) for name in names)
    return {
        what: max(float((trained[name] - exact[name]).abs().max()) for name in names) / largest
        for what, trained in (("kept", fed), ("lost", plain))
    }


def _config(collective: Any, bits: Any, is_fed: bool) -> Config:
    codec, exact = Rowwise(bits), Identity()
    if collective == "all-to-all":
        kept = RowFeedback(backward_rows=NUM_IDS) if is_fed else None
        rule = TableRule(
            tables="*", forward=exact, backward=codec, unique_bags=True, error_feedback=kept
        )
        return Config(embedding=(rule,))
    dense = GradientRule(codec=codec, algorithm=collective, error_feedback=is_fed)
    return Config(embedding=(TableRule(tables="*", forward=exact, backward=exact),), dense=dense)


def _train(config: Config) -> dict[str, Tensor]:
    """Return what arrived of each table and of the dense parameter, residuals included."""
    torch.manual_seed(0)
    emulated = trec_qcomm.emulate(
        Linear(), config, ranks=RANKS,
        fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 1.0},
    )  # fmt: skip
    before = _weights(emulated)
    for step in range(NUM_STEPS):
        emulated.run(_step, range(RANKS), [step] * RANKS)
    sums = {name: before[name] - weight for name, weight in _weights(emulated).items()}
    states = emulated.run(lambda _, qcomm: qcomm.state_dict(), emulated.qcomms)
    for state in states:
        for name, residual in _residuals(state).items():
            sums[name] += residual
    return sums


def _step(model: nn.Module, rank: int, step: int) -> None:
    """Take a step of plain gradient descent, at a learning rate of 1."""
    generator = torch.Generator().manual_seed(RANKS * step + rank)
    num_ids = len(FEATURES) * BATCH
    ids = torch.randint(NUM_IDS, (num_ids,), generator=generator)
    bags = KeyedJaggedTensor(list(FEATURES), ids, None, torch.ones(num_ids, dtype=torch.int64))
    of_rows = torch.randn(BATCH, len(FEATURES) * DIM, generator=generator)
    model(bags, of_rows, torch.randn(1024, generator=generator)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= parameter.grad
                parameter.grad = None


def _weights(emulated: Any) -> dict[str, Tensor]:
    """Return the weights by name, of tables from the ranks where they lie."""
    weights: dict[str, Tensor] = {}
    for model in emulated.models:
        for name, weight in model.state_dict().items():
            short = name.removeprefix("tables.embedding_bags.").removesuffix(".weight")
            if isinstance(weight, ShardedTensor):
                for shard in weight.local_shards():
                    weights[short] = shard.tensor.clone()
            else:
                weights[short] = weight.clone()
    return weights


def _residuals(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what one rank keeps, in the unit of the mean over ranks."""
    residuals: dict[str, Tensor] = {}
    for of_rank in state.get("gradients", {}).get("dense", {}).values():
        kept = of_rank.get("residuals", {})
        residuals |= {name: owed(sites) for name, sites in kept.items()}
    for of_rank in state.get("row_residuals", {}).values():
        for directions in of_rank.values():
            for table, kept in directions["backward"].items():
                there = kept["ids 0"] >= 0
                rows = residuals[table] = torch.zeros(NUM_IDS, DIM)
                rows[kept["ids 0"][there]] = kept["residuals 0"][there] / RANKS
    return residuals
