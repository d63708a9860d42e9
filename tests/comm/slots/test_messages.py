"""All-reduces in slots: the bits of those whose sizes travel first, played in one process."""

import pytest
import torch

from tests.comm.dense.reductions import gradients, played, reductions, same_bits
from trec_qcomm.codecs import ErrorBounded, Threshold
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS
from trec_qcomm.comm.slots.history import SlotOptions

NUMELS = [300, 7, 70]
STEPS = 5
CALM = (0, 1, 2, 4)  # steps whose gradients code well
CODECS = {
    "bound": (ErrorBounded(0.02), False),
    "threshold": (Threshold(0.01, values="int8"), True),
}


def training(algorithm, world_size, name, slots):
    """Return the means, the residuals and the counters of a few steps."""
    codec, feedback = CODECS[name]
    ranks = reductions(algorithm, world_size, codec, error_feedback=feedback, slots=slots)
    results = []
    for step in range(STEPS):
        buckets = gradients(NUMELS, world_size, step)
        if step in CALM:
            buckets = [(bucket > 1.0) + 1e-4 * bucket for bucket in buckets]
        results += played(ranks, NUMELS, buckets)
        for rank in ranks if feedback else []:
            for sites in rank.error_feedback.state_dict().values():
                results += sites.values()
    return results, [rank.traffic for rank in ranks]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_slots_change_no_bit(algorithm, world_size, name):
    theirs, announced = training(algorithm, world_size, name, None)
    ours, in_slots = training(algorithm, world_size, name, SlotOptions())
    assert all(same_bits(a, b) for a, b in zip(ours, theirs, strict=True))
    for with_slots, without in zip(in_slots, announced, strict=True):
        assert without.num_overflows == without.padding_nbytes == 0
        assert torch.equal(with_slots.wire_nbytes, without.wire_nbytes)
        if world_size > 1:
            assert with_slots.num_overflows >= 1  # the first step has no history
            assert with_slots.header_nbytes > without.header_nbytes
    overflows = sum(traffic.num_overflows for traffic in in_slots)
    padding = sum(traffic.padding_nbytes for traffic in in_slots)
    assert bool(overflows) == bool(padding) == (world_size > 1)
