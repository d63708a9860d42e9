"""Data parallel parts of the model: all-reduced by DDP in float32, and counted."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm.core.stats import Traffic
from trec_qcomm.integration.compat import (
    DefaultDataParallelWrapper,
    DistributedModelParallel,
    ShardingEnv,
)
from trec_qcomm.integration.session import Session


class CountedDataParallelWrapper(DefaultDataParallelWrapper):
    """TorchRec's default wrapper; all its options. DATA_PARALLEL tables have DDPs of their own."""

    def __init__(self, session: Session, **options: Any) -> None:
        super().__init__(**options)
        self._session = session

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Wrap the dense part, then count what every DDP of the model all-reduces.

        Raises: ValueError: a config pattern that matches none of the model's tables.
        """
        super().wrap(dmp, env, device)
        self._session.check_patterns()
        dense = dmp._dmp_wrapped_module
        if isinstance(dense, DistributedDataParallel):
            _count(dense, self._session.counters["dense"])
        for lookup in _data_parallel_lookups(dmp):
            _count(lookup, self._session.counters["data_parallel"])


def _data_parallel_lookups(dmp: DistributedModelParallel) -> list[DistributedDataParallel]:
    """The DDPs of DATA_PARALLEL tables, each once: modules around a collection list them, too."""
    lookups = [lookup for module in dmp.modules() for lookup in getattr(module, "_lookups", [])]
    return list(dict.fromkeys(x for x in lookups if isinstance(x, DistributedDataParallel)))


def all_reduce_nbytes(numel: int, world_size: int) -> int:
    """What each rank sends in a ring all-reduce of float32: 2 (N - 1) / N of the data."""
    return 2 * (world_size - 1) * numel * 4 // world_size


def _count(ddp: DistributedDataParallel, traffic: Traffic) -> None:
    """Add one all-reduce for every forward that DDP will follow with one."""
    numel = sum(p.numel() for _, p in _synchronized_parameters(ddp))
    nbytes = torch.tensor([all_reduce_nbytes(numel, ddp.process_group.size())])

    def before_forward(module: nn.Module, _args: Any) -> None:
        if torch.is_grad_enabled() and ddp.require_backward_grad_sync and module.training:
            traffic.add_bytes(torch.tensor([0]), nbytes, nbytes, 0)

    ddp.register_forward_pre_hook(before_forward)


def _synchronized_parameters(ddp: DistributedDataParallel) -> list[tuple[str, nn.Parameter]]:
    ignored = ddp.parameters_to_ignore
    return [
        (name, p)
        for name, p in ddp.module.named_parameters()
        if p.requires_grad and name not in ignored
    ]
