"""Bytes of the all-reduce of DATA_PARALLEL tables: by hand, and as the ranks count them."""

import pytest
import torch

from trec_qcomm import Identity, Rowwise
from trec_qcomm.comm.dense.all_reduce import AllReduceOptions, Reduction
from trec_qcomm.comm.dense.chunks import Coding, ParameterShape
from trec_qcomm.comm.touched_rows import all_reduce_touched
from trec_qcomm.core.counters import Traffic
from trec_qcomm.ext.planner.traffic import TouchedRows, TouchedTable, reduced_nbytes
from trec_qcomm.lab.ranks.rounds import play
from trec_qcomm.wire.frame import HEADER_NBYTES, SEGMENT_ENTRY_NBYTES

DIM = 16
ROWS, TOUCHED = (4, 60, 3000), (3, 40, 700)  # of three tables


def counted_nbytes(codec, algorithm, num_ranks):
    """Return the bytes that a rank sends, the mean, where the ranks touch TOUCHED rows together."""
    coding = Coding(codec=codec, exact=Identity(), min_numel=0)
    options = AllReduceOptions(codings=(coding,), algorithm=algorithm, seed=1)
    shapes = [ParameterShape(f"t{n}", rows * DIM, DIM) for n, rows in enumerate(ROWS)]
    ranks = [Reduction(options, r, num_ranks, Traffic("dp", ["all"])) for r in range(num_ranks)]
    rounds = []
    for rank, reduction in enumerate(ranks):
        draw = torch.Generator().manual_seed(rank)
        tables = []
        for rows, touched in zip(ROWS, TOUCHED, strict=True):
            values = torch.zeros(rows, DIM)
            numbers = (
                torch.arange(touched)[rank % 2 :: 2] if rank < 2 else torch.arange(touched // 3)
            )
            values[numbers] = torch.randn(len(numbers), DIM, generator=draw)
            tables.append(values.flatten())
        rounds.append(all_reduce_touched(reduction, shapes, torch.cat(tables)))
    play(rounds)
    return (
        sum(int(r.traffic.wire_nbytes.sum()) + r.traffic.header_nbytes for r in ranks) / num_ranks
    )


@pytest.mark.parametrize("codec", [Identity(), Rowwise(8)], ids=repr)
@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "recursive_doubling"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_ranks_send_what_is_predicted(codec, algorithm, num_ranks) -> None:
    tables = [
        TouchedTable(dim=DIM, num_rows=rows, num_touched=touched)
        for rows, touched in zip(ROWS, TOUCHED, strict=True)
    ]
    predicted = reduced_nbytes(tables, codec, algorithm, num_ranks)
    assert predicted == pytest.approx(counted_nbytes(codec, algorithm, num_ranks), rel=0.02)


def test_by_hand() -> None:
    """4 ranks: a bit a row to 3 others, and 6 chunks of a fourth of the touched rows."""
    table = TouchedTable(dim=DIM, num_rows=640, num_touched=40)
    frame = 10 * 4 * DIM + SEGMENT_ENTRY_NBYTES + HEADER_NBYTES
    assert reduced_nbytes([table], Identity(), "two_shot", 1) == 0
    assert reduced_nbytes([], Identity(), "two_shot", 4) == 0
    assert reduced_nbytes([table], Identity(), "two_shot", 4) == 3 * 80 + 6 * frame


def test_more_ranks_touch_more_rows() -> None:
    """Check the power of the ranks where it was measured, and the bound of rows that are alike."""
    alike = TouchedRows(num_rows=1000, by_one=100)
    assert alike.by(1) == pytest.approx(100)
    assert alike.by(2) == pytest.approx(190)
    known = TouchedRows(num_rows=1000, by_one=100, by_several=225, num_several=4)
    assert [known.by(n) for n in (1, 4, 16)] == pytest.approx([100, 225, 100 * 2.25**2])
    assert known.by(4096) <= 1000
    few = TouchedRows(num_rows=4, by_one=9.0, by_several=9.0, num_several=2)
    assert few.by(1) == few.by(8) == 4
    assert TouchedRows(num_rows=4, by_one=0.0).by(8) == 0
    assert TouchedRows(num_rows=0, by_one=3.0, by_several=4.0, num_several=2).by(8) == 0
