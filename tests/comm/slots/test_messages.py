"""All-reduces in slots: the bits of those whose sizes travel first, played in one process."""

import pytest
import torch

from tests.comm.dense.reductions import gradients, played, reductions, same_bits
from tests.ops.fake_gpu import fake_gpu
from trec_qcomm.codecs import ErrorBounded, Threshold
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS
from trec_qcomm.comm.slots.history import SlotOptions
from trec_qcomm.core.checks import DeferredChecks, deferring

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


@pytest.mark.triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="plays a GPU")
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_gpu_ends_with_the_bits_of_the_cpu(algorithm, name):
    """A GPU announces sizes by slots without history."""
    codec, feedback = CODECS[name]
    world_size = 3
    buckets = [gradients([40, 7], world_size, step) for step in range(2)]

    def means(slots):
        ranks = reductions(algorithm, world_size, codec, error_feedback=feedback, slots=slots)
        with deferring(checks := DeferredChecks()):
            results = [mean for bucket in buckets for mean in played(ranks, [40, 7], bucket)]
        checks.raise_found(wait=True)
        return results

    expected = means(None)
    for slots in (SlotOptions(), None):
        with fake_gpu():
            results = means(slots)
        assert all(same_bits(a, b) for a, b in zip(results, expected, strict=True))
