"""One training of the example's DLRM in one process: its ranks are played, its codecs are real.

It equals train.py on ranks with a table-wise plan: bit for bit where the codecs draw no noise, but
for the last bits of row-wise Adagrad. Equal initial weights, batches and order; a rank's samples go
through the dense layers by themselves; gradients of the ranks are averaged.

Knows: model.py's DLRM, comm.emulate, a trec_qcomm config. Does not know: files, other trainings.
Shapes: P ranks, F = 26 features, B samples of a global batch, U distinct rows of all ranks,
V rows of all tables, D values a row.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from data.dataset import FEATURES, Dataset
from data.tsv import Rows
from model import ModelConfig, build_dlrm, dense_optimizer, init_embeddings
from report.metrics import score
from torch import Tensor
from torchrec.models.dlrm import DLRMTrain

from emulation.all_reduce import EmulatedAllReduce
from emulation.codecs import Codecs
from emulation.optimizers import make_optimizer
from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.ops.unique import UniqueBags, unique_bags


@dataclass
class EmulatedTraining:
    """A DLRM and its optimizers, trained as `num_ranks` ranks would train it.

    Args:
        config: the model and its optimizers.
        num_embeddings: [F], rows of each table.
        num_ranks: number of ranks that are played.
        codecs: codecs of the training.
    Derived:
        model: the dense layers; its tables have no storage.
        weight: [V, D], all tables.
        first_row: [F], where each table begins in `weight`.
        losses: training loss of each step, the mean over ranks.
    """

    config: ModelConfig
    num_embeddings: Sequence[int]
    num_ranks: int
    codecs: Codecs
    model: DLRMTrain = field(init=False)
    weight: Tensor = field(init=False)
    first_row: Tensor = field(init=False)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = build_dlrm(self.config, self.num_embeddings)
        tables = self.model.model.sparse_arch.embedding_bag_collection
        tables.to_empty(device=torch.device("cpu"))
        init_embeddings(self.model, self.config)
        bags = tables.embedding_bags
        self.weight = torch.cat([bags[f"t_{f}"].weight.detach() for f in FEATURES])
        self.first_row = exclusive_cumsum(torch.tensor(self.num_embeddings))[:-1]
        tables.to_empty(device=torch.device("meta"))
        self._tables = make_optimizer(
            self.config.embedding_optimizer, self.config.lr, len(self.weight)
        )
        named = self.model.model.named_parameters()
        parameters = {name: p for name, p in named if not p.is_meta}
        self._dense = dense_optimizer(list(parameters.values()), self.config)
        self.all_reduce = EmulatedAllReduce(
            parameters, self.num_ranks, self.codecs.dense, self.codecs.seed
        )

    def train_step(self, rows: Rows) -> None:
        """Take one step on a global batch [B]."""
        step = len(self.losses)
        bags, at = self._find_bags(rows, self.codecs.shares)
        looked_up = self.weight[at].requires_grad_()
        self.codecs.measure(step, looked_up, bags)
        samples = self.codecs.exchange(
            looked_up.view(-1),
            bags,
            seed=_step_seed(self.codecs.seed, self.config.seed, step),
            tolerances=self.codecs.tolerances.tolerances(step).tolist(),
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
        """Return the metrics of report.metrics.score over rows [N].

        Args:
            rows: [N], rows of the test.
            batch_size: samples of a global batch.
            codecs: codecs to send rows with. Those that no training has used yet find their classes
                and thresholds in the first batch.
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
                    tolerances=codecs.tolerances.tolerances(step).tolist(),
                )
                logits += self._logits(batch, samples)
        labels = torch.from_numpy(rows["label"].astype("f8"))
        if labels.min() == labels.max():
            raise ValueError(f"the labels of all {len(labels)} test rows are {labels[0]:.0f}")
        return score(torch.sigmoid(torch.cat(logits).double()), labels)

    def _find_bags(self, rows: Rows, shares: Tensor) -> tuple[list[UniqueBags], Tensor]:
        """Return each rank's distinct bags, and [U], the rows of `weight` that they look up."""
        ids = torch.from_numpy(rows["categories"].T.copy()) + self.first_row[:, None]
        bags, at = [], []
        for part in ids.split(_sizes(len(rows), self), dim=1):
            values = part.reshape(-1)
            num_bags = torch.full((len(part),), part.shape[1], dtype=torch.int64)
            distinct = unique_bags(values, torch.ones_like(values), num_bags, shares)
            bags.append(distinct)
            at.append(values[distinct.first])
        return bags, torch.cat(at)

    def _logits(self, rows: Rows, samples: Tensor) -> list[Tensor]:
        """Return the logits of each rank, computed by itself. Args: samples: [B, F D]."""
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


def train(
    training: EmulatedTraining,
    dataset: Dataset,
    batch_size: int,
    *,
    epochs: int,
    max_steps: int | None = None,
) -> None:
    """Train in global batches of `batch_size`; rows that do not fill the last one are left out.

    Raises: ValueError: the data set has fewer rows than a batch.
    """
    num_batches = len(dataset.train) // batch_size
    if not num_batches:
        raise ValueError(f"{len(dataset.train)} training rows are less than one global batch")
    for step in range(min(epochs * num_batches, max_steps or sys.maxsize)):
        begin = step % num_batches * batch_size
        training.train_step(dataset.train[begin : begin + batch_size])


def _sizes(num_samples: int, training: EmulatedTraining) -> list[int]:
    """Return the number of samples of each rank, equal to what dataset.Batches gives it."""
    ranks = training.num_ranks
    return [num_samples * (r + 1) // ranks - num_samples * r // ranks for r in range(ranks)]


def _step_seed(codec_seed: int, model_seed: int, step: int) -> int:
    """Return a seed that differs by config, model and step; steps of evaluation are negative."""
    return ((codec_seed * 1_000_003 + model_seed) * 2**32 + step + 2**31) % 2**63
