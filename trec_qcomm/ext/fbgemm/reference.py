"""Copy of coded rows in plain torch, segment by segment: the definition."""

import torch
from torch import Tensor

from trec_qcomm.core.segments import aligned


def copy(
    source: Tensor,
    source_at: Tensor,
    target: Tensor,
    target_at: Tensor,
    sizes: Tensor,
    *,
    width: int,
    pads: bool,
) -> None:
    """Copy the segments; the arguments are those of `ops.fbgemm._copy`. sizes: [S] int64, bytes."""
    for s, size in enumerate(sizes.tolist()):
        begin, end = int(target_at[s]), int(target_at[s]) + size
        target[begin:end] = source[int(source_at[s]) :][:size]
        if pads:
            target[end : begin + int(aligned(torch.tensor(size)))] = 0
