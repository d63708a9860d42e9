"""Error of a quantized all-reduce against the number of ranks, ring and recursive doubling.

Knows: all-reduces of played ranks, without a training. Does not know: papers.
Error: the root mean square of (sum over ranks - exact sum) over that of the exact sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import get_args

import torch
from torch import Tensor

from examples.papers.measured.gradients import backward_of_batches
from examples.papers.measurements import Values
from trec_qcomm import Identity, Rowwise
from trec_qcomm.codecs.rowwise import Rounding
from trec_qcomm.comm.dense.all_reduce import AllReduceOptions, FlatAlgorithm, Reduction
from trec_qcomm.comm.dense.chunks import Coding, ParameterShape
from trec_qcomm.comm.rounds import play
from trec_qcomm.config import GradientRule
from trec_qcomm.core.counters import Traffic

NUM_RANKS = (2, 4, 8, 16, 32, 64)
ALGORITHMS: tuple[FlatAlgorithm, ...] = ("ring", "recursive_doubling")
BITS = 4


def cases(
    num_seeds: int, num_ranks: Sequence[int] = NUM_RANKS
) -> Mapping[str, Callable[[], Values]]:
    """Return the measurements by name, `ring nearest 64`; values are errors by seed."""
    return {
        f"{algorithm} {rounding} {ranks}": partial(
            _errors, algorithm, rounding, ranks, num_seeds, max(num_ranks)
        )
        for algorithm, rounding, ranks in product(ALGORITHMS, get_args(Rounding), num_ranks)
    }


def _errors(
    algorithm: FlatAlgorithm, rounding: Rounding, num_ranks: int, num_seeds: int, num_batches: int
) -> Values:
    return {
        f"seed {seed}": error(
            algorithm,
            rounding,
            [b.dense for b in backward_of_batches(num_batches, seed)[:num_ranks]],
        )
        for seed in range(num_seeds)
    }


def error(
    algorithm: FlatAlgorithm, rounding: Rounding, gradients: Sequence[Mapping[str, Tensor]]
) -> float:
    """Return the error of the sum of gradients, one of each rank."""
    rule = GradientRule(codec=Rowwise(BITS, rounding))
    coding = Coding(codec=rule.codec, exact=Identity(), min_numel=rule.min_numel)
    options = AllReduceOptions(codings=(coding,), algorithm=algorithm, seed=0)
    shapes = [ParameterShape(name, g.numel(), rule.block) for name, g in gradients[0].items()]
    buckets = [torch.cat([g.reshape(-1) for g in rank.values()]) for rank in gradients]
    exact = torch.stack(buckets).double().mean(dim=0)
    reductions = [
        Reduction(options, rank, len(buckets), Traffic("dense", ["all"]))
        for rank in range(len(buckets))
    ]
    results = [bucket.clone() for bucket in buckets]
    play([r.start(shapes, b) for r, b in zip(reductions, results, strict=True)])
    if not all(torch.equal(result, results[0]) for result in results):
        raise AssertionError(f"{algorithm}: ranks end with different sums")
    return float((results[0].double() - exact).norm() / exact.norm())
