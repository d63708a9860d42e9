"""Rows without TorchRec on three ranks: equal to autograd of the whole table, and coded."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from trec_qcomm.codecs import ErrorBounded, Rowwise
from trec_qcomm.rows import ByModulo, ByRange, RowChannel, all_to_all, exchange_rows
from trec_qcomm.testing import run_ranks

NUM_ROWS, DIM, NUM_RANKS = 101, 8, 3
RULES = {"range": ByRange(NUM_ROWS, NUM_RANKS), "modulo": ByModulo(NUM_RANKS)}
WAYS = [(True, True), (True, False), (False, True), (False, False)]  # unique, packed_ids


def whole_table():
    return torch.randn(NUM_ROWS, DIM, generator=torch.Generator().manual_seed(0))


def ids_of(rank):
    """Return ids of which many repeat; none on the last rank."""
    generator = torch.Generator().manual_seed(rank + 1)
    drawn = torch.randint(NUM_ROWS, (5, 4), generator=generator) // (1 + 9 * (rank == 1))
    return drawn if rank < NUM_RANKS - 1 else drawn[:0]


def weights_of(rank):
    shape = *ids_of(rank).shape, DIM
    return torch.randn(shape, generator=torch.Generator().manual_seed(10 + rank))


def trained(rule, channel, **options):
    """Return this rank's rows and its part of the table's gradient."""
    rank, ids = dist.get_rank(), torch.arange(NUM_ROWS)
    mine = rule.rank_of(ids) == rank
    shard = nn.Parameter(whole_table()[mine])
    rows = exchange_rows(ids_of(rank), shard, rule, channel, **options)
    (rows * weights_of(rank)).sum().backward()
    return rows.detach(), ids[mine], shard.grad


def program():
    channel, made = RowChannel(DIM), {}
    for name, rule in RULES.items():
        for unique, packed_ids in WAYS:
            options = {"unique": unique, "packed_ids": packed_ids}
            made[name, unique, packed_ids] = trained(rule, channel, **options)
    noisy = RowChannel(DIM, ErrorBounded(0.05), Rowwise(8, "stochastic"), seed=1)
    made["coded"] = trained(RULES["range"], noisy)
    state = noisy.state_dict()
    second = trained(RULES["range"], noisy)
    again = RowChannel(DIM, ErrorBounded(0.05), Rowwise(8, "stochastic"), seed=1)
    again.load_state_dict(state)
    made["resumed"] = all(map(torch.equal, second, trained(RULES["range"], again)))
    made["other noise"] = torch.equal(second[2], made["coded"][2])
    return made, plain(channel), recomputed(channel), refused(channel)


def plain(channel):
    """Return what rank r gets where rank s sends each rank s + 1 rows of its own number."""
    rank = dist.get_rank()
    rows = torch.full(((rank + 1) * NUM_RANKS, DIM), float(rank), requires_grad=True)
    came = all_to_all(rows, [rank + 1] * NUM_RANKS, channel)
    (came * (rank + 1)).sum().backward()
    return came[:, 0].tolist(), rows.grad[:, 0].tolist()


def recomputed(channel):
    """Return whether checkpointing, and a function in place of a shard, change nothing."""
    rank, rule = dist.get_rank(), RULES["range"]
    shard = nn.Parameter(whole_table()[list(rule.rows_of(rank))])

    def rows(ids):
        return exchange_rows(
            ids, lambda asked: shard[asked - rule.rows_of(rank).start], rule, channel
        )

    out = checkpoint(rows, ids_of(rank), use_reentrant=False)
    (out * weights_of(rank)).sum().backward()
    expected = trained(rule, channel)
    return torch.equal(out, expected[0]), torch.equal(shard.grad, expected[2])


def refused(channel):
    with pytest.raises(ValueError, match="rank_of gives a rank that is none of 0 to 2"):
        exchange_rows(torch.tensor([NUM_ROWS]), whole_table(), RULES["range"], channel)
    with pytest.raises(ValueError, match="splits: 2 for 3 ranks"):
        all_to_all(whole_table(), [1, 2], channel)


@pytest.fixture(scope="module")
def outcomes():
    return run_ranks(program, NUM_RANKS, timeout_s=300)


@pytest.fixture(scope="module")
def expected():
    """Return the rows of all ranks, and the gradient of the whole table."""
    table = nn.Parameter(whole_table())
    rows = [table[ids_of(rank)] for rank in range(NUM_RANKS)]
    sum((r * weights_of(rank)).sum() for rank, r in enumerate(rows)).backward()
    return [r.detach() for r in rows], table.grad


@pytest.mark.dist
@pytest.mark.parametrize("key", [(rule, *sent) for rule in RULES for sent in WAYS], ids=str)
def test_exact_rows_and_gradients_are_those_of_the_whole_table(outcomes, expected, key):
    for rank, (made, *_) in enumerate(outcomes):
        rows, ids, grad = made[key]
        assert torch.equal(rows, expected[0][rank])
        assert torch.allclose(grad, expected[1][ids], rtol=1e-6, atol=1e-6)


@pytest.mark.dist
def test_coded_rows_are_near_and_a_resumed_run_draws_the_same_noise(outcomes, expected):
    for rank, (made, *_) in enumerate(outcomes):
        rows, ids, grad = made["coded"]
        assert rows.shape == expected[0][rank].shape
        if rows.numel():
            error = (rows - expected[0][rank]).abs().max()
            assert 0 < error <= 0.05 * 2 * whole_table().abs().max()
        assert 0 < (grad - expected[1][ids]).abs().max() < 0.2
        assert made["resumed"]
        assert not made["other noise"]


@pytest.mark.dist
def test_the_bare_exchange_and_what_recomputes_it(outcomes):
    for rank, (_, (came, grads), same, _) in enumerate(outcomes):
        assert came == [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
        assert grads == [float(r + 1) for r in range(NUM_RANKS) for _ in range(rank + 1)]
        assert same == (True, True)
