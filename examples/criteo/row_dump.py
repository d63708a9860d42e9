"""Rows and gradients that a trained model looks up, in a file: to choose codecs by.

Knows: the model's parts, one rank's batches, QComm's bypass. Does not know: codecs, how the file is
read (`python -m trec_qcomm preview` is one reader). The rows are exact, whatever the codecs are.
Unlike `QComm.capture_rows` it has ids, rows by sample, and works without the plugin, for benches.
A file made of real data holds traces of these: it is not for publication.
Shapes: n samples of this rank, D values a row, B samples a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from data.dataset import FEATURES, Batches
from ranks import EveryRankError
from torch import Tensor
from torchrec.datasets.utils import Batch
from torchrec.models.dlrm import DLRMTrain
from trainer import Trainer

from trec_qcomm.lab.sizes.rows import write_rows

DUMPED_SAMPLES = 8192  # the last ones, rounded up to whole batches; fewer where there are no more


def check_pooling(pooling: Sequence[int]) -> None:
    """Raise EveryRankError where a sample has several ids of a feature; a file has one for each."""
    if max(pooling) > 1:
        raise EveryRankError(f"dump_rows: needs one id a feature; here are up to {max(pooling)}")


def dump_rows(trainer: Trainer, batches: Batches, path: Path, meta: Mapping[str, Any]) -> None:
    """Write what the last samples of rank 0 look up. Collective.

    The file is a dict for torch.load(path, weights_only=True):
      rows: {table: [n, D] float32}, pooled, in the order of the samples;
      gradients: {table: [n, D] float32}, gradients of the mean loss over the batch on this rank,
        before anything is divided by the number of ranks;
      ids: {table: [n] int64}, by which a reader can make rows distinct;
      meta: dim, batch (samples a batch on this rank), num_samples, and all that is in `meta`.
    Nothing is trained: the weights stay as they are.
    """
    num_batches = min(len(batches), -(-DUMPED_SAMPLES // batches.batch_size))  # equal on all ranks
    last = range(len(batches) - num_batches, len(batches))
    trainer.dmp.eval()
    parts = [_batch_rows(trainer, batches[index].to(trainer.device)) for index in last]
    trainer.dmp.train()
    if dist.get_rank() != 0:
        return
    rows, gradients, ids = (torch.cat(column).unbind(1) for column in zip(*parts, strict=True))
    of_tables = [
        {f"t_{name}": values.contiguous() for name, values in zip(FEATURES, columns, strict=True)}
        for columns in (rows, gradients, ids)
    ]
    num_samples, dim = rows[0].shape
    known = {"batch": batches.batch_size, "dim": dim, "num_samples": num_samples}
    rows_of, gradients_of, ids_of = of_tables
    write_rows(path, rows_of, gradients=gradients_of, ids=ids_of, meta=dict(meta) | known)


def _batch_rows(trainer: Trainer, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and gradients [B, 26, D] and ids [B, 26] of a batch. Collective."""
    (model,) = (m for m in trainer.dmp.modules() if isinstance(m, DLRMTrain))
    dlrm = model.model
    with torch.no_grad(), trainer.qcomm.bypass() if trainer.qcomm else nullcontext():
        rows = dlrm.sparse_arch(batch.sparse_features)
    rows.requires_grad_()
    # The dense part alone, outside of DDP and of the fused optimizer: no weight gets a gradient.
    dense = dlrm.dense_arch(batch.dense_features)
    logits = dlrm.over_arch(dlrm.inter_arch(dense_features=dense, sparse_features=rows))
    loss = model.loss_fn(logits.squeeze(-1), batch.labels)
    (gradients,) = torch.autograd.grad(loss, rows)
    order = [dlrm.sparse_arch.sparse_feature_names.index(name) for name in FEATURES]
    ids = batch.sparse_features.values().view(len(FEATURES), -1).T
    return rows.detach()[:, order].cpu(), gradients[:, order].cpu(), ids.cpu()
