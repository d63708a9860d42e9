"""Rows exchanged from a GPU's memory: the same rows, gradients and bytes as from the CPU's.

Without a GPU the kernels are interpreted, and frames are taken for ones that the host cannot read.
"""

import re
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.distributed as dist

from tests.ops.backends import device_of
from tests.ops.interpreter import fast_interpreter
from trec_qcomm.codecs import Cast, ErrorBounded, Identity, Rowwise
from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.comm.rows.reduce_scatter import PooledReduceScatter
from trec_qcomm.comm.streams import side_stream
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.ext.dct import ForwardMask, TopK
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.testing import interleaved_segments, round_trip, run_ranks
from trec_qcomm.wire import frame

pytestmark = [pytest.mark.dist, pytest.mark.triton, pytest.mark.timeout(600)]

DIMS = {"a": 8, "b": 7, "c": 1}
OWNED = (("a", "c"), ("b",))
SAMPLES = (3, 5)
CODECS = {
    "rowwise": (Rowwise(4, "stochastic"), Rowwise(8)),
    "cast": (Cast("fp16"), Cast("bf16")),
    "error_bounded": (ErrorBounded(0.05), Rowwise(2)),
    "masks": (TopK(density=0.3, values="fp16"), ForwardMask("int8")),
    "above": (TopK(threshold=0.5, values="fp32"), ForwardMask("fp32")),
    "mixed": ({"a": ErrorBounded(0.05), "b": Identity(), "c": TopK(density=0.5)}, Identity()),
}
SUMS = ("rowwise", "error_bounded", "rowwise, equal batches")


def make(kind, name):
    owned = OWNED if kind is PooledAllToAll else (tuple(DIMS),) * 2
    layout = Layout(
        tuple(tuple(FeatureShard(t, f"f_{t}", 0, DIMS[t]) for t in names) for names in owned)
    )
    forward, backward = (
        c if isinstance(c, dict) else dict.fromkeys(layout.tables(), c)
        for c in CODECS[name.partition(",")[0]]
    )
    exact = dict.fromkeys(layout.tables(), Identity())
    return kind(
        dist.group.WORLD,
        layout,
        codecs=DirectionCodecs(forward, backward),
        exact=DirectionCodecs(exact, exact),
        name=name,
        measure_error=True,
    )


def once(op, device):
    """Rows and gradients of one call, on CPU, and what was counted."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    width, samples = op.layout.dim_sum(op.rank), (4, 4) if "equal" in op.name else SAMPLES
    rows = torch.randn(sum(samples), width, generator=generator).to(device).requires_grad_()
    out = op.start(rows, samples).wait()
    assert out.device.type == device
    gradient = torch.randn(out.shape, generator=generator).to(device)
    (grad,) = torch.autograd.grad(out, rows, gradient)
    op.checks.raise_found(wait=True)
    counted = [
        (t.raw_nbytes, t.wire_nbytes, t.max_abs_err)
        for t in (op.forward_traffic, op.backward_traffic)
    ]
    headers = op.forward_traffic.header_nbytes
    return {"out": out.detach().cpu(), "grad": grad.cpu(), "counted": counted, "headers": headers}


@contextmanager
def as_on_a_gpu():
    """Within, CPU tensors take the way of a GPU's."""
    frame.is_on_gpu = lambda buffer: True
    with default_backend("gpu"), fast_interpreter():
        yield


def damaged(device):
    """Return the errors of `wait` and of the next `start` on rank 0.

    The frame of rank 1 is changed on its way.
    """
    op = make(PooledAllToAll, "rowwise")
    op.measure_error = False  # which reads what was encoded
    rows = torch.randn(sum(SAMPLES), op.layout.dim_sum(op.rank), device=device)
    pending = op.start(rows, SAMPLES)
    frames = pending._call.pending
    with side_stream(rows.device):  # where the frames are received and decoded
        for work in frames.works:  # or bytes that arrive after the damage would undo it
            work.wait()
        frames.works = ()
        received = frames.received
        if dist.get_rank() == 0:
            received.buffer[sum(received.nbytes[:1]) + 12] ^= 1
    try:
        pending.wait()
    except CorruptFrameError as error:
        return f"at once: {error}", ""
    if dist.get_rank() == 1:
        return "", ""
    try:
        torch.cuda.synchronize() if device == "cuda" else None
        op.start(rows, SAMPLES)
    except CorruptFrameError as error:
        return "", str(error)
    return "", ""


