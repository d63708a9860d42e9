"""Kernels of one table, and a collection of them as far as a sync looks at it."""

from types import SimpleNamespace

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import nn

from trec_qcomm import QComm

INT4 = QComm.from_dict({"sync": {"codec": {"codec": "rowwise", "bits": 4}}})


def fused(num_rows: int = 6) -> SplitTableBatchedEmbeddingBagsCodegen:
    """Make a kernel of one table."""
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(num_rows, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    )


def collection(*kernels: SplitTableBatchedEmbeddingBagsCodegen) -> nn.Module:
    """Make what of a sharded collection is looked at: lookups of kernels, each of a table "t"."""
    table = SimpleNamespace(name="t", local_metadata=None)
    wrapped = [
        SimpleNamespace(emb_module=k, config=SimpleNamespace(embedding_tables=[table]))
        for k in kernels
    ]
    module = nn.Module()
    module._lookups = [SimpleNamespace(_emb_modules=wrapped)]
    return module
