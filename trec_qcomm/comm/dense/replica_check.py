"""Check that all ranks ended an all-reduce with equal bits, and hold equal weights.

Ranks have equal bits if they compute the same operations on the same received bytes on equal
machines. Otherwise, or if memory lost a bit, their replicas of the parameters drift apart. So now
and then a digest of each parameter's result and weights is compared.

Knows: parameters, rounds. Does not know: codecs, process groups, which steps are checked.
Source: ours.
Shapes: N ranks; E values of a bucket of P parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.rounds import Round, Rounds
from trec_qcomm.core.errors import UnequalReplicasError

_DIGEST_NBYTES = 8
_MULTIPLIERS = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9  # odd
_SHIFT = 29


def checked(
    rounds: Rounds,
    parameters: Sequence[ParameterShape],
    values: Tensor,
    weights: Sequence[Tensor],
    rank: int,
    ranks: Sequence[int],
    name: str,
) -> Rounds:
    """Run the rounds of an all-reduce, and one more in which all ranks compare their digests.

    Bytes sent: 8 P to each other rank, which no counter counts. The host waits for a GPU once.

    Args:
        parameters: P shapes, in the order of the values.
        values: [E] float32, where the result will be.
        weights: the parameters' own values, E in all.
        rank: this rank's number in the group.
        ranks: global ranks of the group's ranks, for the error.
        name: words for the collective, for errors.
    Raises: UnequalReplicasError: at least one other rank has other bits.
    """
    yield from rounds
    numels, held = [p.numel for p in parameters], torch.cat([w.flatten() for w in weights])
    mine = digests(values, numels) + digests(held, numels) * _MULTIPLIERS[0]
    others = [other for other in range(len(ranks)) if other != rank]
    message, nbytes = mine.view(torch.uint8), [_DIGEST_NBYTES * len(mine)] * len(others)
    received = yield Round(
        sends=[(other, message) for other in others],
        sources=others,
        nbytes=nbytes,
        max_nbytes=nbytes,
    )
    theirs = received.buffer.view(torch.int64).view(len(others), len(mine))
    differs = (theirs != mine).cpu()
    if bool(differs.any()):
        raise UnequalReplicasError(
            rank=ranks[rank],
            peers=[ranks[others[n]] for n in differs.any(dim=1).nonzero().flatten().tolist()],
            parameters=[parameters[n].name for n in differs.any(dim=0).nonzero().flatten()],
            collective=name,
        )


def digests(values: Tensor, numels: Sequence[int]) -> Tensor:
    """Return [P] int64, a digest of all bits of each parameter's values.

    Args: values: [E] float32.  numels: number of values of each parameter.
    """
    places = torch.arange(1, 1 + len(values), device=values.device)
    mixed = values.view(torch.int32) * (places * _MULTIPLIERS[0] | 1)
    mixed = (mixed ^ (mixed >> _SHIFT)) * _MULTIPLIERS[1]
    return torch.stack([part.sum() for part in torch.split(mixed, list(numels))])
