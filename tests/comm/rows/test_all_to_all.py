"""Pooled all-to-all: values, gradients, bytes, and what happens when it fails."""

import time
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.comm.deflate_codec import Deflate
from trec_qcomm.codecs import Cast, Identity, Rowwise
from trec_qcomm.comm import exchange
from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.core.errors import CorruptFrameError, LostPeerError, UnencodableError
from trec_qcomm.core.segments import Encoded
from trec_qcomm.lab.ranks.ranks import PlayedRanks
from trec_qcomm.testing import run_ranks


class Padded(Deflate):
    """Takes more bytes than float32 rows and all that goes with them."""

    def max_nbytes(self, segments):
        return super().max_nbytes(segments) + 40_000

    def encode(self, values, segments, payload, at, **options):
        return Encoded(payload, at, super().encode(values, segments, payload, at).nbytes + 40_000)


DIMS = (4, 7, 16, 1, 4)
CASES = {
    "identity": (Identity(), Identity()),
    "variable": (Deflate(), Deflate()),
    "padded": (Padded(), Padded()),
    "variable forward": (Deflate(), Rowwise(8)),
    "int4": (Rowwise(4), Rowwise(4, rounding="stochastic")),
    "fp16 bf16": (Cast("fp16"), Cast("bf16")),
}


def layout_for(world_size: int) -> Layout:
    """Tables dealt out in turn; beyond two ranks the last one owns nothing."""
    owners = world_size - 1 if world_size > 2 else world_size
    blocks: list[list[FeatureShard]] = [[] for _ in range(world_size)]
    for t, dim in enumerate(DIMS):
        blocks[t % owners].append(FeatureShard(f"t{t}", f"f{t}", 0, dim))
    return Layout(tuple(tuple(shards) for shards in blocks))


def matrix(rank: int, num_rows: int, num_columns: int, salt: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * salt + rank)
    return torch.randn(num_rows, num_columns, generator=generator)


