"""Low-rank all-reduce: equal bits on all ranks, nothing lost over steps, NaN, bytes. Played."""

import pytest
import torch

from tests.comm.dense.reductions import same_bits
from tests.ops.fake_gpu import HostReads, fake_gpu
from trec_qcomm import Cast, Float6, Identity, Rowwise
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS, AllReduceOptions, ring_nbytes
from trec_qcomm.comm.dense.chunks import Coding, ParameterShape
from trec_qcomm.comm.dense.low_rank.matrices import MatrixShape
from trec_qcomm.comm.dense.low_rank.reduction import LowRankReduction
from trec_qcomm.core.checks import DeferredChecks, deferring
from trec_qcomm.core.counters import Traffic
from trec_qcomm.lab.ranks.rounds import play

SIZES = {"a": (24, 40), "b": (24, 40), "bias": (33,), "c": (17, 64)}
RANK = 4
STOCHASTIC = Float6("e4m1", "stochastic")
FORMS = {"a": MatrixShape("a", 24, 40, RANK, 16, 0), "b": MatrixShape("b", 24, 40, RANK, 16, 0)}
FORMS["c"] = MatrixShape("c", 17, 64, RANK, 16, 0)


def shapes(names=tuple(SIZES)):
    return [ParameterShape(n, torch.Size(SIZES[n]).numel(), 16) for n in names]


def ranks(world_size, codec, algorithm="two_shot", *, error_feedback=False):
    """Return the reduction of each rank."""
    coding = Coding(codec=codec, exact=Identity(), min_numel=8, error_feedback=error_feedback)
    options = AllReduceOptions(codings=(coding,), algorithm=algorithm, seed=3)
    sent = [s for p in shapes() for s in ((FORMS[p.name].left, FORMS[p.name].right)
            if p.name in FORMS else (p,))]  # fmt: skip
    return [
        LowRankReduction(
            options, rank, world_size, Traffic("dense", ["all"]),
            matrices=list(FORMS.values()), parameters=sent,
        )
        for rank in range(world_size)
    ]  # fmt: skip


def gradients(step, rank, names=tuple(SIZES), *, same=0.7):
    """Return a bucket. `same` is the share that all ranks and steps have."""
    parts = []
    for name in names:
        common = torch.randn(SIZES[name], generator=torch.Generator().manual_seed(len(name)))
        seed = 1000 * step + 10 * rank + ord(name[0])
        noise = torch.randn(SIZES[name], generator=torch.Generator().manual_seed(seed))
        parts.append((same * common + (1 - same) * noise).flatten())
    return torch.cat(parts)


def reduced(reductions, buckets, names=tuple(SIZES), **options):
    """Return each rank's bucket after the all-reduce."""
    results = [bucket.clone() for bucket in buckets]
    play([r.start(shapes(names), b, **options) for r, b in zip(reductions, results, strict=True)])
    return results


@pytest.mark.parametrize("codec", [Cast("bf16"), STOCHASTIC, Rowwise(4), Identity()])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_ranks_end_with_equal_bits(world_size, codec):
    for algorithm in ALGORITHMS if world_size == 3 else ["two_shot"]:
        reductions = ranks(world_size, codec, algorithm, error_feedback=codec is STOCHASTIC)
        for step in range(2):
            results = reduced(reductions, [gradients(step, rank) for rank in range(world_size)])
            assert bool(results[0].isfinite().all())
            assert all(same_bits(result, results[0]) for result in results)
        if codec is STOCHASTIC:  # codecs' losses of factors are in the residuals of the matrices
            assert reductions[0].error_feedback.state_dict().keys() == {"bias"}


def residual_sum(reductions):
    states = [reduction.matrices.residuals() for reduction in reductions]
    return {name: sum(state[name]["contribution"].double() for state in states) for name in FORMS}


