"""Averages of touched rows over played replicas, against averages of whole tables."""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from tests.ops.fake_gpu import fake_gpu
from trec_qcomm import Cast, Identity, Rowwise
from trec_qcomm.comm.peers import Peers
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.ext.replicas.average import Average, MatrixState, _mean
from trec_qcomm.ext.replicas.banks import Bank, TouchedRows
from trec_qcomm.ext.replicas.messages import RowMessages, Rows
from trec_qcomm.ext.replicas.residuals import Residuals
from trec_qcomm.lab.ranks.ranks import PlayedRanks

TABLES = ["a", "b", "c"]
SHAPES = [([6, 9], 8), ([7], 4)]  # rows of the tables of two banks, and their dim
INT4 = Rowwise(bits=4, rounding="stochastic")


@dataclass
class Replica:
    """The banks of one replica, and its averages."""

    banks: list[Bank]
    touched: list[TouchedRows]
    average: Average
    residuals: list[Residuals]


def replica(codec, optimizer, algorithm, *, num_slots=100) -> Replica:
    generator = torch.Generator().manual_seed(0)
    names, banks, states, residuals = iter(TABLES), [], [], []
    for num_rows, dim in SHAPES:
        tables = [next(names) for _ in num_rows]
        weights = torch.randn(sum(num_rows), dim, generator=generator)
        sums = torch.rand(sum(num_rows), 1, generator=generator)
        banks.append(
            Bank(
                tables, tables, num_rows, [(0, 0)] * len(tables), {"weights": weights, "sum": sums}
            )
        )
        pairs = []
        for kind, width in ((codec, dim), (optimizer, 1)):
            exact = kind == Identity()
            kept = [None, None] if exact else [
                Residuals(banks[-1], width, num_slots) for _ in range(2)
            ]  # fmt: skip
            pairs.append(MatrixState(exact, *kept))
            residuals += [one for one in kept if one is not None]
        states.append(pairs)
    peers = Peers(dist.group.WORLD)
    codecs = [[codec, optimizer] for _ in SHAPES]
    messages = RowMessages(peers, banks, codecs, Traffic("sync", TABLES))
    average = Average(banks, states, messages, algorithm, dist.get_world_size())
    return Replica(banks, [TouchedRows(bank) for bank in banks], average, residuals)


