"""All-reduce the replicated parts of a model as the config says, or by DDP, and count the bytes.

Knows: TorchRec's wrapper, DDP, the session. Does not know: codecs, algorithms.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm.comm.dense.all_reduce import ring_nbytes
from trec_qcomm.core.counters import Traffic
from trec_qcomm.integration.compat import (
    DefaultDataParallelWrapper,
    DistributedModelParallel,
    ShardedModule,
    ShardingEnv,
)
from trec_qcomm.integration.compat.private import dense_module, lookups
from trec_qcomm.integration.embedding.modules import (
    CodedShardedEmbeddingCollection,
    refuse_prioritized,
)
from trec_qcomm.integration.session import Session


class CountedDataParallelWrapper(DefaultDataParallelWrapper):
    """TorchRec's default wrapper, which also takes over or counts the all-reduces of DDPs.

    There is a DDP for the replicated part, and one for each lookup of DATA_PARALLEL tables.
    """

    def __init__(self, session: Session, **options: Any) -> None:
        """Make a wrapper with TorchRec's options.

        Args: options: keyword arguments of TorchRec's wrapper.
        Raises: ValueError: the config has `dense` and the options have allreduce_comm_precision.
        """
        super().__init__(**options)
        self._session = session
        self._precision: str | None = options.get("allreduce_comm_precision")
        if session.config.dense is not None and self._precision is not None:
            raise ValueError(
                f"{session.config.source}: dense and allreduce_comm_precision "
                f"{self._precision!r} exclude one another: leave one out"
            )

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Wrap the replicated part, then take over or count the all-reduces of every DDP.

        Raises: ValueError: one of these:
            - a pattern of the config matches no table of the model
            - the config has rules for tables, but no sharder of this QComm sharded any table
            - a path of the plan is not in the model, or its module has no sharder, so that TorchRec
              would replicate it in silence
            - a PECEmbeddingCollection is around our sharder
            - a pattern of `debug` matches no table and no dense parameter
        """
        _check_all_sharded(dmp)
        for module in dmp.modules():
            if any(isinstance(x, CodedShardedEmbeddingCollection) for x in module.children()):
                refuse_prioritized(module)
        self._check_sharders(dmp)
        self._session.check_patterns()
        super().wrap(dmp, env, device)
        self._session.is_wrapped = True
        dense = dense_module(dmp)
        if isinstance(dense, DistributedDataParallel) and not self._session.add_dense(dense):
            narrow = self._precision in ("fp16", "bf16")
            _count(dense, self._session.counters["dense"], wire_itemsize=2 if narrow else 4)
        for lookup in _data_parallel_lookups(dmp):
            if not self._session.add_lookup(lookup):
                _count(lookup, self._session.counters["data_parallel"])
        self._session.check_names()

    def _check_sharders(self, dmp: DistributedModelParallel) -> None:
        """Raise ValueError where the config has rules for tables and other sharders sharded them.

        A config without such rules goes with any sharders, and any config with a model that has no
        sharded tables.
        """
        session = self._session
        if session.tables or not session.config.embedding:
            return
        if _sharded_modules(dmp):
            raise ValueError(
                "no table was sharded by this QComm; pass sharders=qcomm.sharders() to "
                "DistributedModelParallel (qcomm.dmp_arguments() has both), or leave embedding "
                f"out of {session.config.source}"
            )


def _sharded_modules(dmp: DistributedModelParallel) -> list[str]:
    """Return the paths of the model's sharded modules."""
    modules = dense_module(dmp).named_modules()
    return [path for path, module in modules if isinstance(module, ShardedModule)]


def _check_all_sharded(dmp: DistributedModelParallel) -> None:
    for path in dmp.plan.plan:
        try:
            module = dense_module(dmp).get_submodule(path)
        except AttributeError as error:
            sharded = ", ".join(_sharded_modules(dmp)) or "nothing"
            raise ValueError(
                f"plan: the model has no module {path!r}; sharded is: {sharded}"
            ) from error
        if not isinstance(module, ShardedModule):
            raise ValueError(
                f"plan: {path!r} is a {type(module).__name__}, for which no sharder was given; "
                "qcomm.sharders() has none for it"
            )


def _data_parallel_lookups(dmp: DistributedModelParallel) -> list[DistributedDataParallel]:
    """Return the DDPs of DATA_PARALLEL tables, each once, although several modules list it."""
    all_lookups = [lookup for module in dmp.modules() for lookup in lookups(module)]
    return list(dict.fromkeys(x for x in all_lookups if isinstance(x, DistributedDataParallel)))


def _count(ddp: DistributedDataParallel, traffic: Traffic, *, wire_itemsize: int = 4) -> None:
    """From now on count one all-reduce for every forward pass that DDP follows with one."""
    numel = sum(
        p.numel()
        for name, p in ddp.module.named_parameters()
        if p.requires_grad and name not in ddp.parameters_to_ignore
    )
    world_size = ddp.process_group.size()
    raw = torch.tensor([ring_nbytes(numel, world_size)])
    wire = torch.tensor([ring_nbytes(numel, world_size, wire_itemsize)])

    def before_forward(module: nn.Module, _args: Any) -> None:
        if torch.is_grad_enabled() and ddp.require_backward_grad_sync and module.training:
            traffic.add_bytes(torch.tensor([0]), raw, wire, 0)

    ddp.register_forward_pre_hook(before_forward)