class SpiedCollective:
    """Counts what all_to_all_single is given, leaving out the rank's own part."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._real = dist.all_to_all_single

    def __call__(self, output, input, output_split_sizes=None, input_split_sizes=None, **options):
        splits = input_split_sizes
        splits = splits or [len(input) // dist.get_world_size()] * dist.get_world_size()
        row_nbytes = input.element_size() * input[:1].numel()
        self.nbytes += (sum(splits) - splits[dist.get_rank()]) * row_nbytes
        return self._real(output, input, output_split_sizes, input_split_sizes, **options)


def collective(layout, forward, backward=None, pg=None):
    """Return an all-to-all with one codec for all tables of a direction."""
    codecs, exact = (
        DirectionCodecs(*(dict.fromkeys(layout.tables(), codec) for codec in pair))
        for pair in ((forward, backward or forward), (Identity(), Identity()))
    )
    pg = pg or dist.group.WORLD
    return PooledAllToAll(pg, layout, codecs=codecs, exact=exact, name="test")


def run_case(layout, codecs, batch_sizes, pg=None):
    """Return the rows and gradient received, and the bytes sent, of one exchange."""
    rank, op = dist.get_rank(), collective(layout, *codecs, pg)
    spy = exchange.dist.all_to_all_single = SpiedCollective()
    try:
        rows = matrix(rank, sum(batch_sizes), layout.dim_sum(rank), 1).requires_grad_()
        out = op.start(rows, batch_sizes, gradient_divisor=2).wait()
        out.backward(matrix(rank, batch_sizes[rank], sum(DIMS), 2))
    finally:
        exchange.dist.all_to_all_single = spy._real
    sent = sum(
        int(t.wire_nbytes.sum()) + t.header_nbytes
        for t in (op.forward_traffic, op.backward_traffic)
    )
    return {"out": out.detach(), "grad": rows.grad, "spied": spy.nbytes, "counted": sent}


def expected(layout, batch_sizes, rank):
    """Return what stock TorchRec gives: rows by owner, and gradients by sample owner, halved."""
    first = sum(batch_sizes[:rank])
    mine = slice(first, first + batch_sizes[rank])
    owners = range(len(layout.shards_by_rank))
    out = [matrix(o, sum(batch_sizes), layout.dim_sum(o), 1)[mine] for o in owners]
    left = sum(layout.dim_sum(o) for o in range(rank))
    columns = slice(left, left + layout.dim_sum(rank))
    grads = [matrix(r, n, sum(DIMS), 2)[:, columns] for r, n in enumerate(batch_sizes)]
    return torch.cat(out, 1), torch.cat(grads) / 2


def all_cases():
    world_size = dist.get_world_size()
    layout = layout_for(world_size)
    results = {}
    for name, codecs in CASES.items():
        for batch_sizes in ([5] * world_size, [3, 0, 9, 1][:world_size], [0] * world_size):
            results[name, tuple(batch_sizes)] = run_case(layout, codecs, batch_sizes)
    return results


@pytest.fixture(scope="module", params=[1, 4])
def ranks(request):
    return run_ranks(all_cases, request.param)


@pytest.mark.dist
def test_rows_and_gradients_arrive(ranks):
    layout = layout_for(len(ranks))
    for rank, results in enumerate(ranks):
        for (name, batch_sizes), result in results.items():
            out, grad = expected(layout, batch_sizes, rank)
            assert result["out"].shape == out.shape
            if name in ("identity", "variable", "padded"):
                assert torch.equal(result["out"], out), (name, rank)
                assert torch.equal(result["grad"], grad), (name, rank)
            elif name == "variable forward":
                assert torch.equal(result["out"], out), (name, rank)
            assert result["grad"].shape == grad.shape
            # These rows span less than 8, so a 4-bit step is below 8 / 15; gradients are halved.
            assert bool(((result["out"] - out).abs() <= 8 / 15).all()), (name, rank)
            assert bool(((result["grad"] - grad).abs() <= 4 / 15).all()), (name, rank)


@pytest.mark.dist
def test_counted_bytes_are_the_bytes_sent(ranks):
    for results in ranks:
        for (name, _), result in results.items():
            assert result["counted"] == result["spied"], name
            assert len(ranks) > 1 or result["spied"] == 0


def on_a_group_that_torch_forgot(store):
    """Make all groups again but one, which somebody kept, and exchange on that one."""
    kept, rank, world_size = dist.new_group(), dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    options = {"init_method": f"file://{store}", "rank": rank, "world_size": world_size}
    dist.init_process_group("gloo", **options)
    layout = layout_for(world_size)
    return {name: run_case(layout, CASES[name], [3, 2], kept) for name in ("identity", "variable")}


@pytest.mark.dist
def test_a_group_works_that_was_made_before_all_groups_were_made_again(tmp_path):
    layout = layout_for(2)
    for rank, results in enumerate(run_ranks(on_a_group_that_torch_forgot, 2, tmp_path / "again")):
        out, grad = expected(layout, [3, 2], rank)
        for result in results.values():
            assert torch.equal(result["out"], out)
            assert torch.equal(result["grad"], grad)


def die_or_wait(case):
    """Rank 1 is gone before the exchange; the other must not hang."""
    if dist.get_rank() == 1:
        return None
    begin = time.perf_counter()
    with pytest.raises(LostPeerError, match=r"rank 0: lost rank 1 after .* of test") as e:
        run_case(layout_for(2), CASES[case], [2, 2])
    assert type(e.value.__cause__) is RuntimeError
    assert e.value.peers == (1,)
    return time.perf_counter() - begin


@pytest.mark.dist
@pytest.mark.parametrize("case", ["identity", "variable"])
def test_a_lost_rank_is_an_error_not_a_hang(case):
    waited, _ = run_ranks(die_or_wait, 2, case, timeout_s=20)
    assert waited < 20


def errors_of_a_silent_peer():
    """Return what rank 0 says where rank 1 takes no part in an exchange, or in its backward."""
    errors, layout = {}, layout_for(2)
    run_case(layout, CASES["int4"], [2, 2])  # compiles, which takes longer than the timeout below
    for silent_in in ("identity", "variable", "backward"):
        pg = dist.new_group(timeout=timedelta(seconds=1))
        codecs = CASES["int4" if silent_in == "backward" else silent_in]
        try:
            if dist.get_rank() == 0:
                run_case(layout, codecs, [2, 2], pg)
            elif silent_in == "backward":
                op = collective(layout, Rowwise(4), pg=pg)
                op.start(matrix(1, 4, layout.dim_sum(1), 1), [2, 2]).wait()
        except LostPeerError as error:
            errors[silent_in] = str(error)
        dist.barrier()
    return errors


@pytest.mark.dist
def test_errors_name_a_silent_peer_the_exchange_and_the_step():
    errors, of_the_silent = run_ranks(errors_of_a_silent_peer, 2, timeout_s=60)
    assert of_the_silent == {}
    for silent_in in ("identity", "variable", "backward"):
        assert errors[silent_in].startswith("rank 0: rank 1 did not answer in ")
        direction = "backward" if silent_in == "backward" else "forward"
        assert f"s: {direction} all-to-all of test, step 0: " in errors[silent_in]


def two_ops_and_a_dropped_batch():
    """Rank 0 fails to encode one batch and goes on with the next; rank 1 never skipped."""
    layout = layout_for(2)
    op = collective(layout, Rowwise(4, nonfinite="raise"))
    rows = matrix(op.rank, 4, layout.dim_sum(op.rank), 1)
    if op.rank == 0:
        bad = rows.clone()
        bad[0, 0] = torch.nan
        with pytest.raises(UnencodableError, match="table 't0'"):
            op.start(bad, [2, 2])
    with pytest.raises(CorruptFrameError, match="the ranks are out of step"):
        op.start(rows, [2, 2]).wait()
    return True


def awaited_in_the_other_order():
    """Return whether two exchanges under way bring their own rows, whichever is waited for first.

    Their sizes depend on the data, and the second ones are shorter.
    """
    op = collective(layout_for(3), Deflate())
    inputs = [matrix(op.rank, 6, op.layout.dim_sum(op.rank), salt) for salt in (1, 5)]
    inputs[1][::2] = 0
    pending = [op.start(rows, [2] * 3) for rows in inputs]
    got = [call.wait() for call in reversed(pending)]
    alone = [op.start(rows, [2] * 3).wait() for rows in reversed(inputs)]
    return all(torch.equal(*pair) for pair in zip(got, alone, strict=True))


@pytest.mark.dist
@pytest.mark.parametrize("run", [PlayedRanks(3).run, partial(run_ranks, world_size=3)])
def test_exchanges_may_be_awaited_in_any_order(run):
    assert run(awaited_in_the_other_order) == [True] * 3


def test_a_dropped_batch_is_seen_by_the_peers():
    assert PlayedRanks(2).run(two_ops_and_a_dropped_batch) == [True, True]


def evaluating_while_the_other_trains():
    """Return what each rank says in the exchange in which rank 1 does something else."""
    layout, texts = layout_for(2), []
    for codec, exact in ((Rowwise(4), False), (Deflate(), False), (Deflate(), True)):
        op = collective(layout, codec)
        rows = matrix(op.rank, 4, layout.dim_sum(op.rank), 1)
        op.start(rows, [2, 2], exact=exact).wait()  # so far all do the same
        with torch.set_grad_enabled(op.rank == 0), pytest.raises(CorruptFrameError) as error:
            op.start(rows, [2, 2], exact=exact and op.rank == 1).wait()
        texts.append(str(error.value))
    return texts


@pytest.mark.dist
@pytest.mark.parametrize("run", [PlayedRanks(2).run, partial(run_ranks, world_size=2)])
def test_a_rank_that_evaluates_or_bypasses_while_others_train_is_seen(run):
    for rank, texts in enumerate(run(evaluating_while_the_other_trains)):
        words = f"frame from rank {1 - rank}: of another call: the ranks are out of step"
        assert [text.partition(";")[0] for text in texts] == [words] * 3


def noisy_rounds():
    """Return the decoded rows of three evaluations and two training steps, all of equal rows.

    Then the number of steps, and the gradients of two backward passes over the last graph.
    """
    layout = Layout(((FeatureShard("a", "f", 0, 4), FeatureShard("b", "f", 0, 8)),))
    op = collective(layout, Rowwise(2, "stochastic"))
    rows = torch.tensor([0.0, 0.2, 0.55, 1.0]).repeat(64, 3).requires_grad_()  # between codes
    outs = []
    for training in (False, False, True, False, True):
        with torch.set_grad_enabled(training):
            outs.append(op.start(rows, [64]).wait())
    gradient = rows[:, :12].detach()
    grads = [torch.autograd.grad(outs[-1], rows, gradient, retain_graph=True)[0] for _ in range(2)]
    return [out.detach() for out in outs], op.step, grads


def test_no_noise_is_drawn_twice():
    ((outs, step, grads),) = PlayedRanks(1).run(noisy_rounds)
    assert not torch.equal(*grads)
    assert step == 2
    for i, out in enumerate(outs):
        for other in outs[i + 1 :]:
            assert not torch.equal(out, other)
        # Table a's 4 values and the first 4 of each of b's rows are equal before rounding.
        assert not torch.equal(out[:, :4].reshape(-1)[:128], out[:, 4:].reshape(-1)[:128])


def test_calls_with_other_codecs_leave_no_trace():
    def program():
        op, rows = collective(layout_for(1), Rowwise(4)), matrix(0, 3, sum(DIMS), 0)
        with torch.no_grad():
            op.start(rows, [3]).wait()
            with op.replacing({"t0": Identity()}, evaluation=7):
                exact = op.start(rows, [3]).wait()
        same = torch.equal(exact[:, : DIMS[0]], rows[:, : DIMS[0]])
        return same, op.next_step(is_training=False), op.forward_traffic.num_calls

    assert PlayedRanks(1).run(program) == [(True, 1, 1)]
