"""One training of the example's DLRM in one process: its ranks are played, its codecs are real.

What train.py does on ranks with a table-wise plan, bit for bit where the codecs draw no noise but
for the last bits of row-wise Adagrad: equal initial weights, batches and order; a rank's samples go
through the dense layers by themselves; gradients of the ranks are averaged.

Knows: model.py's DLRM, comm.emulate, a trec_qcomm config. Does not know: files, other trainings.
Shapes: P ranks, F = 26 features, B samples of a global batch, U distinct rows of all ranks,
V rows of all tables, D values a row.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from data import FEATURES, Dataset
from model import ModelConfig, build_dlrm, dense_optimizer, init_embeddings
from report import score
from torch import Tensor
from torchrec.models.dlrm import DLRMTrain
from tsv import Rows

from study.dense import EmulatedAllReduce
from trec_qcomm import Config, GradientRule, Identity, TableRule
from trec_qcomm.comm.emulate import EmulatedExchange
from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.integration.ids.bag_merging import max_shares
from trec_qcomm.integration.tolerances import ForwardTolerances
from trec_qcomm.ops.unique import UniqueBags, unique_bags

_EPS = 1e-8  # as model.py's optimizers
FP32 = Config(embedding=(TableRule(tables=("*",), forward=Identity(), backward=Identity()),))


@dataclass(frozen=True)
class Codecs:
    """What a config makes of the tables' exchange, and of the dense gradients.

    Args: exchange: with the config's codecs.  shares: [F] float64, see ops.unique.unique_bags.
        params: of each feature's table.  seed: of stochastic rounding.  dense: None: exact.
    """

    exchange: EmulatedExchange
    shares: Tensor
    params: ForwardTolerances
    seed: int
    dense: GradientRule | None = None

    @classmethod
    def of(cls, config: Config, embedding_dim: int) -> Codecs:
        """Of the example's tables. Raises ValueError: see `Config` and `EmulatedExchange`."""
        tables = [f"t_{feature}" for feature in FEATURES]
        config.check_patterns(tables)
        rules = tuple(config.rule_for(table) for table in tables)
        exchange = EmulatedExchange(
            dims=(embedding_dim,) * len(rules),
            forward=tuple(rule.forward for rule in rules),
            backward=tuple(rule.backward for rule in rules),
        )
        shares = torch.tensor(max_shares([r.unique_bags for r in rules]), dtype=torch.float64)
        params = ForwardTolerances(dict(zip(tables, rules, strict=True)), tables)
        return cls(exchange, shares, params, config.seed, config.dense)

    def measure(self, step: int, rows: Tensor, bags: Sequence[UniqueBags]) -> None:
        """Let classes and thresholds see what all ranks are about to be sent, where it is time to.

        Args: rows: [U, D], those of the bags, rank by rank and table by table.
        """
        due = self.params.tables_due(step)
        counts = torch.cat([b.counts for b in bags]).tolist() if due else []
        blocks = rows.detach().split(counts) if due else ()
        for table in due:
            own = FEATURES.index(table.removeprefix("t_"))
            self.params.measure(table, torch.cat(blocks[own :: len(FEATURES)]))


@dataclass
class RowwiseAdagrad:
    """FBGEMM's EXACT_ROWWISE_ADAGRAD: one accumulator a row, of the mean square of its gradient."""

    lr: float
    sums: Tensor  # [V]

    def step(self, weight: Tensor, at: Tensor, gradient: Tensor) -> None:
        """Change the rows `at` [n], all different, of weight [V, D] by their gradient [n, D]."""
        sums = self.sums[at] + gradient.square().mean(dim=1)
        self.sums[at] = sums
        weight[at] -= (self.lr / (sums.sqrt() + _EPS))[:, None] * gradient


@dataclass
class Sgd:
    """FBGEMM's EXACT_SGD."""

    lr: float

    def step(self, weight: Tensor, at: Tensor, gradient: Tensor) -> None:
        """See RowwiseAdagrad."""
        weight[at] -= self.lr * gradient


