"""The all-reduce of two hops: equal bits, error, bytes of each hop, residuals; on ranks, too."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist

from tests.comm.deflate_codec import Deflate
from tests.comm.dense.reductions import gradients, parameters, played, reductions, same_bits
from tests.comm.dense.test_device import DEVICE, together
from tests.ops.fake_gpu import fake_gpu
from trec_qcomm import Cast, ErrorBounded, Identity, Rowwise
from trec_qcomm.comm.dense.error_feedback import owed
from trec_qcomm.comm.rounds import play
from trec_qcomm.comm.transport import Transport
from trec_qcomm.core.checks import DeferredChecks, deferring
from trec_qcomm.testing import run_ranks

NOISY = Rowwise(2, rounding="stochastic")
# Ranks, and ranks of a node.
TWO_HOPS = ((4, 2), (6, 3))
BUCKETS = ([200, 7, 100], [3], [0, 5])
CODECS = (Identity(), NOISY, Deflate())


def by_node(world_size, ranks_per_node, codec, **options):
    return reductions("hierarchical", world_size, codec, ranks_per_node=ranks_per_node, **options)


def sent_nbytes(traffic):
    return int(traffic.wire_nbytes) + traffic.header_nbytes


@pytest.mark.parametrize("intra", [None, Cast("bf16"), Deflate()], ids=["exact", "bf16", "varying"])
@pytest.mark.parametrize(("world_size", "per_node"), TWO_HOPS)
def test_all_ranks_end_with_equal_bits(world_size, per_node, intra):
    for codec in CODECS:
        options = {"intra": intra, "error_feedback": codec == NOISY}
        for numels in BUCKETS:
            ranks = by_node(world_size, per_node, codec, **options)
            for step in range(1 + (codec == NOISY)):
                buckets = gradients(numels, world_size, step)
                results = played(ranks, numels, buckets)
                assert all(same_bits(result, results[0]) for result in results)
            if codec == Identity() and intra is None:
                all_buckets = torch.stack(buckets).double()
                slack = (2 * world_size - 1) * 2.0**-24 * all_buckets.abs().mean(0)
                assert bool(((results[0] - all_buckets.mean(0)).abs() <= slack).all())


@pytest.mark.parametrize(("world_size", "per_node"), TWO_HOPS)
def test_the_error_is_at_most_that_of_the_encodings_of_both_hops(world_size, per_node):
    inner, outer, numels = 2.0**-10, 2.0**-8, [1000, 7, 300]
    num_nodes = world_size // per_node
    buckets = gradients(numels, world_size)
    codec, intra = (ErrorBounded(bound, mode="abs") for bound in (outer, inner))
    mean = torch.stack(buckets).double().mean(0)
    rounding = 2 * world_size * 2.0**-24 * torch.stack(buckets).double().abs().mean(0).max()
    for between, inside, bound in (
        (codec, intra, (world_size - num_nodes) * inner + (num_nodes + 1) * outer),
        (Identity(), intra, (world_size - num_nodes) * inner),
        (codec, None, (num_nodes + 1) * outer),
    ):
        ranks = by_node(world_size, per_node, between, intra=inside)
        worst = (played(ranks, numels, buckets)[0] - mean).abs().max()
        assert worst <= bound + rounding
        assert worst > (outer if between is codec else inner) / 2  # the bound is not idle


@pytest.mark.parametrize("codec", [Rowwise(4), ErrorBounded(0.01)], ids=["fixed", "varying"])
@pytest.mark.parametrize(("world_size", "per_node"), TWO_HOPS)
def test_bytes_are_counted_by_hop_as_they_are_sent(world_size, per_node, codec):
    numels = [16 * 4 * world_size]  # chunks of equal size
    buckets, shapes = gradients(numels, world_size), parameters(numels)

    def counted(generator, rank):
        """Pass rounds on, and count what goes inside the node and to other nodes."""
        arrived = None
        while True:
            try:
                wanted = next(generator) if arrived is None else generator.send(arrived)
            except StopIteration:
                return
            for peer, message in wanted.sends:
                is_inside = rank // per_node == peer // per_node
                sizes = 0 if wanted.nbytes is not None else 8 * bool(message.numel())
                sent[rank, is_inside] += message.numel() + sizes
            arrived = yield wanted

    between = {}
    for algorithm in ("hierarchical", "two_shot"):
        sent = Counter()
        ranks = reductions(algorithm, world_size, codec, ranks_per_node=per_node)
        rounds = [r.start(shapes, b.clone()) for r, b in zip(ranks, buckets, strict=True)]
        play([counted(generator, rank) for rank, generator in enumerate(rounds)])
        between[algorithm] = sum(sent[rank, False] for rank in range(world_size))
        if algorithm == "hierarchical":
            for rank, reduction in enumerate(ranks):
                assert sent_nbytes(reduction.traffic) == sent[rank, False] > 0
                assert sent_nbytes(reduction.intra_traffic) == sent[rank, True] > 0
            raw = [int(r.traffic.raw_nbytes + r.intra_traffic.raw_nbytes) for r in ranks]
        else:
            assert raw == [int(r.traffic.raw_nbytes) for r in ranks]
    ratio = between["two_shot"] / between["hierarchical"]
    assert ratio == per_node if codec.fixed_size else abs(ratio / per_node - 1) < 0.1


@pytest.mark.parametrize("intra", [None, Cast("bf16")])
def test_one_hop_is_a_two_shot_of_the_codec_of_that_hop(intra):
    numels, codec = [1000, 7, 300], NOISY
    buckets = gradients(numels, 4)

    def twice(ranks):
        return [played(ranks, numels, buckets)[0] for _ in range(2)], ranks

    alone, ranks = twice(by_node(4, 1, codec, intra=intra, error_feedback=True))
    flat, others = twice(reductions("two_shot", 4, codec, error_feedback=True))
    assert all(map(same_bits, alone, flat))
    assert [sent_nbytes(r.traffic) for r in ranks] == [sent_nbytes(r.traffic) for r in others]
    assert not any(sent_nbytes(r.intra_traffic) for r in ranks)

    inside = Identity() if intra is None else intra
    alone, ranks = twice(by_node(4, 4, codec, intra=intra, error_feedback=True))
    flat, others = twice(reductions("two_shot", 4, inside, error_feedback=True))
    assert all(map(same_bits, alone, flat))
    assert [sent_nbytes(r.intra_traffic) for r in ranks] == [sent_nbytes(r.traffic) for r in others]
    assert not any(sent_nbytes(r.traffic) for r in ranks)

    (single,) = by_node(1, 1, codec, intra=intra)
    assert same_bits(
        played([single], numels, buckets[:1])[0],
        played(reductions("two_shot", 1, codec), numels, buckets[:1])[0],
    )


def test_exact_steps_are_exact_in_both_hops():
    numels = [1000]
    buckets = [torch.randint(-8, 8, (1000,)).float() for _ in range(4)]
    mean = torch.stack(buckets).mean(0)
    ranks = by_node(4, 2, NOISY, intra=Rowwise(2), error_feedback=True)
    shapes = parameters(numels)
    play([r.start(shapes, b, exact=True) for r, b in zip(ranks, buckets, strict=True)])
    assert all(same_bits(bucket, mean) for bucket in buckets)


@pytest.mark.parametrize(
    ("world_size", "ranks_per_node"), [(4, 3), (4, 8), (3, 2), (4, 0), (4, None)]
)
def test_nodes_that_differ_in_size_are_refused(world_size, ranks_per_node):
    with pytest.raises(
        ValueError, match=f"{world_size} ranks are not nodes of {ranks_per_node or 0}"
    ):
        by_node(world_size, ranks_per_node, Identity())


@pytest.mark.parametrize(("world_size", "per_node"), TWO_HOPS)
def test_what_was_sent_and_the_residuals_are_the_input(world_size, per_node):
    numels, num_steps = [1000, 7, 300], 6
    num_nodes = world_size // per_node
    ranks = by_node(world_size, per_node, NOISY, error_feedback=True)
    total = torch.zeros(sum(numels), dtype=torch.float64)
    sizes = total.clone()
    for step in range(num_steps):
        buckets = gradients(numels, world_size, step)
        total += torch.stack(buckets).double().mean(0)
        total -= played(ranks, numels, buckets)[0]
        sizes += torch.stack(buckets).double().abs().mean(0)
    residuals = [rank.error_feedback.state_dict() for rank in ranks]
    kept = sum(torch.cat([owed(r[f"p{n}"]) for n in range(3)]).double() for r in residuals)
    assert bool(((total - kept).abs() <= 8 * 2.0**-24 * sizes.max()).all())
    assert float(total.abs().max()) > 1000 * float((total - kept).abs().max())
    # Every rank keeps residuals of its shard alone, as the ranks at its place of other nodes do.
    values_kept = [sum(int((s != 0).sum()) for s in r["p0"].values()) for r in residuals]
    assert max(values_kept) <= 1008 // per_node + 1008 // world_size + 2 * 16
    site = f"contribution of {num_nodes} nodes"
    kept_at = [
        torch.stack([r["p0"][site] for r in residuals[place::per_node]]).any(0)
        for place in range(per_node)
    ]
    assert bool((torch.stack(kept_at).sum(0) <= 1).all())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_all_ranks_and_no_residual(value):
    numels = [1000]
    ranks = by_node(4, 2, Rowwise(4), intra=Cast("bf16"), error_feedback=True)
    played(ranks, numels, gradients(numels, 4, step=1))
    before = [r.error_feedback.state_dict() for r in ranks]
    buckets = gradients(numels, 4, step=2)
    buckets[2][500] = value
    for result in played(ranks, numels, buckets):
        assert int((~result.isfinite()).sum()) == 1
        assert not bool(result[500].isfinite())
    for rank, old in zip(ranks, before, strict=True):
        for site, residual in rank.error_feedback.state_dict()["p0"].items():
            assert torch.equal(residual, old["p0"][site])


def test_residuals_of_another_form_are_not_taken_in_silence():
    (rank, *_) = by_node(4, 2, NOISY, error_feedback=True)
    for sites in ("contribution", "owner"), ("contribution of 3 nodes",):
        assert not rank.error_feedback.takes(sites)
        with pytest.raises(ValueError, match=r"residuals of .*: here are contribution of 2 nodes"):
            rank.error_feedback.load_state_dict({"p": dict.fromkeys(sites, torch.ones(3))})
    (flat, *_) = reductions("two_shot", 4, NOISY, error_feedback=True)
    assert flat.error_feedback.takes(["contribution of 2 nodes"])


# In a GPU's memory.


@pytest.mark.triton
def test_a_gpu_ends_with_the_bits_of_the_cpu():
    numels = [40, 7]

    def several_steps(device):
        ranks = by_node(4, 2, NOISY, intra=Cast("bf16"), error_feedback=True)
        results = []
        for step in range(2):
            buckets = [bucket.to(device) for bucket in gradients(numels, 4, step)]
            with deferring(checks := DeferredChecks()):
                results += played(ranks, numels, buckets)
            checks.raise_found(wait=True)
        return [result.cpu() for result in results]

    expected = several_steps("cpu")
    with fake_gpu():
        results = several_steps(DEVICE)
    assert all(map(same_bits, results, expected))


@pytest.mark.parametrize(("world_size", "per_node"), TWO_HOPS)
def test_no_rank_sends_before_another_receives(world_size, per_node):
    """Each round is one group of sends and receives, as NCCL has them."""
    numels = [70, 7, 33]
    buckets = gradients(numels, world_size)
    expected = played(by_node(world_size, per_node, Rowwise(4)), numels, buckets)
    ranks = by_node(world_size, per_node, Rowwise(4))
    together([r.start(parameters(numels), b) for r, b in zip(ranks, buckets, strict=True)])
    assert all(map(same_bits, buckets, expected))


# On ranks.

CASES = {
    (per_node, repr(codec), repr(intra)): (per_node, codec, intra)
    for per_node in (1, 2)
    for codec, intra in ((NOISY, None), (Deflate(), Cast("bf16")), (Deflate(), Deflate()))
}


def several_steps(per_node, codec, intra, start):
    """Return the means of some steps. Args: start: function that runs one step of all buckets."""
    ranks = by_node(4, per_node, codec, intra=intra, error_feedback=True)
    means = []
    for step in range(2):
        for k, numels in enumerate(BUCKETS):
            means.append(start(ranks, parameters(numels, f"b{k}"), gradients(numels, 4, step)))
    return torch.cat(means), ranks


def on_ranks():
    """Return the means and the bytes that this rank sent, by case."""
    transport, rank = Transport(dist.new_group()), dist.get_rank()

    def start(ranks, shapes, buckets):
        rounds = ranks[rank].start(shapes, buckets[rank])
        return transport.start(rounds, buckets[rank], lambda _s: None).wait()

    results = {}
    for name, case in CASES.items():
        means, ranks = several_steps(*case, start)
        ours = ranks[rank]
        results[name] = means, [sent_nbytes(t) for t in (ours.traffic, ours.intra_traffic)]
    transport.close()
    return results


@pytest.mark.dist
def test_ranks_end_with_the_bits_that_are_played():
    def start(ranks, shapes, buckets):
        play([r.start(shapes, b) for r, b in zip(ranks, buckets, strict=True)])
        return buckets[0]

    by_rank = run_ranks(on_ranks, 4)
    for name, case in CASES.items():
        means, ranks = several_steps(*case, start)
        for rank, results in enumerate(by_rank):
            ours = ranks[rank]
            assert same_bits(results[name][0], means)
            assert results[name][1] == [sent_nbytes(t) for t in (ours.traffic, ours.intra_traffic)]
