import torch

from trec_qcomm.codecs import Identity, Rowwise
from trec_qcomm.comm.layout import Block, Layout, owner_side, sample_side

LAYOUT = Layout(
    (
        (Block("a", "f1", 0, 4), Block("b", "f2", 0, 2), Block("a", "f3", 0, 4)),
        (),
        (Block("c", "f4", 8, 3),),
    )
)
CODECS = {"a": Identity(), "b": Rowwise(4), "c": Identity()}


def coordinates(num_rows: int, num_columns: int) -> torch.Tensor:
    """Each value is 1000 * row + column."""
    rows, columns = torch.arange(num_rows)[:, None], torch.arange(num_columns)
    return (1000.0 * rows + columns).float()


def test_owner_side_finds_the_rows_of_each_peer():
    side = owner_side(LAYOUT, 0, [2, 0, 3], CODECS)
    matrix = coordinates(5, 10)
    first_values = {}
    for group in side.groups:
        for s, member in enumerate(group.members.tolist()):
            first_values[member] = group.segments.block(matrix, s)[:, 0].tolist()
    assert side.tables == ("a", "b", "a") * 3
    assert side.peer.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert first_values == {
        0: [0, 1000], 1: [4, 1004], 2: [6, 1006],
        3: [], 4: [], 5: [],
        6: [2000, 3000, 4000], 7: [2004, 3004, 4004], 8: [2006, 3006, 4006],
    }  # fmt: skip
    assert side.raw_nbytes.tolist() == [32, 16, 32, 0, 0, 0, 48, 24, 48]


def test_sample_side_finds_the_columns_of_each_owner():
    side = sample_side(LAYOUT, 2, [2, 0, 3], CODECS)
    matrix = coordinates(3, 13)
    columns = {}
    for group in side.groups:
        for s, member in enumerate(group.members.tolist()):
            columns[member] = group.segments.block(matrix, s)[0].tolist()
    assert columns == {0: [0, 1, 2, 3], 1: [4, 5], 2: [6, 7, 8, 9], 3: [10, 11, 12]}
    assert side.segments_per_frame == (3, 0, 1)
    assert side.frame_nbytes[1] == 0


def test_both_ends_agree_on_sizes_and_layouts():
    batch_sizes = [2, 0, 3]
    for owner in range(3):
        for receiver in range(3):
            sent = owner_side(LAYOUT, owner, batch_sizes, CODECS)
            due = sample_side(LAYOUT, receiver, batch_sizes, CODECS)
            assert sent.frame_nbytes[receiver] == due.frame_nbytes[owner]
            assert sent.layouts[receiver] == due.layouts[owner]


def test_equal_codec_and_dim_make_one_group():
    groups = {(g.codec, g.segments.dim) for g in owner_side(LAYOUT, 0, [1, 1, 1], CODECS).groups}
    assert groups == {(Identity(), 4), (Rowwise(4), 2)}


def test_fingerprint_sees_every_field():
    def with_first(block: Block) -> int:
        return Layout(((block, *LAYOUT.blocks[0][1:]), *LAYOUT.blocks[1:])).fingerprint(0)

    seen = {LAYOUT.fingerprint(0)}
    for changed in (("x", "f1", 0, 4), ("a", "x", 0, 4), ("a", "f1", 1, 4), ("a", "f1", 0, 5)):
        seen.add(with_first(Block(*changed)))
    assert len(seen) == 5