def train(ours: Replica, step: int) -> None:
    """Change some rows, as an optimizer does after they were looked up; in step 1 only replica 0
    has any, in step 2 nobody."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    for bank, touched in zip(ours.banks, ours.touched, strict=True):
        num_rows = int(bank.first[-1])
        rows = torch.randint(num_rows, (5,), generator=generator)
        if step == 2 or (step == 1 and dist.get_rank()):
            rows = rows[:0]
        touched.touch(rows)
        touched.touch(rows[:2])
        for matrix in bank.matrices.values():
            change = torch.rand(len(rows), matrix.shape[1], generator=generator)
            matrix.index_add_(0, rows, change)


def matrices(ours: Replica) -> list[torch.Tensor]:
    return [matrix.clone() for bank in ours.banks for matrix in bank.matrices.values()]


def run(algorithm):
    """Return for each of five averages: values before and after, and the touched rows."""
    ours, history = replica(Identity(), Identity(), algorithm), []
    for step in range(5):
        train(ours, step)
        before, touched = matrices(ours), [t.collect()[0] for t in ours.touched for _ in range(2)]
        ours.average.run(ours.touched, call=2 * step, seeds=(0, 0))
        history.append((before, matrices(ours), touched))
    return history


def bits(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.view(torch.int32)


@pytest.mark.parametrize("algorithm", ["direct", "two_shot"])
@pytest.mark.parametrize("num_replicas", [2, 3, 4])
def test_exact_rows_have_the_bits_of_a_sum_in_rank_order(num_replicas, algorithm):
    histories = PlayedRanks(num_replicas).run(lambda: run(algorithm))
    for number, step in [(n, step) for n in range(4) for step in range(5)]:
        before, after, touched = zip(*(of_rank[step] for of_rank in histories), strict=True)
        total = before[0][number].clone()
        for other in before[1:]:
            total += other[number]
        expected, whole = before[0][number].clone(), total / num_replicas
        rows = torch.cat([of_rank[number] for of_rank in touched]).unique()
        expected[rows] = whole[rows]
        assert all(torch.equal(bits(m[number]), bits(expected)) for m in after)
        if num_replicas != 3:  # then the mean of equal values is that value
            assert torch.equal(bits(whole), bits(expected))


@pytest.mark.parametrize("algorithm", ["direct", "two_shot"])
@pytest.mark.parametrize("num_replicas", [2, 3])
def test_nothing_is_lost_but_residuals(num_replicas, algorithm):
    """Replicas end with equal bits, and what changed is in the tables or in residuals."""
    codecs = INT4, Cast(dtype="bf16")
    ranks = range(num_replicas)

    def program():
        ours = replica(*codecs, algorithm)
        start = matrices(ours)
        changes = [torch.zeros_like(m, dtype=torch.float64) for m in start]
        for step in range(6):
            before = matrices(ours)
            train(ours, step)
            for total, now, then in zip(changes, matrices(ours), before, strict=True):
                total += now.double() - then.double()
            ours.average.run(ours.touched, call=2 * step, seeds=(dist.get_rank(), 50 + step))
        kept = [r.of_rows(torch.arange(len(r._bank.matrices["weights"]))) for r in ours.residuals]
        return start, changes, matrices(ours), kept

    results = PlayedRanks(num_replicas).run(program)
    for number, start in enumerate(results[0][0]):
        ends = [results[rank][2][number] for rank in ranks]
        assert all(torch.equal(bits(end), bits(ends[0])) for end in ends)
        changed = sum(results[rank][1][number] for rank in ranks) / num_replicas
        sent = sum(results[rank][3][2 * number].double() for rank in ranks) / num_replicas
        owned = sum(results[rank][3][2 * number + 1].double() for rank in ranks)
        # Each step rounds a few float32 sums of values below 16.
        allowed = 6 * (num_replicas + 4) * 16 * 2**-24
        moved = ends[0].double() - start.double()
        assert (moved + sent + owned - changed).abs().max() <= allowed
        assert sent.abs().max() > 10 * allowed or number % 2  # and the codec did lose something


@pytest.mark.triton
def test_a_mean_over_three_replicas_has_the_same_bits_on_a_gpu():
    terms = [(torch.arange(999), torch.randn(999, 2)) for _ in range(3)]
    expected = _mean(terms[0][1], terms)
    with fake_gpu():
        assert torch.equal(_mean(terms[0][1], terms), expected)


def test_residuals_of_two_rows_in_one_slot_do_not_mix():
    bank = Bank(["a"], ["a"], [10], [(0, 0)], {"weights": torch.zeros(10, 2)})
    kept = Residuals(bank, 2, 4)
    values = torch.arange(6.0).view(3, 2) + 1
    kept.keep(torch.tensor([1, 5, 6]), values)  # 1 and 5 share a slot
    rows = torch.tensor([1, 5, 6, 2])
    assert kept.of_rows(rows).tolist() == [[0, 0], [3, 4], [5, 6], [0, 0]]
    kept.keep(torch.tensor([6]), torch.tensor([[float("nan"), 1]]))
    assert kept.of_rows(rows)[2].tolist() == [0, 0]


def test_wrong_row_numbers_are_refused():
    def program():
        ours = replica(Identity(), Identity(), "direct")
        rows = [torch.tensor([3, 20]) if dist.get_rank() else torch.tensor([3]), torch.tensor([1])]
        values = [[torch.zeros(len(r), d) for d in b.dims]
                  for r, b in zip(rows, ours.banks, strict=True)]  # fmt: skip
        ours.banks[0].first[-1] = 21  # so that the sender counts row 20 as its own
        with pytest.raises(CorruptFrameError, match="from rank 1, table 'b'"):
            ours.average._messages.exchange([Rows(rows, values)], call=0, seed=0, decodes=False)

    PlayedRanks(2).run(program)
