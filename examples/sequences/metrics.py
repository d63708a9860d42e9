"""Ranks of the next items among all items, and what is said of them.

Knows: scores. Does not know: models. Shapes: B users, I items.
"""

from __future__ import annotations

import torch
from torch import Tensor

TOP = 10


def ranks_of(scores: Tensor, targets: Tensor, seen: tuple[Tensor, Tensor]) -> Tensor:
    """Return [B] int64, the rank of each target among the items that its user has not seen.

    The best rank is 1. Equal scores, and those that are NaN, count against the target.
    Args:
        scores: [B, I] float.
        targets: [B] int64.
        seen: users (0 to B - 1) and items that are not ranked; targets always are.
    """
    users = torch.arange(len(targets), device=scores.device)
    is_ahead = ~(scores < scores[users, targets][:, None])
    is_ahead[seen] = False
    is_ahead[users, targets] = True  # itself, for the first rank is 1
    return is_ahead.sum(dim=1)


def metrics_of(ranks: Tensor, losses: Tensor) -> dict[str, float]:
    """Return the metrics of a test.

    Args:
        ranks: [U] int64, the rank of the item that came next, from 1.
        losses: [U] float, minus the logarithm of its softmax over all items.
    """
    is_hit = ranks <= TOP
    gains = is_hit / torch.log2(ranks.double() + 1)
    return {
        "loss": float(losses.double().mean()),
        f"ndcg_{TOP}": float(gains.mean()),
        f"hit_rate_{TOP}": float(is_hit.double().mean()),
        "num_users": len(ranks),
    }