@pytest.mark.parametrize(
    ("codec", "world_size", "algorithm", "steps"),
    [
        (Cast("bf16"), 2, "two_shot", 20),
        (STOCHASTIC, 4, "recursive_doubling", 8),
        (Rowwise(2), 3, "ring", 8),
    ],
)
def test_what_was_sent_over_steps_and_the_residual_are_the_input(
    codec, world_size, algorithm, steps
):
    reductions = ranks(world_size, codec, algorithm)
    names = list(SIZES)
    numels = [shape.numel for shape in shapes()]
    given = came = largest = 0.0
    for step in range(steps):
        buckets = [gradients(step, rank) for rank in range(world_size)]
        came = came + reduced(reductions, buckets)[0].double()
        given = given + torch.stack(buckets).double().mean(0)
        largest = max(largest, *(float(bucket.norm()) for bucket in buckets))
    left = residual_sum(reductions)
    for name, sent, wanted in zip(names, came.split(numels), given.split(numels), strict=True):
        if name not in FORMS:
            continue
        kept = left[name]
        # Each step rounds r products a value a few times, of no more than a matrix's norm each.
        slack = steps * (RANK + world_size + 8) * 2.0**-24 * (largest + float(kept.norm()))
        assert bool(((sent + kept - wanted).abs() <= slack).all())
        assert float((sent - wanted).abs().max()) > 100 * slack  # much was kept back
        # What is left does not grow with the steps, nor with the differences between ranks.
        assert float(kept.norm()) < 12 * largest


def test_a_gradient_of_low_rank_comes_as_it_is():
    generator = torch.Generator().manual_seed(1)
    factors = {n: [torch.randn(d, RANK, generator=generator) for d in SIZES[n]] for n in FORMS}
    wanted = torch.cat(
        [(factors[n][0] @ factors[n][1].T).flatten() if n in FORMS else torch.ones(33)
         for n in SIZES]
    )  # fmt: skip
    (result, _) = reduced(ranks(2, Identity()), [wanted, wanted])
    assert bool(((result - wanted).abs() <= 2.0**-14 * wanted.abs().max()).all())


def test_bytes_are_those_of_the_factors():
    for codec, nbytes in ((Cast("bf16"), 2), (Identity(), 4)):
        (one, other) = ranks(2, codec)
        buckets = [gradients(0, rank) for rank in range(2)]
        reduced([one, other], buckets)
        numel = len(buckets[0])
        assert int(one.traffic.raw_nbytes.sum()) == ring_nbytes(numel, 2)
        sent = sum(RANK * sum(SIZES[name]) for name in FORMS) + 33
        expected = sent * nbytes
        assert abs(int(one.traffic.wire_nbytes.sum()) - expected) <= 0.06 * expected
        assert one.traffic.num_calls == 2


def state(reduction):
    residuals = {n: kept["contribution"] for n, kept in reduction.matrices.residuals().items()}
    return residuals, reduction.matrices.right_factors()


def same_state(one, other):
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_step_with_nan_leaves_residuals_and_factors(value):
    reductions = ranks(2, Cast("bf16"))
    reduced(reductions, [gradients(0, rank) for rank in range(2)])
    before = [state(reduction) for reduction in reductions]
    buckets = [gradients(1, rank) for rank in range(2)]
    buckets[1][5] = value
    results = reduced(reductions, buckets)
    assert all(not bool(result[: 24 * 40].isfinite().any()) for result in results)
    assert all(bool(result[24 * 40 :].isfinite().all()) for result in results)
    assert all(same_state(state(r), b) for r, b in zip(reductions, before, strict=True))
    results = reduced(reductions, [gradients(2, rank) for rank in range(2)])
    assert bool(results[0].isfinite().all())
    assert not same_state(state(reductions[0]), before[0])


def test_a_step_in_which_one_bucket_overflows_changes_what_no_bucket_keeps():
    """A loss scaler throws the whole step away."""
    reductions, buckets = ranks(2, Cast("bf16")), [("c", "bias"), ("b",), ("a",)]
    run(reductions, range(2), buckets)
    before = [state(reduction) for reduction in reductions]
    for names in buckets:
        given = [gradients(2, rank, names) for rank in range(2)]
        if names == ("b",):
            given[1][7] = torch.inf
        results = reduced(reductions, given, names, is_last=names == ("a",))
        assert bool(results[0].isfinite().all()) == (names != ("b",))
    assert all(same_state(state(r), b) for r, b in zip(reductions, before, strict=True))
    run(reductions, [3], buckets)
    assert not same_state(state(reductions[0]), before[0])


