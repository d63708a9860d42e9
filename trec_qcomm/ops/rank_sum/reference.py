"""Sum in rank order, in plain torch: the definition."""

import math

from torch import Tensor


def rank_sum(parts: Tensor, out: Tensor) -> None:
    """Write the sum of [P, N] float32 to `out`."""
    total = out.view(-1)
    total.copy_(parts[0])
    for part in parts[1:]:
        total += part
        total.masked_fill_(total.isnan(), math.nan)
