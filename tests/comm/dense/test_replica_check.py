"""The replica check: who differs, in which parameters, and at which step."""

import re
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.integration.gradients.test_device import net, train
from trec_qcomm import compress_ddp
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.replica_check import checked, digests
from trec_qcomm.comm.rounds import play
from trec_qcomm.core.errors import UnequalReplicasError
from trec_qcomm.testing import run_ranks

PARAMETERS = [ParameterShape(name, numel, 4) for name, numel in (("a", 5), ("b", 7), ("c", 3))]


def no_rounds():
    yield from ()


def test_ranks_that_differ_are_named_with_their_parameters():
    results = [torch.linspace(-1, 1, 15) for _ in range(3)]
    rounds = [checked(no_rounds(), PARAMETERS, r, n, 3, "x") for n, r in enumerate(results)]
    play(rounds)
    results[1][6] = torch.nextafter(results[1][6], torch.tensor(2.0))
    rounds = [checked(no_rounds(), PARAMETERS, r, n, 3, "x") for n, r in enumerate(results)]
    with pytest.raises(UnequalReplicasError, match=r"rank 0: x: .* rank 1 of b; ranks") as error:
        play(rounds)
    assert (error.value.peers, error.value.parameters) == ((1,), ("b",))


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


RULE = {"codec": "float6", "block": 16, "min_numel": 8, "low_rank": {"rank": 2}}
_mm = torch.mm


def other_mm(left, right, *, out=None):
    """Multiply with other roundings, as another processor would."""
    product = _mm(left.double(), right.double()).float()
    return product if out is None else out.copy_(product)


def with_a_rank_that_computes_differently():
    """Return the number of the step that ended in an error, and its text; after a load, too."""
    outcomes = []
    for every, loaded in ((3, False), (1000, True), (0, True)):
        ddp = DistributedDataParallel(net())
        handle = compress_ddp(ddp, {"dense": RULE, "check_replicas_every": every})
        train(ddp, range(1))
        if loaded:
            handle.load_state_dict(handle.state_dict())
        mm = other_mm if dist.get_rank() == 1 else _mm
        step, text = 1, ""
        with mock.patch.object(torch, "mm", mm):
            try:
                for step in range(1, 4):
                    train(ddp, [step])
            except RuntimeError as error:
                text = str(error)
        outcomes.append((step, text))
    return outcomes


@pytest.mark.dist
def test_a_rank_that_computes_differently_is_found_at_the_step_that_was_said():
    for rank, outcomes in enumerate(run_ranks(with_a_rank_that_computes_differently, 2)):
        (at_third, at_load, never) = outcomes
        for step, text in (at_third, at_load):
            assert re.search(rf"other bits than on rank {1 - rank} of .*\b0\.weight", text)
            assert f"all-reduce of dense gradients, step {step}" in text
        assert (at_third[0], at_load[0], never) == (2, 1, (3, ""))
