"""Make sharding plans from a word or from patterns of tables' names, evenly over ranks.

Knows: TorchRec's generators of plans. Does not know: ranks that run, codecs.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch import Tensor, nn

from trec_qcomm.integration.compat import (
    EmbeddingCollection,
    FusedEmbeddingBagCollection,
    ModuleSharder,
    ShardingPlan,
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from trec_qcomm.integration.compat.private import has_optimizer_in_backward

Plan: TypeAlias = ShardingPlan | Mapping[str, str] | str | None
Generator: TypeAlias = Any  # TorchRec's ParameterShardingGenerator
Sharders = Mapping[type, ModuleSharder[Any]]  # by type of module
SHARDINGS = ("table_wise", "row_wise", "column_wise", "table_row_wise", "data_parallel")


def shardable_modules(
    model: nn.Module, sharders: Sharders
) -> dict[str, tuple[nn.Module, ModuleSharder[Any]]]:
    """Return the modules that TorchRec would shard, by path, with their sharders. Not nested."""
    modules: dict[str, tuple[nn.Module, ModuleSharder[Any]]] = {}
    for path, module in model.named_modules():
        is_nested = any(path.startswith(f"{outer}." if outer else "") for outer in modules)
        if type(module) in sharders and not is_nested:
            modules[path] = module, sharders[type(module)]
    return modules


def make_plan(
    model: nn.Module, plan: Plan, sharders: Sharders, *, num_ranks: int, ranks_per_node: int
) -> ShardingPlan:
    """Return TorchRec's plan of all modules that can be sharded.

    Args: plan: shardings in the words of `emulate`; a ShardingPlan is checked and returned.
    Raises: ValueError: a plan that names unknown tables or shardings, columns that cannot be cut,
        a two-level sharding on one node, or a table that nothing could train.
    """
    modules = shardable_modules(model, sharders)
    tables = {
        path: sharder.shardable_parameters(module) for path, (module, sharder) in modules.items()
    }
    if isinstance(plan, ShardingPlan):
        _check_given(plan, tables)
        return plan
    names = [name for of_module in tables.values() for name in of_module]
    kinds = _kinds(plan, names)
    places = _Places(num_ranks, ranks_per_node)
    items = [(p, name, table) for p, some in tables.items() for name, table in some.items()]
    generators: dict[tuple[str, str], Generator] = {
        (path, name): places.generator(name, table, kinds[name])
        for path, name, table in sorted(items, key=lambda item: -item[2].numel())
    }
    plans = {}
    for path, (module, sharder) in modules.items():
        plans[path] = construct_module_sharding_plan(
            module,
            {name: generators[path, name] for name in tables[path]},
            sharder=sharder,
            local_size=ranks_per_node,
            world_size=num_ranks,
            device_type="cpu",
        )
        for name, sharding in plans[path].items():
            table, kind = tables[path][name], sharding.sharding_type
            sharding.compute_kernel = _kernel(name, table, module, sharder, kind)
    return ShardingPlan(plans)


def _check_given(plan: ShardingPlan, tables: Mapping[str, Mapping[str, Tensor]]) -> None:
    for path, of_module in plan.plan.items():
        if path not in tables:
            modules = ", ".join(map(repr, tables)) or "none"
            raise ValueError(f"plan: {path!r} is no module to shard; the model has {modules}")
        for name in of_module:
            if name not in tables[path]:
                raise ValueError(
                    f"plan: {path!r} has no table {name!r}; it has {', '.join(tables[path])}"
                )


def _kinds(plan: Mapping[str, str] | str | None, names: list[str]) -> dict[str, str]:
    """Return the sharding of each table."""
    if plan is None:
        plan = {}
    elif isinstance(plan, str):
        plan = {"*": plan}
    for pattern, kind in plan.items():
        if kind not in SHARDINGS:
            raise ValueError(f"plan: {kind!r} is not one of {', '.join(SHARDINGS)}")
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"plan: {pattern!r} matches no table; the model has {', '.join(names) or 'none'}"
            )
    return {
        name: next((kind for p, kind in plan.items() if fnmatchcase(name, p)), "table_wise")
        for name in names
    }


class _Places:
    """Ranks, with the number of values that lie on each so far."""

    def __init__(self, num_ranks: int, ranks_per_node: int) -> None:
        self._filled, self._ranks_per_node = [0] * num_ranks, ranks_per_node

    def generator(self, name: str, table: Tensor, kind: str) -> Generator:
        """Return TorchRec's generator of a table's sharding.

        Raises: ValueError: columns that cannot be cut, or one node where there must be two.
        """
        num_ranks = len(self._filled)
        if kind == "table_wise":
            return table_wise(rank=self._fill(range(num_ranks), table.numel())[0])
        if kind == "row_wise":
            return row_wise()
        if kind == "data_parallel":
            return data_parallel()
        if kind == "table_row_wise":
            if num_ranks == self._ranks_per_node:
                raise ValueError(f"plan: {name!r}: table_row_wise needs ranks_per_node, two nodes")
            nodes = range(num_ranks // self._ranks_per_node)
            filled = [
                sum(self._filled[n * self._ranks_per_node :][: self._ranks_per_node]) for n in nodes
            ]
            node = min(nodes, key=filled.__getitem__)
            self._filled[node * self._ranks_per_node] += table.numel()
            return table_row_wise(host_index=node)
        dim = table.shape[1]
        parts = max((p for p in range(1, num_ranks + 1) if dim % (4 * p) == 0), default=1)
        if parts == 1 < num_ranks:
            raise ValueError(
                f"plan: {name!r}: column_wise cuts columns in multiples of 4; embedding_dim {dim} "
                f"gives no equal parts for {num_ranks} ranks or fewer"
            )
        return column_wise(ranks=self._fill(range(num_ranks), table.numel(), parts))

    def _fill(self, ranks: range, numel: int, parts: int = 1) -> list[int]:
        """Return the ranks with the least, which get a part of a table each."""
        chosen = sorted(sorted(ranks, key=self._filled.__getitem__)[:parts])
        for rank in chosen:
            self._filled[rank] += numel // parts
        return chosen


def _kernel(
    name: str, table: nn.Parameter, module: nn.Module, sharder: ModuleSharder[Any], kind: str
) -> str:
    """Return the kernel that runs the table's optimizer, where one is given with the table.

    Elsewhere the table is a parameter of the sharded model, for the user's own optimizer; TorchRec
    would train it with an SGD that nobody asked for.

    Raises: ValueError: no optimizer for a table whose rows are not pooled.
    """
    if kind == "data_parallel":
        return "dense"
    fused_params = getattr(sharder, "fused_params", None) or {}
    is_fused = "optimizer" in fused_params or has_optimizer_in_backward(table)
    if is_fused or isinstance(module, FusedEmbeddingBagCollection):
        return "fused"
    if isinstance(module, EmbeddingCollection):
        raise ValueError(
            f"plan: table {name!r} of an EmbeddingCollection needs an optimizer on CPU: give "
            "fused_params, or apply_optimizer_in_backward to its parameter"
        )
    return "dense"
