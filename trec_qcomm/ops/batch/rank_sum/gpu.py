"""Sum in rank order, in Triton. Same bits as reference.py.

One launch reads every part once and writes every sum once: a program holds BLOCK sums and adds part
after part to them.
"""

import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.ops.device import launch
from trec_qcomm.ops.value_bits import float_of, loadable, to_store

_BLOCK = 2048


def rank_sum(parts: Tensor, out: Tensor) -> None:
    """Write the sum of [P, N] values to `out`, of the same dtype."""
    num_parts, size = parts.shape
    if num_parts == 1:  # a loop that Triton sees is empty breaks its compiler
        out.view(-1).copy_(parts[0])
        return
    vector = 1 if size % 4 else 4
    (terms, kind), (sums, _) = loadable(parts), loadable(out)
    options = {"KIND": kind, "VECTOR": vector, "BLOCK": _BLOCK}
    launch(_rank_sum, -(-size // _BLOCK), terms, sums, num_parts, size, **options)


@triton.jit
def plus(a, b):
    """Return a + b; every NaN has the same bits."""
    total = a + b
    return tl.where(total == total, total, float("nan"))


@triton.jit
def plus_in(a, b, KIND: tl.constexpr):
    """Return a + b of values as they are loaded, with one rounding to their dtype."""
    return to_store(plus(float_of(a, KIND), float_of(b, KIND)), KIND)


@triton.jit(do_not_specialize=["size"])
def _rank_sum(
    parts, out, num_parts, size, KIND: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the sums. VECTOR: a divisor of size, so that all parts begin at multiples of it."""
    q = tl.program_id(0).to(tl.int64) * (BLOCK // VECTOR) + tl.arange(0, BLOCK // VECTOR)
    i = (q * VECTOR)[:, None] + tl.arange(0, VECTOR)[None, :]
    live = (q * VECTOR < size)[:, None]
    total = tl.load(parts + i, mask=live)
    p = 1
    while p < num_parts:
        at = tl.multiple_of(tl.cast(p, tl.int64) * size, VECTOR) + i
        total = plus_in(total, tl.load(parts + at, mask=live), KIND)
        p += 1
    tl.store(out + i, total, mask=live)
