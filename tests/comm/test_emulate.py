"""The emulated exchange, by its contract; tests/integration compares it with real ranks."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from trec_qcomm import ErrorBounded, ForwardMask, Identity, Rowwise, TopK
from trec_qcomm.comm.emulate import EmulatedExchange
from trec_qcomm.ops.unique import UniqueBags, unique_bags

DIMS = (16, 8, 16)
NUM_IDS = 12
BATCH_SIZES = (6, 3)  # uneven; most ids repeat within a rank


def ids_of(step: int, rank: int) -> Tensor:
    """Return [F, B_r]."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(NUM_IDS, (len(DIMS), BATCH_SIZES[rank]), generator=generator)


def find_bags(ids: Tensor, share: float) -> UniqueBags:
    num_bags = torch.full((len(ids),), ids.shape[1], dtype=torch.int64)
    shares = torch.full((len(ids),), share, dtype=torch.float64)
    return unique_bags(
        ids.reshape(-1), torch.ones(ids.numel(), dtype=torch.int64), num_bags, shares
    )


class Emulation:
    """Tables of NUM_IDS rows, and one step of SGD on them."""

    def __init__(self, tables: list[Tensor], exchange: EmulatedExchange, *, share: float) -> None:
        self.tables = [table.clone().requires_grad_() for table in tables]
        self.exchange, self.share = exchange, share

    def look_up(self, ids: list[Tensor], **options) -> Tensor:
        """Return the samples [B, W]. ids: [F, B_r] for each rank."""
        bags = [find_bags(part, self.share) for part in ids]
        rows = []
        for part, distinct in zip(ids, bags, strict=True):
            at = part.reshape(-1)[distinct.first].split(distinct.counts.tolist())
            rows += [table[i].view(-1) for table, i in zip(self.tables, at, strict=True)]
        return self.exchange(torch.cat(rows), bags, **options)

    def step(self, ids: list[Tensor], lr: float) -> Tensor:
        out = self.look_up(ids, gradient_divisor=len(ids))
        loss_of(out).backward()
        with torch.no_grad():
            for table in self.tables:
                table -= lr * table.grad
                table.grad = None
        return out.detach()


def loss_of(out: Tensor) -> Tensor:
    """Return a loss whose gradient is computed value by value, whatever else is in the batch."""
    return ((out - 0.5) ** 2).sum() / 8


def random_tables() -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    scales = (1e-3, 1.0, 50.0)  # a range shared by all would leave nothing of the first table
    shapes = zip(scales, DIMS, strict=True)
    return [scale * torch.randn(NUM_IDS, dim, generator=generator) for scale, dim in shapes]


def exchange_of(forward, backward=None) -> EmulatedExchange:
    return EmulatedExchange(DIMS, (forward,) * len(DIMS), (backward or forward,) * len(DIMS))


def all_ids(step: int = 0) -> list[Tensor]:
    return [ids_of(step, rank) for rank in range(len(BATCH_SIZES))]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_identity_is_the_plain_lookup(share):
    emulated = Emulation(random_tables(), exchange_of(Identity()), share=share)
    plain = [table.clone().requires_grad_() for table in random_tables()]
    ids = torch.cat(all_ids(), dim=1)
    expected = torch.cat([t[i] for t, i in zip(plain, ids, strict=True)], dim=1)
    out = emulated.look_up(all_ids())
    assert torch.equal(out, expected)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    for table, other in zip(emulated.tables, plain, strict=True):
        # Two orders of adding at most n numbers, each off by (n - 1) 2^-24 sum |x|.
        n = ids.shape[1]
        slack = 2 * (n - 1) * 2.0**-24 * n * float(weights.abs().max())
        assert (table.grad - other.grad).abs().max() <= slack


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_each_rank_and_table_has_a_bound_of_its_own(share):
    bound = 0.03
    emulated = Emulation(random_tables(), exchange_of(ErrorBounded(bound)), share=share)
    out = emulated.look_up(all_ids()).detach()
    exact = Emulation(random_tables(), exchange_of(Identity()), share=share).look_up(all_ids())
    for x, y in zip(exact.detach().split(BATCH_SIZES), out.split(BATCH_SIZES), strict=True):
        for a, b in zip(x.split(DIMS, dim=1), y.split(DIMS, dim=1), strict=True):
            allowed = bound * (a.max().double() - a.min().double())
            error = (a.double() - b.double()).abs().max()
            assert 0 < error <= allowed


