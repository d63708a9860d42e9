"""Communication without the plugin: what TorchRec and torch ship, as a user would switch it on.

Knows: TorchRec's codecs, torch's hooks of DDP. Does not know: options, the plugin.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.types import ShardingEnv

STOCK = "stock"  # float32
# TorchRec's own codecs of embeddings; dense gradients stay float32.
COMMS = {"stock_fp16": CommType.FP16, "stock_int8": CommType.INT8}
POWERSGD = "stock_powersgd"  # torch's hook for dense gradients; embeddings stay float32
NAMES = (STOCK, *COMMS, POWERSGD)
RANK = 16
FIRST_STEP = 2  # the least that the hook takes: before it float32 is sent


class PowerSGDWrapper(DefaultDataParallelWrapper):
    """TorchRec's wrapper of what is not sharded, with torch's PowerSGD hook on its DDP.

    The wrapper itself takes only hooks of fp16 and bf16, so this one goes to the DDP that it made.
    """

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Wrap as TorchRec does, and register the hook."""
        super().wrap(dmp, env, device)
        # Not the DDPs of data-parallel tables, whose gradients stay as they are.
        ddps = [m for m in dmp.modules() if isinstance(m, DistributedDataParallel)]
        (ddp,) = [ddp for ddp in ddps if ddp.module is dmp.module]
        # The hook starts its second and third all-reduce from the thread in which the one before
        # ended, so among other collectives, and those of other buckets, their order may differ
        # between ranks: it gets a process group of its own, and TorchRec's DDP has one bucket.
        state = PowerSGDState(
            dist.new_group(dist.get_process_group_ranks(ddp.process_group)),
            matrix_approximation_rank=RANK,
            start_powerSGD_iter=FIRST_STEP,
            use_error_feedback=True,
            warm_start=True,
        )
        ddp.register_comm_hook(state, powerSGD_hook)


def arguments(name: str, fused_params: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of DistributedModelParallel for one of NAMES."""
    registry = None
    if name in COMMS:
        comms = QCommsConfig(forward_precision=COMMS[name], backward_precision=COMMS[name])
        registry = get_qcomm_codecs_registry(comms)
    wrapper = {"data_parallel_wrapper": PowerSGDWrapper()} if name == POWERSGD else {}
    return {"sharders": [EmbeddingBagCollectionSharder(fused_params, registry)]} | wrapper
