"""Lookups whose rows are FP16 or BF16 when they leave the kernel: does the plugin take them?

FBGEMM's lookups for CPU give FP16 and not BF16, which the plugin refuses there by name.
"""

from __future__ import annotations

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import trec_qcomm

DTYPES = ("fp32", "fp16", "bf16")


def uncoded_nbytes(dtype: str) -> int:
    """Return the bytes, before coding, of the rows that two played ranks send each other in a step.

    0: the plugin refuses such a lookup.

    Args: dtype: one of DTYPES, `output_dtype` of the embedding kernel.
    """
    fused_params = {
        "optimizer": EmbOptimType.EXACT_SGD,
        "learning_rate": 0.1,
        "output_dtype": SparseType(dtype),
    }
    try:
        emulated = trec_qcomm.emulate(_model(), "fp16_bf16", ranks=2, fused_params=fused_params)
    except ValueError as error:
        if "output_dtype" not in str(error):
            raise
        return 0
    emulated.run(_step)
    return sum(qcomm.stats().embedding_forward.raw_nbytes for qcomm in emulated.qcomms)


def _model() -> nn.Module:
    table = EmbeddingBagConfig(name="t", embedding_dim=8, num_embeddings=10, feature_names=["f"])
    return nn.Sequential(EmbeddingBagCollection(tables=[table]))


def _step(model: nn.Module) -> None:
    ids = KeyedJaggedTensor(
        keys=["f"], values=torch.tensor([1, 2]), lengths=torch.ones(2, dtype=torch.int32)
    )
    model(ids).values().sum().backward()