@dataclass
class EmulatedTraining:
    """A DLRM and its optimizers, `num_ranks` of whose ranks are played.

    Derived: weight: [V, D], all tables; first_row: [F], where each begins.
    """

    config: ModelConfig
    num_embeddings: Sequence[int]
    num_ranks: int
    codecs: Codecs
    model: DLRMTrain = field(init=False)
    weight: Tensor = field(init=False)
    first_row: Tensor = field(init=False)
    losses: list[float] = field(default_factory=list)  # of each step, mean over ranks

    def __post_init__(self) -> None:
        self.model = build_dlrm(self.config, self.num_embeddings)
        tables = self.model.model.sparse_arch.embedding_bag_collection
        tables.to_empty(device=torch.device("cpu"))
        init_embeddings(self.model, self.config)
        bags = tables.embedding_bags
        self.weight = torch.cat([bags[f"t_{f}"].weight.detach() for f in FEATURES])
        self.first_row = exclusive_cumsum(torch.tensor(self.num_embeddings))[:-1]
        tables.to_empty(device=torch.device("meta"))
        rowwise = self.config.embedding_optimizer == "rowwise_adagrad"
        self._tables: RowwiseAdagrad | Sgd = (
            RowwiseAdagrad(self.config.lr, torch.zeros(len(self.weight)))
            if rowwise
            else Sgd(self.config.lr)
        )
        named = self.model.model.named_parameters()
        parameters = {name: p for name, p in named if not p.is_meta}
        self._dense = dense_optimizer(list(parameters.values()), self.config)
        self.all_reduce = EmulatedAllReduce(
            parameters, self.num_ranks, self.codecs.dense, self.codecs.seed
        )

    def train_step(self, rows: Rows) -> None:
        """One step on a global batch [B]."""
        step = len(self.losses)
        bags, at = self._find_bags(rows, self.codecs.shares)
        looked_up = self.weight[at].requires_grad_()
        self.codecs.measure(step, looked_up, bags)
        samples = self.codecs.exchange(
            looked_up.view(-1),
            bags,
            seed=_step_seed(self.codecs.seed, self.config.seed, step),
            tolerances=self.codecs.params.tolerances(step).tolist(),
            gradient_divisor=self.num_ranks,
        )
        labels = torch.from_numpy(rows["label"].astype("f4")).split(_sizes(len(rows), self))
        taken = samples.detach().requires_grad_()
        logits = self._logits(rows, taken)
        losses = [self.model.loss_fn(x, y) for x, y in zip(logits, labels, strict=True)]
        self.all_reduce.backward(losses)
        samples.backward(taken.grad)
        self._dense.step()
        assert looked_up.grad is not None
        self._update_tables(at, looked_up.grad)
        self.losses.append(sum(float(loss.detach()) for loss in losses) / self.num_ranks)

    def predict(self, rows: Rows, batch_size: int, codecs: Codecs) -> dict[str, float]:
        """Metrics of report.score over rows [N], with `codecs`, in global batches of that size.

        Codecs that no training has used yet find classes and thresholds in the first batch.
        """
        logits: list[Tensor] = []
        step = max(len(self.losses) - 1, 0)  # the last one's schedule
        with torch.no_grad():
            for number, begin in enumerate(range(0, len(rows), batch_size)):
                batch = rows[begin : begin + batch_size]
                bags, at = self._find_bags(batch, codecs.shares)
                rows_sent = self.weight[at]
                if number == 0 and codecs is not self.codecs:
                    codecs.measure(0, rows_sent, bags)
                samples = codecs.exchange(
                    rows_sent.view(-1),
                    bags,
                    seed=_step_seed(codecs.seed, self.config.seed, -1 - number),
                    tolerances=codecs.params.tolerances(step).tolist(),
                )
                logits += self._logits(batch, samples)
        labels = torch.from_numpy(rows["label"].astype("f8"))
        return score(torch.sigmoid(torch.cat(logits).double()), labels)

    def _find_bags(self, rows: Rows, shares: Tensor) -> tuple[list[UniqueBags], Tensor]:
        """Each rank's distinct bags, and [U] the rows of `weight` that they look up."""
        ids = torch.from_numpy(rows["categories"].T.copy()) + self.first_row[:, None]
        bags, at = [], []
        for part in ids.split(_sizes(len(rows), self), dim=1):
            values = part.reshape(-1)
            num_bags = torch.full((len(part),), part.shape[1], dtype=torch.int64)
            found = unique_bags(values, torch.ones_like(values), num_bags, shares)
            bags.append(found)
            at.append(values[found.first])
        return bags, torch.cat(at)

    def _logits(self, rows: Rows, samples: Tensor) -> list[Tensor]:
        """Of each rank, by itself. samples: [B, F D]."""
        dlrm, sizes = self.model.model, _sizes(len(rows), self)
        dense = torch.from_numpy(rows["dense"].copy()).split(sizes)
        logits = []
        for x, y in zip(dense, samples.split(sizes), strict=True):
            sparse = y.view(len(y), len(FEATURES), -1)
            joined = dlrm.inter_arch(dense_features=dlrm.dense_arch(x), sparse_features=sparse)
            logits.append(dlrm.over_arch(joined).squeeze(-1))
        return logits

    def _update_tables(self, at: Tensor, gradient: Tensor) -> None:
        different, group = torch.unique(at, return_inverse=True)
        sums = torch.zeros(len(different), gradient.shape[1]).index_add_(0, group, gradient)
        self._tables.step(self.weight, different, sums)


def perturbed(config: ModelConfig) -> ModelConfig:
    """The same model with its initial embeddings off by a relative 1e-6: a null run."""
    return replace(config, init_scale=config.init_scale * (1 + 1e-6))


def train(
    training: EmulatedTraining,
    dataset: Dataset,
    batch_size: int,
    *,
    epochs: int,
    max_steps: int | None = None,
) -> None:
    """All epochs, in global batches of `batch_size`; rows that do not fill the last are left out.

    Raises: ValueError: there are not so many rows.
    """
    num_batches = len(dataset.train) // batch_size
    if not num_batches:
        raise ValueError(f"{len(dataset.train)} training rows are less than one global batch")
    for step in range(min(epochs * num_batches, max_steps or sys.maxsize)):
        begin = step % num_batches * batch_size
        training.train_step(dataset.train[begin : begin + batch_size])


def _sizes(num_samples: int, training: EmulatedTraining) -> list[int]:
    """Samples of each rank, as data.Batches deals them out."""
    ranks = training.num_ranks
    return [num_samples * (r + 1) // ranks - num_samples * r // ranks for r in range(ranks)]


def _step_seed(codec_seed: int, model_seed: int, step: int) -> int:
    """Another for each config seed, model seed and step; steps of evaluation are negative."""
    return ((codec_seed * 1_000_003 + model_seed) * 2**32 + step + 2**31) % 2**63
