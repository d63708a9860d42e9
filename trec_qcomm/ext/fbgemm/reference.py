"""Copy of coded rows in plain torch, segment by segment: the definition."""

from functools import partial

import torch
from torch import Tensor

from trec_qcomm.core.segments import aligned
from trec_qcomm.ext.fbgemm import rows


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
    """Copy the segments; see `rows`."""
    for s, size in enumerate(sizes.tolist()):
        begin, end = int(target_at[s]), int(target_at[s]) + size
        target[begin:end] = source[int(source_at[s]) :][:size]
        if pads:
            target[end : begin + int(aligned(torch.tensor(size)))] = 0


encode, decode = partial(rows.encode, copy), partial(rows.decode, copy)
