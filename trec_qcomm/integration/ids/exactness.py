"""Where equal bags may be merged: what the config asks for, and what all lookups can do.

Merging is exact where the optimizer sees the sum of a row's gradients. FBGEMM clips gradients
sample by sample, before it sums them up, so with `gradient_clipping` the result would differ.
All ranks come to the same answer, because it depends on nothing but what all of them know.
"""

from collections.abc import Mapping, Sequence

import torch

from trec_qcomm.config import UniqueBagsChoice
from trec_qcomm.integration.compat import GroupedEmbeddingConfig
from trec_qcomm.integration.ids.unique_bags import AUTO_SHARE

# FBGEMM's, of those that take another batch size for every feature.
_OPTIMIZERS = ("EXACT_SGD", "EXACT_ROWWISE_ADAGRAD", "ENSEMBLE_ROWWISE_ADAGRAD", "ADAM")
_SHARES: Mapping[UniqueBagsChoice, float] = {False: 0.0, "auto": AUTO_SHARE, True: 1.0}


def max_shares(choices: Sequence[UniqueBagsChoice]) -> list[float]:
    """Of each feature, the share of distinct bags up to which they are merged."""
    return [_SHARES[choice] for choice in choices]


def obstacle_to_merging(
    groups_per_rank: Sequence[Sequence[GroupedEmbeddingConfig]], *, held: bool
) -> str | None:
    """Why merging equal bags would change the training of these tables; None where it does not.

    Args: held: the collection is inside of a module that does more with its ids than look up.
    """
    if held:
        return "its module does more with ids than look them up"
    for group in (group for groups in groups_per_rank for group in groups):
        if (group.fused_params or {}).get("gradient_clipping"):
            return f"gradient_clipping, of {_names(group)}, clips those of equal bags one by one"
    return None


def obstacle_to_variable_batches(
    groups_per_rank: Sequence[Sequence[GroupedEmbeddingConfig]], device: torch.device
) -> str | None:
    """Why the lookups take no other batch size for every feature; None where they do."""
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
