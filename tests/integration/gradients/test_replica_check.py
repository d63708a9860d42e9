"""compress_ddp with check_replicas_every: a rank that computes differently is found."""

import re
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.integration.gradients.test_device import net, train
from trec_qcomm import compress_ddp
from trec_qcomm.testing import run_ranks

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