def announcing_too_much():
    """What a rank says to peers that announce segments larger than any codec may make them."""
    op = make(PooledAllToAll, "error_bounded")
    rows = torch.randn(sum(SAMPLES), op.layout.dim_sum(op.rank))
    real = dist.all_to_all_single
    dist.all_to_all_single = lambda out, words, **options: real(out, words + 8 * 2**20, **options)
    try:
        op.start(rows.to(device_of("gpu")), SAMPLES)
    except CorruptFrameError as error:
        return str(error)
    finally:
        dist.all_to_all_single = real
    return ""


def everything():
    cases = [(PooledAllToAll, n) for n in CODECS] + [(PooledReduceScatter, n) for n in SUMS]
    results = {}
    for device in ("cpu", device_of("gpu")):
        on_gpu = bool(results)
        with as_on_a_gpu() if on_gpu else nullcontext():
            key = "gpu" if on_gpu else "cpu"
            results[key] = {(k.__name__, n): once(make(k, n), device) for k, n in cases}
            results[f"damaged {key}"] = damaged(device)
            if on_gpu:
                results["announced"] = announcing_too_much()
    dist.barrier()  # a rank that leaves first would reset the other's connection
    return results


@pytest.fixture(scope="module")
def results():
    for codecs in CODECS.values():  # compiles numba's kernels once, and not in each rank
        for codec in codecs:
            if not isinstance(codec, dict | ForwardMask):
                round_trip(codec, torch.randn(4, 8), interleaved_segments(4, 1, 8, gap=0))
    return run_ranks(everything, 2, timeout_s=250)


@pytest.mark.parametrize("name", CODECS)
def test_all_to_all_is_that_of_the_cpu(results, name):
    check(results, "PooledAllToAll", name)


@pytest.mark.parametrize("name", SUMS)
def test_reduce_scatter_is_that_of_the_cpu(results, name):
    check(results, "PooledReduceScatter", name)


def check(results, kind, name):
    for rank in results:
        ours, theirs = rank["gpu"][kind, name], rank["cpu"][kind, name]
        for key in ("out", "grad"):
            assert torch.equal(ours[key].view(torch.int32), theirs[key].view(torch.int32)), key
        for mine, other in zip(ours["counted"], theirs["counted"], strict=True):
            for a, b in zip(mine, other, strict=True):
                assert torch.equal(a, b)


def test_sizes_and_padding_are_counted(results):
    """A word a segment to the peer where sizes vary, in place of a word a peer; and what the frame
    to the peer lacks to a multiple of 128 bytes."""
    for r, rank in enumerate(results):
        for name, gpu_words, cpu_words in (("error_bounded", len(OWNED[r]), 1), ("rowwise", 0, 0)):
            gpu, cpu = (rank[where]["PooledAllToAll", name] for where in ("gpu", "cpu"))
            _, payload, _ = gpu["counted"][0]
            headers = gpu["headers"] - 8 * gpu_words
            padding = headers - (cpu["headers"] - 8 * cpu_words)
            assert 0 <= padding < 128
            assert (headers + int(payload.sum())) % 128 == 0


def test_a_damaged_frame_is_raised_by_the_next_exchange(results):
    assert "rank 1" in results[0]["damaged cpu"][0]
    at_once, later = results[0]["damaged gpu"]
    assert at_once == ""
    assert "frame from rank 1: the sender's tables" in later


def test_a_size_beyond_the_rows_is_refused(results):
    for rank in results:
        message = "frame from rank 0, table 'a': 83886.. bytes of codec 7 announced"
        assert re.fullmatch(message, rank["announced"])
