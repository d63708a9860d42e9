"""Add up the parts that several ranks sent, in rank order: ((part 0 + part 1) + part 2) + ...

Numerics: float32, one rounding an addition. So the result does not depend on the order of arrival,
and its error against exact sums is at most (P - 1) 2^-24 sum|x|. An addition that gives NaN gives
0x7fc00000, because processors differ in the bits of such a NaN. Parts of float16 and bfloat16 are
added in that dtype, with one rounding an addition, as TorchRec's reduce-scatter adds them.
Shapes: P parts of N values.
"""

import torch
from torch import Tensor

from trec_qcomm.core.segments import VALUE_DTYPES, described
from trec_qcomm.ops.batch.rank_sum import cpu, reference
from trec_qcomm.ops.dispatch import arrays, choose_backend, gpu_kernels


def rank_sum(parts: Tensor, out: Tensor) -> None:
    """Write the sum of the parts to `out`.

    Args:
        parts: [P, N] float32, float16 or bfloat16, contiguous, P >= 1.
        out: N values of that dtype in any shape, contiguous, in the same memory.
    Raises: ValueError: another shape, dtype or device.
    """
    if parts.dtype not in VALUE_DTYPES or parts.dim() != 2 or not parts.is_contiguous():
        raise ValueError(f"parts: expected contiguous [P, N] float32, got {described(parts)}")
    if parts.shape[0] == 0:
        raise ValueError("parts: expected at least one")
    if out.dtype != parts.dtype or out.numel() != parts.shape[1] or not out.is_contiguous():
        raise ValueError(f"out: expected {parts.shape[1]} contiguous values, got {described(out)}")
    if out.device != parts.device:
        raise ValueError(f"out: on {out.device}, and the parts on {parts.device}")
    backend = choose_backend(parts)
    if backend == "cpu" and parts.dtype != torch.float32:
        backend = "reference"
    if backend == "cpu":
        cpu.rank_sum(parts.detach().numpy(), *arrays(out))
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        kernels.rank_sum(parts.detach(), out.detach())
