"""Layouts of tables over ranks: what both ends of an exchange compare, and what is refused."""

import pytest
import torch

from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.comm.rows.reduce_scatter import PooledReduceScatter
from trec_qcomm.comm.rows.sequence import SequenceAllToAll

FIRST, LAST = FeatureShard("a", "f1", 0, 4), FeatureShard("c", "f4", 8, 3)
OTHERS = FeatureShard("b", "f2", 0, 2), FeatureShard("a", "f3", 0, 4)
LAYOUT = Layout(((FIRST, *OTHERS), (), (LAST,)))


def test_fingerprint_sees_every_field():
    def with_first(block: FeatureShard) -> int:
        return Layout(((block, *OTHERS), (), (LAST,))).fingerprint(0)

    seen = {LAYOUT.fingerprint(0)}
    for changed in (("x", "f1", 0, 4), ("a", "x", 0, 4), ("a", "f1", 1, 4), ("a", "f1", 0, 5)):
        seen.add(with_first(FeatureShard(*changed)))
    for dtype in (torch.float16, torch.bfloat16):
        seen.add(Layout(LAYOUT.shards_by_rank, dtype).fingerprint(0))
    assert len(seen) == 7


@pytest.mark.parametrize(
    ("shards", "crc"),
    [
        ([], 1580606521),
        ([("t'1", "f", 0, 16)], 431583516),
        ([("a", "x", 0, 4), ("b", 'y"é', 8, 2), ("a", "z'\"", 12, 4)], 3687478856),
    ],
)
def test_the_fingerprint_is_part_of_the_wire_format(shards, crc):
    layout = Layout((tuple(FeatureShard(*shard) for shard in shards),))
    assert layout.fingerprint(0) == crc


def test_ranks_must_have_equal_columns_and_rows_one_width():
    narrow, wide = FeatureShard("a", "f", 0, 4), FeatureShard("b", "g", 0, 8)
    with pytest.raises(ValueError, match="x: ranks whose columns differ"):
        PooledReduceScatter(None, Layout(((narrow,), (wide,))), name="x")
    with pytest.raises(ValueError, match=r"x: rows of \[4, 8\] values"):
        SequenceAllToAll(None, Layout(((narrow, wide),)), name="x")
