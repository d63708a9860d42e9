"""On a GPU, launches and waits of one encode or decode do not depend on the number of segments.

tests/virtual/test_costs.py counts them without a GPU.
"""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.ops.backends import device_of
from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.core.checks import DeferredChecks, deferring
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ext.dct.masks import Masks

NUM_TABLES, NUM_PEERS, DIM = 26, 64, 4
WAITS = {  # times that an encode waits for the device; a decode, whose checks are deferred, never
    Identity(): 0,
    Cast("fp16"): 0,
    Rowwise(8): 0,
    Rowwise(4, "stochastic"): 0,
    Rowwise(2): 0,
    ErrorBounded(0.01): 1,
    ErrorBounded(0.01, encoder="rans"): 1,
    Float6("e4m1", "stochastic"): 0,
}


def batch(num_segments: int, device: str):
    """Return values and segments of one row, or, if there are many, mostly empty segments.

    A row costs the interpreter a tenth of a second. There are masks, which only some codecs read.
    """
    num_rows = (torch.arange(num_segments) % max(1, num_segments // 26) == 0).to(torch.int64)
    offsets = exclusive_cumsum(num_rows)
    stride = torch.full_like(num_rows, DIM)
    dims = torch.full_like(num_rows, DIM)
    masks = Masks.of_all_columns(num_rows, dims, torch.device(device))
    segments = Segments(offsets, DIM, offsets[:-1] * DIM, stride, notes=masks)
    values = torch.randn(int(offsets[-1]), DIM, generator=torch.Generator().manual_seed(0))
    return values.to(device), segments


def encode_and_decode(codec, num_segments: int, device: str):
    """Return two functions: one encodes, the other decodes its result and defers the checks."""
    values, segments = batch(num_segments, device)
    most = codec.max_nbytes(segments)
    payload = torch.zeros(int(most.sum()), dtype=torch.uint8, device=device)
    at, out, encoded = exclusive_cumsum(most)[:-1], torch.empty_like(values), []

    def encode():
        encoded[:] = [codec.encode(values, segments, payload, at, seed=1)]

    def decode():
        with deferring(DeferredChecks()):
            codec.decode(encoded[0], segments, out)

    return encode, decode


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("codec", WAITS, ids=repr)
def test_nothing_else_waits_or_grows(codec):
    """On a real device nothing that is launched grows, torch's own kernels and copies included."""
    launched = set()
    for num_segments in (1, NUM_TABLES * NUM_PEERS):
        steps = encode_and_decode(codec, num_segments, device_of("gpu"))
        for _ in range(2):  # once to compile
            for step in steps:
                step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
                for step in steps:
                    step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        calls = {event.key: event.count for event in trace.key_averages()}
        launched.add(sum(n for key, n in calls.items() if "LaunchKernel" in key))
        waits = sum(n for key, n in calls.items() if key == "cudaEventSynchronize")
        assert waits == WAITS[codec]
    assert len(launched) == 1
