"""What a step costs however small its batch is: counted, as times on shared machines vary."""

import resource

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.comm.dense.reductions import gradients, played, reductions
from trec_qcomm.codecs import ErrorBounded, Float6, Rowwise
from trec_qcomm.comm.frames.coding import encode_frames
from trec_qcomm.comm.frames.decoding import decode_frames
from trec_qcomm.comm.rows.layout import FeatureShard, Layout, packed
from trec_qcomm.core.counters import Traffic
from trec_qcomm.ops.minifloat import cpu

BLOCKS = 16  # values a row, see tests.comm.dense.reductions


# What Tensor.numpy() and torch.from_numpy() call within.
_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.lift_fresh.default)


class CountedOps(TorchDispatchMode):
    """Counter of torch's operators: each takes microseconds and may hand the GIL to a thread."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func not in _ALIASES
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("world_size", "encodings", "decodings"),
    [
        (2, 2, 4),  # each rank's values, once; its own and those of the other rank
        # Three contributions and a sum; three contributions to its part, and the sums of all.
        (3, 4, 6),
    ],
)
def test_an_all_reduce_codes_a_value_no_more_often_than_it_must(
    monkeypatch, world_size, encodings, decodings
):
    numels = [64 * BLOCKS] * 2
    counts = {"encode": 0, "decode": 0}
    for name in counts:
        plain = getattr(cpu, name)

        def counted(first, segments_or_rows, *args, name=name, plain=plain, **options):
            counts[name] += int(segments_or_rows.num_rows.sum()) * segments_or_rows.dim
            return plain(first, segments_or_rows, *args, **options)

        monkeypatch.setattr(cpu, name, counted)
    ranks = reductions("two_shot", world_size, Float6())
    played(ranks, numels, gradients(numels, world_size))
    assert counts == {"encode": encodings * sum(numels), "decode": decodings * sum(numels)}


def test_an_all_reduce_takes_its_memory_once():
    numels = [1 << 20]
    ranks = reductions("two_shot", 2, Float6())
    buckets = gradients(numels, 2)
    for _ in range(3):
        played(ranks, numels, buckets)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    played(ranks, numels, buckets)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    # `played` copies both buckets, and passes messages on in new memory.
    copies = 2 * sum(numels) * 4 + 2 * sum(numels)
    assert faults < copies / resource.getpagesize() * 1.5


@pytest.mark.parametrize("codec", [ErrorBounded(0.01), Rowwise(4), Float6()])
def test_an_exchange_of_many_tables_takes_few_operators(codec):
    names = [f"t{t}" for t in range(26)]
    layout = Layout((tuple(FeatureShard(name, name, 0, 16) for name in names),))
    plan = layout.plan_frames([0], 0, dict.fromkeys(names, codec))
    traffic, rows = Traffic("embedding_forward", layout.tables()), torch.randn(26 * 40 * 16)

    def exchanged(call):
        placed = plan.place(*packed(plan, torch.full((26,), 40)))
        frames = encode_frames(rows, placed, call=call, seed=1, traffic=traffic)
        decode_frames(frames, placed, torch.empty_like(rows), ranks=[0], traffic=traffic)

    exchanged(1)
    with CountedOps() as counted:
        exchanged(2)
    # Counting bytes takes 7 operators, and placing the rows 6.
    assert counted.number <= 30


def test_an_all_reduce_of_many_parameters_takes_few_operators():
    numels = [64 * BLOCKS, BLOCKS, 1] * 8
    ranks = reductions("two_shot", 2, Float6())
    buckets = gradients(numels, 2)
    played(ranks, numels, buckets)
    with CountedOps() as counted:
        played(ranks, numels, buckets)
    assert counted.number / 2 <= 120  # on each rank
