"""All-reduces of some gradients on all ranks, played in one process."""

import torch

from trec_qcomm import Identity
from trec_qcomm.comm.dense.all_reduce import AllReduceOptions, Reduction
from trec_qcomm.comm.dense.chunks import Coding, ParameterShape
from trec_qcomm.core.counters import Traffic
from trec_qcomm.lab.ranks.rounds import play

BLOCK, MIN_NUMEL = 16, 20


def reductions(algorithm, world_size, codec, *, ranks_per_node=None, **coding):
    """Return the reduction of each rank. Args: coding: more fields of the codec's Coding."""
    coding = Coding(codec=codec, exact=Identity(), min_numel=MIN_NUMEL, **coding)
    how = {"algorithm": algorithm, "ranks_per_node": ranks_per_node}
    options = AllReduceOptions(codings=(coding,), seed=3, **how)
    return [
        Reduction(options, rank, world_size, Traffic("dense", ["all"]))
        for rank in range(world_size)
    ]


def parameters(numels, prefix=""):
    return tuple(ParameterShape(f"{prefix}p{n}", numel, BLOCK) for n, numel in enumerate(numels))


def gradients(numels, world_size, step=0):
    """Return a bucket [E] of each rank."""
    return [
        torch.randn(sum(numels), generator=torch.Generator().manual_seed(1000 * step + rank))
        for rank in range(world_size)
    ]


def played(ranks, numels, buckets):
    """Return the bucket of each rank after the all-reduce."""
    shapes = parameters(numels)
    results = [bucket.clone() for bucket in buckets]
    play([r.start(shapes, result) for r, result in zip(ranks, results, strict=True)])
    return results


def watched(rounds, note):
    """Pass rounds on, and call `note` with each."""
    received = None
    while True:
        try:
            wanted = rounds.send(received)
        except StopIteration:
            return
        note(wanted)
        received = yield wanted


def same_bits(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))
