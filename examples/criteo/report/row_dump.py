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
from dcn import DCN
from failures import EveryRankError
from torch import Tensor
from torchrec.datasets.utils import Batch
from torchrec.models.dlrm import DLRM, DLRMTrain
from trainer import Trainer

from trec_qcomm.lab.debug.row_capture import write_rows

DUMPED_SAMPLES = 8192  # the last ones, rounded up to whole batches; fewer where there are no more

Columns = dict[str, Tensor]  # a table's name -> its values


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
    if dist.get_rank() == 0:
        _save(path, parts, dict(meta) | {"batch": batches.batch_size})


def _batch_rows(trainer: Trainer, batch: Batch) -> tuple[Columns, Columns, Columns]:
    """Return rows, gradients and ids of one batch, each by table. Collective: all ranks look up."""
    model = _only(trainer.dmp, DLRMTrain)
    dlrm = _only(model, (DLRM, DCN))
    with torch.no_grad(), trainer.qcomm.bypass() if trainer.qcomm else nullcontext():
        rows = dlrm.sparse_arch(batch.sparse_features)  # [B, tables, D] or, of a DCN, side by side
    rows.requires_grad_()
    # The dense part alone, outside of DDP and of the fused optimizer: no weight gets a gradient.
    dense = dlrm.dense_arch(batch.dense_features)
    logits = dlrm.over_arch(dlrm.inter_arch(dense_features=dense, sparse_features=rows))
    loss = model.loss_fn(logits.squeeze(-1), batch.labels)
    (gradients,) = torch.autograd.grad(loss, rows)
    ids = batch.sparse_features.to_dict()
    features = dlrm.sparse_arch.sparse_feature_names
    shape = (len(batch.labels), len(features), -1)
    rows, gradients = rows.detach().reshape(shape), gradients.reshape(shape)
    return (
        {f"t_{name}": rows[:, at].cpu() for at, name in enumerate(features)},
        {f"t_{name}": gradients[:, at].cpu() for at, name in enumerate(features)},
        {f"t_{name}": ids[name].values().cpu() for name in FEATURES},
    )


def _save(path: Path, parts: list[tuple[Columns, Columns, Columns]], meta: dict[str, Any]) -> None:
    rows, gradients, ids = ([part[k] for part in parts] for k in range(3))
    joined = {table: torch.cat([columns[table] for columns in rows]) for table in rows[0]}
    num_samples, dim = next(iter(joined.values())).shape
    write_rows(
        path,
        joined,
        gradients={t: torch.cat([columns[t] for columns in gradients]) for t in joined},
        ids={t: torch.cat([columns[t] for columns in ids]) for t in joined},
        meta=meta | {"dim": dim, "num_samples": num_samples},
    )


def _only(module: torch.nn.Module, kind: type[Any] | tuple[type[Any], ...]) -> Any:
    """Return the one part of that class, wherever wrappers have put it."""
    (part,) = (part for part in module.modules() if isinstance(part, kind))
    return part
