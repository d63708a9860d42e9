"""The replica check: who differs, in which parameters, and at which step."""

import pytest
import torch

from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.replica_check import checked, digests
from trec_qcomm.core.errors import UnequalReplicasError
from trec_qcomm.lab.ranks.rounds import play

PARAMETERS = [ParameterShape(name, numel, 4) for name, numel in (("a", 5), ("b", 7), ("c", 3))]


RANKS = 2, 5, 7  # of a group that is not the whole job


def no_rounds():
    yield from ()


def compare(results):
    """Play the check of all ranks. Args: results: the values that each ended with."""
    group = enumerate(results)
    play([checked(no_rounds(), PARAMETERS, r, [r], n, RANKS, "x") for n, r in group])


def test_ranks_that_differ_are_named_with_their_parameters():
    results = [torch.linspace(-1, 1, 15) for _ in range(3)]
    compare(results)
    results[1][6] = torch.nextafter(results[1][6], torch.tensor(2.0))
    with pytest.raises(UnequalReplicasError, match=r"rank 2: x: .* rank 5 of b; ranks") as error:
        compare(results)
    assert (error.value.peers, error.value.parameters) == ((5,), ("b",))


def test_each_bit_and_each_place_counts():
    values = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    seen = {int(digests(values, [2000]))}
    for bit in range(32):
        changed = values.clone()
        changed.view(torch.int32)[7 * bit] ^= -(2**31) if bit == 31 else 1 << bit
        seen.add(int(digests(changed, [2000])))
    for place in range(1, 1000):  # swapped, or moved by a unit in the last place, in pairs
        changed = values.clone()
        changed[[place, place + 1]] = changed[[place + 1, place]]
        seen.add(int(digests(changed, [2000])))
        moved = values.clone()
        moved.view(torch.int32)[[place, place + 3]] += 1
        moved.view(torch.int32)[[place + 1, place + 2]] -= 1
        seen.add(int(digests(moved, [2000])))
    assert len(seen) == 1 + 32 + 2 * 999
    parts = digests(values, [1500, 500])
    assert int(parts[0]) == int(digests(values[:1500], [1500]))
