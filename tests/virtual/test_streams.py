"""Nothing that runs on a GPU's streams uses memory that another stream may change or get anew."""

import re
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

from tests.virtual import exchanges
from tests.virtual.dry_run import GPU, Group, dry_run
from tests.virtual.exchanges import dense_step, make, row_names, step_of
from tests.virtual.stream_run import StreamRun, VirtualStream, VirtualWork
from trec_qcomm.codecs import Identity, Rowwise
from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.autograd import RowExchange
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.core.counters import BagCounts, Traffic
from trec_qcomm.ext.feedback.residuals import RowFeedbackTransform
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.integration.embedding.dists import CodedRowWiseDist
from trec_qcomm.integration.ids import unique_bags
from trec_qcomm.integration.ids.bag_merging import BagMerging, MergePoint
from trec_qcomm.integration.ids.batch_notes import SentIds, hand_over_notes, notes_on
from trec_qcomm.integration.ids.unique_bags import expand_bags, merge_bags

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(torch.cuda.is_available(), reason="plays a GPU"),
]


@contextmanager
def stream_run():
    with dry_run(StreamRun) as run, run:
        yield run


def exchange(name: str = "all-to-all rowwise") -> None:
    """Run two steps of an exchange, forward and backward, as a model would."""
    forward = step_of(make(*name.split()))
    for _ in range(2):
        rows, out = forward()
        (gradient,) = torch.autograd.grad(out * 2, rows, torch.empty_like(out))
        gradient.mul_(2)
        del rows, out, gradient


@pytest.mark.parametrize("name", row_names())
def test_exchanges(name):
    with stream_run() as run:
        exchange(name)
    assert run.faults == []


@pytest.mark.parametrize("name", exchanges.dense_names())
def test_all_reduces(name):
    with stream_run() as run:
        step, bucket = dense_step(*name.split())
        for _ in range(2):
            bucket.mul_(2)
            step().wait()
            bucket.mul_(2)
        del step, bucket
    assert run.faults == []


def forget(*_tensors):
    """Take the place of what records streams. A mock would keep the tensors alive."""


