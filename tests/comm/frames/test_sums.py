"""Sums of frames: the same bits whether codecs add up or every frame is decoded first."""

import pytest
import torch

from trec_qcomm.codecs import Cast, ErrorBounded, Identity, Rowwise
from trec_qcomm.comm.frames.coding import encode_frames
from trec_qcomm.comm.frames.decoding import decode_frames
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.frames.sums import decode_sum
from trec_qcomm.comm.rows.layout import FeatureShard, Layout, behind_one_another, in_matrix
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import ALIGNMENT
from trec_qcomm.ops.batch.rank_sum import rank_sum
from trec_qcomm.wire import frame

DIMS = {"a": 8, "b": 8, "c": 3, "d": 16}
WIDTH, NUM_ROWS = sum(DIMS.values()), 5
MIXED = {"a": Rowwise(8), "b": Cast("bf16"), "c": Identity(), "d": Rowwise(4)}
BOUNDED = MIXED | {"c": ErrorBounded(0.01)}
LAYOUT = Layout((tuple(FeatureShard(name, name, 0, dim) for name, dim in DIMS.items()),))
NAMES = sorted(DIMS)


def placed_frames(codecs, num_frames: int, skipped: int = -1) -> PlacedFrames:
    """Return frames of equal rows, one behind the other, but for a row that is skipped."""
    plan, one = (LAYOUT.plan_frames([0] * n, 0, codecs) for n in (num_frames, 1))
    first = in_matrix(one, [NUM_ROWS], WIDTH)
    num_rows, start, stride = behind_one_another(plan, first, NUM_ROWS * WIDTH)
    if skipped >= 0:
        start = start + (plan.frame >= skipped) * NUM_ROWS * WIDTH
    return plan.place(num_rows, start, stride)


def sent(codecs, num_frames: int):
    """Return frames of random rows, as if each came from another rank, and counters."""
    traffic = Traffic("embedding_forward", NAMES)
    rows = torch.randn(num_frames, NUM_ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    rows[1, 2, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0])
    placed = placed_frames(codecs, num_frames)
    return encode_frames(rows, placed, call=3, seed=1, traffic=traffic), traffic


@pytest.mark.parametrize("held_at", [-1, 0, 2, 3])
@pytest.mark.parametrize("codecs", [MIXED, BOUNDED], ids=["fused", "decoded"])
def test_sums_are_those_of_decoded_frames_in_order(codecs, held_at):
    frames, traffic = sent(codecs, 3)
    num_terms = 3 + (held_at >= 0)
    placed = placed_frames(codecs, 3, skipped=held_at)
    held = torch.randn(NUM_ROWS, WIDTH, generator=torch.Generator().manual_seed(2))
    terms, expected = torch.zeros(num_terms, NUM_ROWS * WIDTH), torch.empty(NUM_ROWS, WIDTH)
    decode_frames(frames, placed, terms, ranks=[7, 8, 9], traffic=traffic)
    if held_at >= 0:
        terms[held_at] = held.view(-1)
    rank_sum(terms, expected)
    out = held.clone()
    decode_sum(frames, placed, out, ranks=[7, 8, 9], traffic=traffic, held_at=held_at)
    assert torch.equal(out.view(torch.int32), expected.view(torch.int32))
    assert out.isnan().any()
    assert (placed.sums() is not None) == (codecs is MIXED)


def test_codecs_that_add_up_take_no_memory_for_terms():
    def refuse(numel):
        raise AssertionError(f"memory for {numel} values")

    frames, traffic = sent(MIXED, 3)
    options = {"ranks": [7, 8, 9], "traffic": traffic, "memory": refuse}
    decode_sum(frames, placed_frames(MIXED, 3), torch.empty(NUM_ROWS, WIDTH), **options)
    frames, _ = sent(BOUNDED, 3)
    with pytest.raises(AssertionError, match="memory"):
        decode_sum(frames, placed_frames(BOUNDED, 3), torch.empty(NUM_ROWS, WIDTH), **options)


def test_a_sender_with_another_codec_is_decoded_by_its_own():
    exact = dict.fromkeys(NAMES, Identity())
    frames, traffic = sent(exact, 2)
    sums = []
    for codecs in (exact, MIXED):
        out = torch.empty(NUM_ROWS, WIDTH)
        decode_sum(frames, placed_frames(codecs, 2), out, ranks=[7, 8], traffic=traffic)
        sums.append(out.view(torch.int32))
    assert torch.equal(*sums)


def test_a_bad_segment_names_sender_and_table():
    frames, traffic = sent(MIXED, 3)
    placed = placed_frames(MIXED, 3)
    at = int(placed.layout(ALIGNMENT).at[4 + 3])  # table d, in the second frame
    frames.buffer[at + 3] = 26  # no exponent that an encoder writes
    reseal(frames, placed)
    with pytest.raises(CorruptFrameError, match="rank 8, table 'd': an exponent below 27"):
        decode_sum(frames, placed, torch.empty(NUM_ROWS, WIDTH), ranks=[7, 8, 9], traffic=traffic)


def reseal(frames, placed):
    """Write checksums anew."""
    frame.seal(
        frames.buffer,
        frames.nbytes,
        placed.plan.segments_per_frame,
        layouts=placed.plan.layouts,
        call=frames.call,
        codecs=placed.plan.codecs,
        num_rows=placed.num_rows,
        nbytes=placed.max_nbytes,
    )
