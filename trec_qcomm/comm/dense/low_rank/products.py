"""Products of the matrices of one shape in float32, for what only one rank needs.

On a CPU each matrix is multiplied by itself: a batched product of one matrix gives other bits there
than one of several (it has more threads to use), and DDP's buckets, so the matrices that are
multiplied together, differ between a run and its resumption. On a GPU one batched product takes
all, so that there a resumed run may differ in the last bit of a factor from one that went on.

Knows: matrices. Does not know: gradients.
Shapes: B matrices; the rest is that of torch.bmm.
"""

import torch
from torch import Tensor

from trec_qcomm.wire import frame


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return [B, n, m], the products of B pairs. Args: left: [B, n, k].  right: [B, k, m]."""
    if frame.is_on_gpu(left):
        return torch.bmm(left, right)
    result = left.new_empty(len(left), left.shape[1], right.shape[2])
    for one, other, out in zip(left, right, result, strict=True):
        torch.mm(one, other, out=out)
    return result


def subtract_products(matrices: Tensor, left: Tensor, right: Tensor) -> None:
    """Subtract the products of B pairs from `matrices` [B, n, m], in place."""
    if frame.is_on_gpu(matrices):
        matrices.baddbmm_(left, right, alpha=-1)
        return
    for matrix, one, other in zip(matrices, left, right, strict=True):
        matrix.addmm_(one, other, alpha=-1)
