"""The all-reduce of two hops: equal bits, error, bytes of each hop, residuals. Played."""

from collections import Counter
from functools import partial

import pytest
import torch

from tests.comm.deflate_codec import Deflate
from tests.comm.dense.reductions import (
    gradients,
    parameters,
    played,
    reductions,
    same_bits,
    watched,
)
from tests.comm.dense.test_device import DEVICE, together
from tests.ops.fake_gpu import fake_gpu
from trec_qcomm import Cast, ErrorBounded, Identity, Rowwise
from trec_qcomm.comm.dense.error_feedback import owed
from trec_qcomm.core.checks import DeferredChecks, deferring
from trec_qcomm.lab.ranks.rounds import play

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

    def note(rank, wanted):
        """Count what goes inside the node and to other nodes."""
        for peer, message in wanted.sends:
            is_inside = rank // per_node == peer // per_node
            sizes = 0 if wanted.nbytes is not None else 8 * bool(message.numel())
            sent[rank, is_inside] += message.numel() + sizes

    between = {}
    for algorithm in ("hierarchical", "two_shot"):
        sent = Counter()
        ranks = reductions(algorithm, world_size, codec, ranks_per_node=per_node)
        rounds = [r.start(shapes, b.clone()) for r, b in zip(ranks, buckets, strict=True)]
        play([watched(r, partial(note, rank)) for rank, r in enumerate(rounds)])
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
