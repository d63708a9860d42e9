"""emulate: shard a user's model over simulated ranks, by TorchRec itself.

Knows: QComm, DistributedModelParallel, played ranks. Does not know: shardings, codecs, optimizers.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trec_qcomm.comm import exchange, peers, sizes, transport
from trec_qcomm.comm.frames import coding
from trec_qcomm.config import Config, read_config
from trec_qcomm.ext.replicas import messages, whole
from trec_qcomm.integration.compat import DistributedModelParallel
from trec_qcomm.integration.compat.private import has_optimizer_in_backward, variables_of_ranks
from trec_qcomm.lab.ranks.plans import Plan, Sharders, make_plan, shardable_modules
from trec_qcomm.lab.ranks.ranks import PlayedRanks
from trec_qcomm.qcomm import QComm

_TIMED = (coding, exchange, messages, peers, sizes, transport, whole)  # what reads a clock


def played_ranks(ranks: int = 4, *, ranks_per_node: int | None = None) -> PlayedRanks:
    """Return N ranks of one process. TorchRec and torch.distributed work on them as on real ranks.

        losses = trec_qcomm.played_ranks(4).run(train)  # what train() returns on each rank

    Their counters have no seconds, because other ranks compute while a rank waits.

    Args:
        ranks: number of ranks.
        ranks_per_node: ranks of each emulated node, for two-level shardings; None: all.
    Raises: ValueError: a number below 1, or nodes that differ in size.
    """
    clocks = {(module, "perf_counter"): float for module in _TIMED}  # float() is always 0
    attributes = variables_of_ranks() | clocks
    return PlayedRanks(ranks, ranks_per_node=ranks_per_node, attributes=attributes)


def emulate(
    model: nn.Module | Callable[[], nn.Module],
    config: Config | Mapping[str, Any] | Path | str,
    ranks: int = 4,
    plan: Plan = None,
    *,
    ranks_per_node: int | None = None,
    **options: Any,
) -> "Emulated":
    """Shard a model over N ranks that this process simulates, and return it.

    Args:
        model: the model before sharding, on CPU, or a function that makes it, which every rank
            calls. All ranks start from its weights, and the model itself stays as it is. TorchRec
            draws tables on the device meta, from each rank's generator.
        config: a Config, a mapping as in YAML, the path of a YAML file, or the name of a preset
            (`trec_qcomm.presets()`).
        ranks: number of ranks.
        plan: a sharding for all tables ("row_wise"), shardings by patterns of tables' names (other
            tables are table-wise), or a ShardingPlan of TorchRec. None: each table whole on one
            rank, large tables first, each to the rank with the least.
        ranks_per_node: ranks of each emulated node, for two-level shardings; None: all.
        options: keyword arguments of `QComm.dmp_arguments`, such as fused_params.

    Raises: ValueError: a config that cannot be read, has `auto`, or has patterns that match no
        table; a plan that names unknown tables or shardings; a number of ranks below 1; a model
        that is not on CPU, or whose replicated parameters have an optimizer in backward.
    """
    return Emulated(model, read_config(config), ranks, plan, ranks_per_node, options)


class Emulated:
    """Model on N ranks that one process simulates; `emulate` makes it.

    Derived:
        models: DistributedModelParallel of each rank.
        qcomms: QComm of each rank, for `stats`, `bypass` and state.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        config: Config,
        ranks: int,
        plan: Plan,
        ranks_per_node: int | None,
        options: Mapping[str, Any],
    ) -> None:
        """Shard the model on every rank. Raises the errors of `emulate`."""
        if config.auto is not None:
            raise ValueError("config: auto times a network; give emulate the preset that it chose")
        self._ranks = played_ranks(ranks, ranks_per_node=ranks_per_node)
        self.config, self.num_ranks = config, ranks

        def shard() -> tuple[DistributedModelParallel, QComm]:
            qcomm = QComm(config)
            arguments = qcomm.dmp_arguments(**options)
            by_type = {sharder.module_type: sharder for sharder in arguments["sharders"]}
            module = _copy(model, by_type) if isinstance(model, nn.Module) else model()
            tables = tables_of(module, by_type)
            sharding_plan = make_plan(
                module, plan, by_type, num_ranks=ranks, ranks_per_node=ranks_per_node or ranks
            )
            dmp = DistributedModelParallel(
                module=module, device=torch.device("cpu"), plan=sharding_plan, **arguments
            )
            load_tables(dmp, tables)
            return dmp, qcomm

        self.models, self.qcomms = map(list, zip(*self._ranks.run(shard), strict=True))

    def run(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
        """Call `function(model, *arguments)` on every rank; return the results, by rank.

            losses = emulated.run(train_step, optimizers, batches)

        Inside it `torch.distributed` is as on a real rank: `dist.get_rank()` tells it its rank.

        Args: columns: for each argument after the model, one item a rank.
        Raises: ValueError: another number of items than ranks.  The error of the first rank that
            fails: after it the ranks are out of step, and cannot be used any more.
        """
        return self._ranks.run(function, self.models, *columns)


def tables_of(model: nn.Module, sharders: Sharders) -> dict[str, nn.Parameter]:
    """Return the parameters that TorchRec would shard in a model, by name."""
    tables = {
        id(parameter)
        for module, sharder in shardable_modules(model, sharders).values()
        for parameter in sharder.shardable_parameters(module).values()
    }
    return {name: p for name, p in model.named_parameters() if id(p) in tables}


def load_tables(dmp: DistributedModelParallel, tables: Mapping[str, Tensor]) -> None:
    """Write whole tables into the shards on this rank. Tables without values (meta) stay drawn.

    TorchRec draws new rows when it shards a model, from the generator of each rank.

    Args: tables: [rows, D] by name, from `tables_of`.
    """
    state = dmp.state_dict()
    for name, table in tables.items():
        if table.is_meta:
            continue
        value = state[name]
        if not hasattr(value, "local_shards"):
            value.detach().copy_(table.detach())
            continue
        for shard in value.local_shards():
            row, column = shard.metadata.shard_offsets
            num_rows, num_columns = shard.tensor.shape
            part = table.detach()[row : row + num_rows, column : column + num_columns]
            shard.tensor.detach().copy_(part)


def _copy(model: nn.Module, sharders: Sharders) -> nn.Module:
    """Return a copy of the model for one rank.

    Tables are not copied: sharding copies their rows, and their optimizers in backward are
    attributes that a copy of a parameter would not have.
    """
    tables = tables_of(model, sharders)
    for name, parameter in model.named_parameters():
        if parameter.device.type not in ("cpu", "meta"):
            raise ValueError(f"model: {name!r} is on {parameter.device}; ranks are played on cpu")
        if name not in tables and has_optimizer_in_backward(parameter):
            raise ValueError(
                f"model: {name!r} has an optimizer in backward, which cannot be copied for each "
                "rank; give a function that makes the model"
            )
    return deepcopy(model, {id(parameter): parameter for parameter in tables.values()})
