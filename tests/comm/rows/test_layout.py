import pytest
import torch

from trec_qcomm.codecs import Identity, Rowwise
from trec_qcomm.comm.rows.layout import (
    FeatureShard,
    Layout,
    behind_one_another,
    first_columns,
    in_matrix,
    packed,
    packed_in_order,
    side_by_side,
)

LAYOUT = Layout(
    (
        (
            FeatureShard("a", "f1", 0, 4),
            FeatureShard("b", "f2", 0, 2),
            FeatureShard("a", "f3", 0, 4),
        ),
        (),
        (FeatureShard("c", "f4", 8, 3),),
    )
)
CODECS = {"a": Identity(), "b": Rowwise(4), "c": Identity()}


def owned_by(rank, **options):
    """Plan of what that rank owns, for each of three peers."""
    return LAYOUT.plan_frames([rank] * 3, rank, CODECS, **options)


def coordinates(num_rows: int, num_columns: int) -> torch.Tensor:
    """Each value is 1000 * row + column."""
    rows, columns = torch.arange(num_rows)[:, None], torch.arange(num_columns)
    return (1000.0 * rows + columns).float()


def rows_of(placed, matrix):
    """Each segment's rows, by number."""
    return {
        member: group.segments.block(matrix, s).tolist()
        for group in placed.groups
        for s, member in enumerate(group.members.tolist())
    }


def flattened(segments):
    return [value for rows in segments for row in rows for value in row]


def test_owned_columns_by_peer():
    plan = owned_by(0)
    placed = plan.place(*in_matrix(plan, [2, 0, 3], first_columns(plan), 10))
    first_values = {
        s: [row[0] for row in r] for s, r in rows_of(placed, coordinates(5, 10)).items()
    }
    assert plan.tables == ("a", "b", "a") * 3
    assert plan.frame.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert first_values == {
        0: [0, 1000], 1: [4, 1004], 2: [6, 1006],
        3: [], 4: [], 5: [],
        6: [2000, 3000, 4000], 7: [2004, 3004, 4004], 8: [2006, 3006, 4006],
    }  # fmt: skip
    assert placed.raw_nbytes.tolist() == [32, 16, 32, 0, 0, 0, 48, 24, 48]


def test_columns_of_all_owners():
    plan = LAYOUT.plan_frames(range(3), 2, CODECS)
    placed = plan.place(*side_by_side(plan, 3))
    columns = {s: rows[0] for s, rows in rows_of(placed, coordinates(3, 13)).items()}
    assert columns == {0: [0, 1, 2, 3], 1: [4, 5], 2: [6, 7, 8, 9], 3: [10, 11, 12]}
    assert plan.segments_per_frame == (3, 0, 1)
    assert placed.frame_nbytes[1] == 0


def test_both_ends_agree_on_sizes_and_layouts():
    batch_sizes = [2, 0, 3]
    for owner in range(3):
        owner_plan = owned_by(owner)
        width = LAYOUT.dim_sum(owner)
        sent = owner_plan.place(
            *in_matrix(owner_plan, batch_sizes, first_columns(owner_plan), width)
        )
        for receiver in range(3):
            receiver_plan = LAYOUT.plan_frames(range(3), receiver, CODECS)
            received = receiver_plan.place(*side_by_side(receiver_plan, batch_sizes[receiver]))
            assert sent.frame_nbytes[receiver] == received.frame_nbytes[owner]
            assert owner_plan.layouts[receiver] == receiver_plan.layouts[owner]


def test_packed_segments_follow_one_another():
    plan = owned_by(0)
    num_rows = torch.tensor([1, 2, 0, 0, 1, 1, 2, 0, 1])
    placed = plan.place(*packed(plan, num_rows))
    flat = torch.arange(int((num_rows * plan.dims).sum())).float()
    rows = rows_of(placed, flat)
    assert flattened(rows[s] for s in range(9)) == flat.tolist()


def test_packed_in_another_order():
    plan = owned_by(0)
    num_rows = torch.tensor([1, 2, 0, 0, 1, 1, 2, 0, 1])
    order = torch.tensor([0, 3, 6, 1, 4, 7, 2, 5, 8])  # block by block
    placed = plan.place(*packed_in_order(plan, num_rows, order))
    flat = torch.arange(int((num_rows * plan.dims).sum())).float()
    rows = rows_of(placed, flat)
    assert flattened(rows[s] for s in order.tolist()) == flat.tolist()


def test_copies_behind_one_another():
    one, many = LAYOUT.plan_frames([0], 0, CODECS), owned_by(0)
    places = side_by_side(one, 2)
    placed = many.place(*behind_one_another(many, places, 20))
    rows = rows_of(placed, torch.arange(60).float())
    assert rows[1] == [[4, 5], [14, 15]]
    assert rows[4] == [[24, 25], [34, 35]]
    assert rows[7] == [[44, 45], [54, 55]]


def test_repeated_blocks():
    plan = LAYOUT.plan_frames([0], 0, CODECS, repeats=2)
    assert plan.tables == ("a", "b", "a", "a", "b", "a")
    assert plan.segments_per_frame == (6,)


def test_equal_codec_and_dim_make_one_group():
    parts = {(codec, dim): members.tolist() for codec, dim, members in owned_by(0).groups}
    assert parts == {(Identity(), 4): [0, 2, 3, 5, 6, 8], (Rowwise(4), 2): [1, 4, 7]}


def test_fingerprint_sees_every_field():
    def with_first(block: FeatureShard) -> int:
        return Layout(
            ((block, *LAYOUT.shards_by_rank[0][1:]), *LAYOUT.shards_by_rank[1:])
        ).fingerprint(0)

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