def test_gradients_are_coded_after_they_are_summed_up():
    codec = ErrorBounded(0.05)
    ids = [torch.zeros(3, 4, dtype=torch.int64), torch.ones(3, 2, dtype=torch.int64)]
    emulated = Emulation(random_tables(), exchange_of(Identity(), codec), share=1.0)
    weights = torch.arange(1.0, 1 + 6 * sum(DIMS)).view(6, -1).sqrt()
    (emulated.look_up(ids) * weights).sum().backward()
    for table, table_weights in zip(emulated.tables, weights.split(DIMS, dim=1), strict=True):
        for row, part in ((0, table_weights[:4]), (1, table_weights[4:])):
            total = torch.zeros(table_weights.shape[1])
            for sample in part:
                total += sample
            allowed = 0.05 * (total.max().double() - total.min().double())
            error = (table.grad[row].double() - total.double()).abs().max()
            assert 0 < error <= allowed
        assert torch.equal(table.grad[2:], torch.zeros_like(table.grad[2:]))


def test_tolerances_replace_those_of_the_codecs():
    tables = random_tables()
    twice = Emulation(tables, exchange_of(ErrorBounded(0.02)), share=1.0)
    plain = Emulation(tables, exchange_of(ErrorBounded(0.04)), share=1.0)
    out = twice.look_up(all_ids(), tolerances=[0.04, 0.02, 0.04])
    expected = plain.look_up(all_ids())
    assert torch.equal(out[:, :16], expected[:, :16])
    assert torch.equal(out[:, 24:], expected[:, 24:])
    assert not torch.equal(out[:, 16:24], expected[:, 16:24])


def test_noise_depends_on_the_seed_and_nothing_else():
    emulated = Emulation(random_tables(), exchange_of(Rowwise(2, "stochastic")), share=1.0)
    outs = [emulated.look_up(all_ids(), seed=seed).detach() for seed in (5, 5, 6)]
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_backward_sends_the_columns_that_forward_kept():
    emulated = Emulation(random_tables(), exchange_of(TopK(density=0.25), ForwardMask()), share=0.0)
    out = emulated.look_up(all_ids())
    out.sum().backward()
    kept = [part != 0 for part in out.detach().split(DIMS, dim=1)]
    ids = torch.cat(all_ids(), dim=1)
    for table, columns, i in zip(emulated.tables, kept, ids, strict=True):
        expected = torch.zeros_like(table).index_add_(0, i, columns.float())
        assert torch.equal(table.grad, expected)
        assert int(columns.sum()) == columns.shape[0] * columns.shape[1] // 4


@dataclass(frozen=True)
class Counting(Identity):
    """Identity that notes how many segments each call of encode has."""

    calls: list[int] = field(default_factory=list, compare=False)
    name: ClassVar[str] = "counting"

    def encode(self, values, segments, *args, **options):
        self.calls.append(segments.num_segments)
        return super().encode(values, segments, *args, **options)


def test_equal_codecs_and_dims_are_one_call():
    forward, backward = Counting(), Counting()
    exchange = EmulatedExchange(DIMS, (forward,) * 3, (backward,) * 3)
    emulated = Emulation(random_tables(), exchange, share=1.0)
    emulated.look_up(all_ids()).sum().backward()
    num_ranks = len(BATCH_SIZES)
    assert sorted(forward.calls) == sorted(backward.calls) == [num_ranks, 2 * num_ranks]


def test_bad_arguments_are_named():
    codec = Identity()
    with pytest.raises(ValueError, match="backward: expected 2 codecs"):
        EmulatedExchange((4, 4), (codec, codec), (codec,))
    with pytest.raises(ValueError, match="backward: forward_mask needs topk forward"):
        EmulatedExchange((4,), (codec,), (ForwardMask(),))
    exchange = EmulatedExchange((4,), (codec,), (codec,))
    bags = find_bags(torch.zeros(1, 3, dtype=torch.int64), 1.0)
    with pytest.raises(ValueError, match=r"rows: expected \[4\] float32, got \[8\]"):
        exchange(torch.zeros(8), [bags])
    with pytest.raises(ValueError, match="bags: expected of one rank or more"):
        exchange(torch.zeros(0), [])
    with pytest.raises(ValueError, match="tolerances: expected 1 numbers"):
        exchange(torch.zeros(4), [bags], tolerances=[1.0, 1.0])
