"""BagMerging: where one sharding merges equal bags, decided once, when the sharding is made.

The config asks for merging table by table (`unique_bags`). Optimizers and kernels of the tables
limit it. Merging is exact if the optimizer sees the sum of a row's gradients. With
`gradient_clipping` FBGEMM clips gradients sample by sample before it sums them up, so the result
would differ. All ranks decide alike, because the decision depends only on what all of them know.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from trec_qcomm.config import AUTO_SHARE, Config, UniqueBagsChoice
from trec_qcomm.integration.compat import GroupedEmbeddingConfig

# Optimizers of FBGEMM whose lookups take another batch size for every feature.
_OPTIMIZERS = ("EXACT_SGD", "EXACT_ROWWISE_ADAGRAD", "ENSEMBLE_ROWWISE_ADAGRAD", "ADAM")
_SHARES: Mapping[UniqueBagsChoice, float] = {False: 0.0, "auto": AUTO_SHARE, True: 1.0}

Groups = Sequence[Sequence[GroupedEmbeddingConfig]]


class MergePoint(Enum):
    """Step at which the equal bags of a batch become one."""

    INPUT_DIST = "before the input dist"  # fewer ids, lookups, rows and gradients
    LOOKUP = "after the lookup"  # fewer rows and gradients


@dataclass(frozen=True)
class BagMerging:
    """Policy of one sharding: where it merges equal bags, and which tables' bags.

    Args:
        point: the step at which bags are merged; None: nowhere
        max_shares: for each table, the largest share of distinct bags at which bags are merged
    """

    point: MergePoint | None = None
    max_shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def may_pause(self) -> bool:
        """Whether the search may pause after batches without equal bags: no table says `true`."""
        return self.point is not None and max(self.max_shares.values(), default=0.0) < 1

    def shares_of(self, tables: Iterable[str]) -> Tensor:
        """Return [F] float64, the largest share for the table of each of F features."""
        return torch.tensor([self.max_shares[table] for table in tables], dtype=torch.float64)


def plan_merging(
    config: Config,
    groups_per_rank: Groups,
    *,
    is_nested: bool,
    variable_batch_obstacle: str | None = None,
    can_merge_after_lookup: bool = False,
    dtype: torch.dtype = torch.float32,
) -> BagMerging:
    """Decide where a sharding merges equal bags.

    Args:
        groups_per_rank: tables of each rank, grouped by lookup kernel
        is_nested: whether the collection is inside a module that does more with ids than look up
        variable_batch_obstacle: reason why its lookups take no merged batch; None: they take it
        can_merge_after_lookup: whether each rank that has a bag has all ids of it
        dtype: dtype of the rows
    Raises: ValueError: `unique_bags: true` where merging is impossible or not exact.
    """
    tables = [t.name for groups in groups_per_rank for g in groups for t in g.embedding_tables]
    choices = {table: config.rule_for(table).unique_bags for table in tables}
    if not any(choices.values()):
        return BagMerging()
    obstacle = _obstacle_to_exactness(groups_per_rank, is_nested=is_nested)
    if dtype != torch.float32:
        obstacle = obstacle or f"gradients of equal bags are summed in float32, and are {dtype}"
    if not can_merge_after_lookup:
        obstacle = obstacle or variable_batch_obstacle
    if obstacle is None:
        point = MergePoint.LOOKUP if variable_batch_obstacle else MergePoint.INPUT_DIST
        return BagMerging(point, {table: _SHARES[choice] for table, choice in choices.items()})
    for table, choice in choices.items():
        if choice is True:
            raise ValueError(
                f"unique_bags: true for table {table!r}: {obstacle}; allowed here: false, auto"
            )
    return BagMerging()


def _obstacle_to_exactness(groups_per_rank: Groups, *, is_nested: bool) -> str | None:
    """Return the reason why merging would change the training of these tables, or None."""
    if is_nested:
        return "its module does more with ids than look them up"
    for group in (group for groups in groups_per_rank for group in groups):
        if (group.fused_params or {}).get("gradient_clipping"):
            return f"gradient_clipping, of {_names(group)}, clips those of equal bags one by one"
    return None


def obstacle_to_variable_batches(groups_per_rank: Groups, device: torch.device) -> str | None:
    """Return why lookups take no batch with a size for every feature; None: they take it."""
    for groups in groups_per_rank:
        if device.type == "cpu" and len(groups) > 1:
            names = " and ".join(_names(group) for group in groups)
            return f"{names} are looked up by several kernels, which TorchRec cannot join on CPU"
        for group in groups:
            if group.compute_kernel.value == "dense":
                return f"the compute kernel of {_names(group)} is dense"
            optimizer = (group.fused_params or {}).get("optimizer")
            name = getattr(optimizer, "name", "EXACT_SGD")  # FBGEMM's default
            if name not in _OPTIMIZERS:
                return f"FBGEMM's {name}, of {_names(group)}, is none of {', '.join(_OPTIMIZERS)}"
    return None


def _names(group: GroupedEmbeddingConfig) -> str:
    return ", ".join(table.name for table in group.embedding_tables)