def test_a_parameter_without_a_gradient_keeps_its_residual():
    reductions = ranks(2, Cast("bf16"))
    reduced(reductions, [gradients(0, rank) for rank in range(2)])
    before = [state(reduction)[0]["a"] for reduction in reductions]
    buckets = [gradients(1, rank) for rank in range(2)]
    for bucket in buckets:
        bucket[: 24 * 40] = 0
    results = reduced(reductions, buckets)
    assert not bool(results[0][: 24 * 40].any())
    assert all(torch.equal(state(r)[0]["a"], b) for r, b in zip(reductions, before, strict=True))
    results = reduced(reductions, [gradients(2, rank) for rank in range(2)])
    assert bool(results[0][: 24 * 40].any())  # factors of zeros were not kept


def run(reductions, steps, buckets):
    """Return the means of each step, from buckets of these parameters."""
    means = []
    for step in steps:
        by_name = {}
        for names in buckets:
            given = [gradients(step, rank, names) for rank in range(len(reductions))]
            numels = [shape.numel for shape in shapes(names)]
            is_last = names is buckets[-1]
            result = reduced(reductions, given, names, is_last=is_last)[0]
            by_name |= dict(zip(names, result.split(numels), strict=True))
        means.append(torch.cat([by_name[name] for name in SIZES]))
    return means


@pytest.mark.parametrize("codec", [STOCHASTIC, Cast("bf16")])
def test_buckets_may_change_and_a_resumed_run_is_the_same(codec):
    together, apart = [("a", "b", "bias", "c")], [("c", "bias"), ("b",), ("a",)]
    straight = ranks(2, codec)
    expected = run(straight, range(4), together)
    changed = ranks(2, codec)
    came = run(changed, [0], together) + run(changed, [1], apart)
    states = [state(reduction) for reduction in changed]
    resumed = ranks(2, codec)
    for reduction, kept in zip(resumed, states, strict=True):
        reduction.num_steps = reduction.num_calls = 2
        reduction.matrices.load(*kept)
    came += run(resumed, [2], apart[::-1]) + run(resumed, [3], together)
    assert all(same_bits(*pair) for pair in zip(came, expected, strict=True))
    assert all(same_state(state(a), state(b)) for a, b in zip(resumed, straight, strict=True))
    for last in (3, 4):  # back to step 2, also from just behind it
        for reduction, kept in zip(straight, states, strict=True):
            reduction.num_steps = reduction.num_calls = 2
            reduction.matrices.load(*kept)
        again = run(straight, range(2, last), together)
    assert all(same_bits(*pair) for pair in zip(again, expected[2:], strict=True))
    for residuals, rights in (({"a": torch.zeros(3)}, {}), ({}, {"a": torch.zeros(4, 3)})):
        with pytest.raises(ValueError, match=r"'a': \[(3|4, 3)\]"):
            resumed[0].matrices.load(residuals, rights)
    other_rank = {"a": torch.ones(RANK + 2, 40), "b": torch.ones(1, 40)}
    resumed[0].matrices.load({}, other_rank)
    kept = resumed[0].matrices.right_factors()
    assert torch.equal(kept["a"], torch.ones(RANK, 40))
    assert torch.equal(kept["b"][0], torch.ones(40))
    assert bool(kept["b"][1:].ne(1).all())


# In a GPU's memory.


SOME = ("c", "bias")


def two_steps():
    """Return the last result and the states; in the first step something is not finite."""
    reductions = ranks(2, Cast("bf16"))
    for step in range(2):
        buckets = [gradients(step, rank, SOME) for rank in range(2)]
        if step == 0:
            buckets[0][3] = torch.nan
        with deferring(DeferredChecks()):
            results = reduced(reductions, buckets, SOME)
    return results, [state(reduction) for reduction in reductions]


@pytest.mark.triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="watches what stands in for a GPU")
def test_a_gpu_has_the_same_values_and_the_host_reads_nothing():
    expected, states = two_steps()
    reductions = ranks(2, Cast("bf16"))
    with fake_gpu():
        results, ours = two_steps()
        buckets = [gradients(0, rank, SOME) for rank in range(2)]
        reads = HostReads(*buckets)
        with reads.watching(), deferring(DeferredChecks()):
            reduced(reductions, buckets, SOME)
            reads.calls.clear()
            reduced(reductions, buckets, SOME)
            assert reads.calls == []
            assert bool(buckets[0].isfinite().all())
            assert reads.calls == ["__bool__"]
    # Their products are in float64.
    torch.testing.assert_close((results, ours), (expected, states), rtol=0, atol=1e-2)
