"""Bytes of a table by sharding, by hand: TorchRec's ids and lengths, and segments of fixed size."""

import pytest
import torch

from trec_qcomm import Identity
from trec_qcomm.ext.planner.sizes import FixedSizes
from trec_qcomm.ext.planner.traffic import (
    SEGMENT_NBYTES,
    MeasuredTable,
    Place,
    Sharded,
    bits_of_gap,
    hops_of,
    sent_nbytes,
)
from trec_qcomm.ops.batch.packed_ids.reference import encode_message
from trec_qcomm.wire.frame import SEGMENT_ENTRY_NBYTES

DIM, BAGS, DISTINCT = 16, 100, 40
FOUR = Place(num_ranks=4)
ROW = 4 * DIM


def table(**changes):
    sizes = dict.fromkeys(
        ("forward", "backward", "intra_forward", "intra_backward"), FixedSizes(Identity())
    )
    counts = {"num_bags": BAGS, "num_distinct": DISTINCT, "num_sent": DISTINCT, "num_rows": 1000}
    return MeasuredTable(dim=DIM, **sizes, **counts | changes)


@pytest.mark.parametrize(
    ("sharding", "parts", "segments", "rows", "ids"),
    [  # segments to others, rows in them, and (ids, lengths) to others
        ("table_wise", 1, 3, 3 * DISTINCT, (3 * DISTINCT, 3 * DISTINCT)),
        ("column_wise", 4, 12, 3 * DISTINCT, (12 * DISTINCT, 12 * DISTINCT)),
        ("row_wise", 1, 12, 3 * DISTINCT, (3 * DISTINCT, 12 * DISTINCT)),
        ("table_row_wise", 1, 3, 3 * DISTINCT, (3 * DISTINCT, 3 * DISTINCT)),
    ],
)
def test_by_sharding(sharding, parts, segments, rows, ids) -> None:
    sent = sent_nbytes(table(), Sharded(sharding=sharding, num_column_parts=parts), FOUR)
    nbytes = rows * ROW + segments * SEGMENT_ENTRY_NBYTES
    assert sent.forward == pytest.approx(nbytes)
    assert sent.backward == pytest.approx(nbytes)
    assert sent.intra_forward == 0
    assert sent.ids == pytest.approx(8 * ids[0] + 4 * ids[1])


def test_two_levels_send_sums_of_the_node_s_batches_inside_it() -> None:
    """2 nodes of 2: a rank has the rows of 2 batches for the other one, and then of one."""
    place = Place(num_ranks=4, node_size=2)
    sent = sent_nbytes(table(), Sharded(sharding="table_row_wise"), place)
    assert sent.intra_forward == 2 * (2 * DISTINCT * ROW + SEGMENT_ENTRY_NBYTES)
    assert sent.forward == 2 * (DISTINCT * ROW + SEGMENT_ENTRY_NBYTES)
    assert sent.ids == 2 * 3 * (8 * DISTINCT / 2 + 4 * DISTINCT)


def test_partial_rows_are_sent_where_a_bag_has_an_id_in_the_shard() -> None:
    (hop,) = hops_of("row_wise", FOUR, rows_share=0.25, num_ids=2)
    assert hop.share == 1 - 0.75**2
    assert hop.num_terms == 4
    (hop,) = hops_of("row_wise", FOUR, rows_share=0.25, num_ids=2, is_pooled=False)
    assert (hop.share, hop.num_terms) == (0.25, 1)
    # 3 rows over 4 ranks: the last has none, and its frame has an entry all the same.
    few = sent_nbytes(table(num_rows=3), Sharded(sharding="row_wise"), FOUR)
    assert few.forward == pytest.approx(3 * DISTINCT * ROW + 12 * SEGMENT_ENTRY_NBYTES)
    with pytest.raises(ValueError, match=r"sharding: 'data_parallel' is not one of table_wise, "):
        hops_of("data_parallel", FOUR, rows_share=1, num_ids=1)
    with pytest.raises(ValueError, match="4 ranks in nodes of 3"):
        Place(num_ranks=4, node_size=3)


@pytest.mark.parametrize(("num_rows", "num_ids"), [(1000, 900), (20_000, 500), (10**6, 300)])
def test_packed_ids_take_what_they_are_expected_to(num_rows, num_ids) -> None:
    ids = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0))[:num_ids]
    message = encode_message([[[i] for i in sorted(ids.tolist())]], states_bags=False)
    nbytes = bits_of_gap(num_rows / num_ids) * num_ids / 8 + SEGMENT_NBYTES
    assert nbytes == pytest.approx(len(message), rel=0.1)
    assert bits_of_gap(1) == 0
