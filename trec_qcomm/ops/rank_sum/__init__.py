"""Sum of what several ranks sent, in rank order: ((part 0 + part 1) + part 2) + ...

Numerics: float32, one rounding an addition, so the result does not depend on who arrived first
and its error against exact sums is at most (P - 1) 2^-24 sum|x|.
Shapes: P parts of N values.
"""

import torch
from torch import Tensor

from trec_qcomm.ops.binding import Backend, arrays
from trec_qcomm.ops.rank_sum import cpu, reference


def rank_sum(parts: Tensor, out: Tensor, *, backend: Backend = "cpu") -> None:
    """Write the sums of [P, N] to `out`, any shape of N values; float32, contiguous, P >= 1.

    Raises: ValueError: another shape, dtype or device.
    """
    if parts.dtype != torch.float32 or parts.dim() != 2 or not parts.is_contiguous():
        raise ValueError(f"parts: expected contiguous [P, N] float32, got {parts.dtype}")
    if parts.device.type != "cpu":
        raise ValueError(f"device {parts.device}: kernels exist for cpu only")
    if parts.shape[0] == 0:
        raise ValueError("parts: expected at least one")
    if out.dtype != torch.float32 or out.numel() != parts.shape[1] or not out.is_contiguous():
        raise ValueError(f"out: expected {parts.shape[1]} contiguous float32, got {out.dtype}")
    if backend == "reference":
        reference.rank_sum(parts, out)
    else:
        cpu.rank_sum(parts.detach().numpy(), *arrays(out))


__all__ = ["rank_sum"]