DIRECTIONS = ("forward", "backward")
PLANTED = {
    "a collective that is not waited for": (
        mock.patch.object(VirtualWork, "wait"), "reads what all-to-all on communicator may still",
    ),
    "streams that do not wait for one another": (
        mock.patch.object(VirtualStream, "wait_stream"), "may still write",
    ),
    "memory whose use is not recorded": (
        mock.patch.object(StreamRun, "record", forget), "freed to rows while",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_found(fault):
    patch, text = PLANTED[fault]
    with patch, stream_run() as run:
        exchange()
    assert any(text in fault for fault in run.faults), run.faults


def test_a_gradient_that_is_coded_is_not_added_to(monkeypatch):
    """Autograd adds in place to a gradient that it alone refers to, which a stream may yet read.

    It does not where operations are watched, or tensors lack memory. So here the CPU's are taken,
    whose exchange is over at once, and the place of the sum is looked at.
    """
    places, launch = {}, RowExchange.launch

    def launched(call, values, direction):
        places[direction] = values.data_ptr()
        launch(call, values, direction)

    monkeypatch.setattr(RowExchange, "launch", launched)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *group: 0)
    codecs = DirectionCodecs({"t": Identity()}, {"t": Identity()})
    layout = Layout(((FeatureShard("t", "f", 0, 4),),))
    op = PooledAllToAll(Group(1), layout, codecs=codecs, exact=codecs, name="alone")
    rows, other = torch.ones(2, 3, 4).requires_grad_().unbind()
    used_twice = other * 2
    used_twice.register_hook(lambda gradient: places.update(sum=gradient.data_ptr()))
    pending = op.start(rows, [3])
    early = used_twice * 3  # its backward runs between those of `wait` and `start`
    out = (pending.wait() + used_twice) * 2
    (early.sum() + out.sum()).backward()
    assert places["sum"] != places["backward"]


class InputDist(nn.Module):
    """Dist of ids, which sends nothing."""

    def forward(self, features):
        return features


class OutputDist(nn.Module):
    """Dist of rows, which sends nothing; what is done with them is appended to its result."""

    def forward(self, rows, context):
        return SimpleNamespace(callbacks=[], rows=rows)


def batch_of_ids():
    ids, ones = torch.empty(2, 4096, dtype=torch.int64, device=GPU)
    return KeyedJaggedTensor(["f"], ids, lengths=ones, stride=4096, stride_per_key=[4096])


def pipelined(run: StreamRun) -> None:
    """Run three steps with distinct bags, whose ids a stream of their own prepares, a batch ahead.

    The streams wait for one another as in TrainPipelineSparseDist, which records the batch but not
    what is noted about it.
    """
    shards = [FeatureShard("t", "f", 0, 64)]
    input_dist, output_dist, ids_stream = InputDist(), OutputDist(), VirtualStream(run, "ids")
    merging = BagMerging(MergePoint.INPUT_DIST, {"t": 1.0})
    merge_bags(input_dist, merging, shards, BagCounts())
    expand_bags(output_dist, shards, [])

    def start():
        context = SimpleNamespace()
        run.replies.append(torch.tensor([1000, 1000, 0, 4096]))
        with run.on(ids_stream):
            input_dist(batch_of_ids())
            hand_over_notes([context], [input_dist])
        return context

    contexts = [start()]
    for _ in range(3):
        run.main.wait_stream(ids_stream)
        contexts.append(start())
        rows = torch.empty(1000 * 64, device=GPU, requires_grad=True)
        awaitable = output_dist(rows, contexts.pop(0))
        (expand,) = awaitable.callbacks
        torch.autograd.grad(expand(rows), rows, torch.empty(4096, 64, device=GPU))
        del rows, awaitable, expand


def test_distinct_bags_in_a_pipeline():
    with stream_run() as run:
        pipelined(run)
    assert run.faults == []


def test_a_pipeline_that_does_not_record_distinct_bags():
    with stream_run() as run, mock.patch.object(unique_bags, "use_here", forget):
        pipelined(run)
    assert run.faults
    assert all(
        re.fullmatch("freed to ids while .* on main may still use it", f) for f in run.faults
    )


def fed(run: StreamRun, dims: list[int]) -> None:
    """Run three steps with residuals of gradients by id; the ids come from a stream of their own.

    Args: dims: the dim of each rank's table.
    """
    shards = [(FeatureShard(f"t{rank}", f"f{rank}", 0, dim),) for rank, dim in enumerate(dims)]
    tables = [f"t{rank}" for rank in range(len(dims))]
    codecs, exact = (dict.fromkeys(tables, codec) for codec in (Rowwise(8), Identity()))
    collective = PooledAllToAll(
        Group(len(dims)),
        Layout(tuple(shards)),
        codecs=DirectionCodecs(codecs, codecs),
        exact=DirectionCodecs(exact, exact),
        name="fed",
    )
    slots = {"backward": dict.fromkeys(tables, 100)}
    collective.transform = RowFeedbackTransform(collective.plan, slots)
    kept = [(collective.backward_traffic, "num_evicted")]
    for bank in collective.transform.residuals["backward"]._banks.values():
        kept += [(bank, name) for name in ("ids", "residuals", "_claims")]
    for owner, name in kept:  # on the GPU, as after a first step
        on_host = getattr(owner, name)
        setattr(owner, name, torch.empty(on_host.shape, dtype=on_host.dtype, device=GPU))
    ids_stream = VirtualStream(run, "ids")

    def start():
        with run.on(ids_stream):
            return torch.empty(64 * len(dims), dtype=torch.int64, device=GPU).mul_(1)

    coming = start()
    for _ in range(3):
        run.main.wait_stream(ids_stream)
        ids, coming = coming, start()
        collective.transform.ids = {"backward": ids}
        rows = torch.empty(64 * len(dims) * dims[0], device=GPU, requires_grad=True)
        out = collective.start_variable(rows, [[64]] * len(dims), [64] * len(dims)).wait()
        torch.autograd.grad(out, rows, torch.empty_like(out))
        del rows, out, ids


@pytest.mark.parametrize("dims", [[64, 64], [64, 32]])
def test_residuals_by_id_in_a_pipeline(dims):
    with stream_run() as run:
        fed(run, dims)
    assert run.faults == []
    assert run.taken().costs.waits == 0


def test_row_wise_rows_are_chosen_before_the_lookup():
    """The host waits for what the stream had to do before the lookup, and for no more."""
    shards = tuple(FeatureShard(f"t{t}", f"f{t}", 0, 4) for t in range(2))
    traffic = {f"{d}_traffic": Traffic(f"embedding_{d}", ["t0", "t1"]) for d in DIRECTIONS}
    layout = Layout((shards, shards))
    collective = SimpleNamespace(world_size=2, rank=0, layout=layout, **traffic)
    output_dist = CodedRowWiseDist(
        SimpleNamespace(
            collective=collective, some_rows=list_of, session=SimpleNamespace(merges_bags=True)
        )
    )
    context = SimpleNamespace(batch_size_per_rank=[64, 64])
    with stream_run() as run:
        lengths, sent = torch.empty(2, 256, dtype=torch.int64, device=GPU)
        ids = torch.empty(256, dtype=torch.int64, device=GPU)
        notes = notes_on(context)
        notes.received = KeyedJaggedTensor(["f0", "f1"], ids, lengths=lengths, stride=128)
        notes.sent = SentIds([64] * 4, [64] * 4, sent)
        output_dist.begin_choice(context)
        assert run.taken().costs.waits == 0
        rows = torch.empty(128, 8, device=GPU).mul_(2)  # the lookup
        before = run.main.clock[run.main]
        _, outgoing, incoming, shape = output_dist(rows, context)
        assert run.taken().costs.waits == 2
        assert run.timeline.host[run.main] < before
    assert (outgoing.counts.tolist(), incoming.counts.tolist(), shape) == ([32] * 4,) * 2 + (
        (64, 8),
    )


def list_of(*arguments):
    return arguments
