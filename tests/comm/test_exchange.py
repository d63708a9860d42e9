"""Frames decode at their receiver without any process group."""

from dataclasses import replace

import pytest
import torch

from tests.fuzz import receivers
from tests.ops.fake_gpu import fake_gpu
from trec_qcomm.codecs import Cast, ErrorBounded, Identity, Rowwise
from trec_qcomm.comm.frames.coding import SealedFrames, encode_frames
from trec_qcomm.comm.frames.decoding import decode_frames
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rows.layout import FeatureShard, Layout, in_matrix
from trec_qcomm.core.counters import Traffic, kind_stats
from trec_qcomm.core.errors import CorruptFrameError, UnencodableError
from trec_qcomm.ext.dct import ForwardMask, Threshold, TopK
from trec_qcomm.ext.dct.masks import new_masks, with_masks

LAYOUT = Layout(
    ((FeatureShard("a", "f1", 0, 4), FeatureShard("b", "f2", 0, 4), FeatureShard("c", "f3", 0, 7)),)
)
ROWS = torch.randn(6, 15, generator=torch.Generator().manual_seed(0))


def placed_frames(codecs, **plan_options) -> PlacedFrames:
    plan = LAYOUT.plan_frames([0], 0, codecs, **plan_options)
    return plan.place(*in_matrix(plan, [6], 15))


def send(codecs, rows=ROWS, fan_out=1, num_summands=1, **options):
    traffic = Traffic("embedding_forward", LAYOUT.tables())
    placed = placed_frames(codecs, fan_out=fan_out, num_summands=num_summands)
    return encode_frames(rows, placed, call=3, seed=1, traffic=traffic, **options), traffic


def receive(frames, codecs):
    out = torch.full_like(ROWS, torch.nan)
    traffic = Traffic("embedding_forward", LAYOUT.tables())
    decode_frames(frames, placed_frames(codecs), out, ranks=[7], traffic=traffic)
    return out


def all_tables(codec):
    return dict.fromkeys("abc", codec)


def test_the_frame_selects_its_decoder():
    """The receiver's config says int4 everywhere; the sender's differs by table."""
    frames, _ = send({"a": Identity(), "b": Cast("bf16"), "c": Identity()})
    out = receive(frames, all_tables(Rowwise(4)))
    assert torch.equal(out[:, :4], ROWS[:, :4])
    assert torch.equal(out[:, 4:8], ROWS[:, 4:8].bfloat16().float())
    assert torch.equal(out[:, 8:], ROWS[:, 8:])


@pytest.mark.triton
def test_one_frame_for_all_ranks_is_not_copied_on_a_gpu():
    codecs = all_tables(Rowwise(4))
    on_cpu, _ = send(codecs, fan_out=3)
    with fake_gpu():
        shared, _ = send(codecs, fan_out=3)
    assert not on_cpu.is_shared
    assert torch.equal(on_cpu.buffer, on_cpu.buffer[: on_cpu.nbytes[0]].repeat(3))
    assert shared.is_shared
    assert shared.nbytes == [shared.buffer.numel()] * 3
    assert shared.nbytes[0] % 128 == 0
    assert torch.equal(shared.buffer[: on_cpu.nbytes[0]], on_cpu.buffer[: on_cpu.nbytes[0]])


@pytest.mark.triton
def test_a_refused_batch_leaves_the_next_frame_whole():
    """Kernels of the first codec have added to the frame when the second one refuses values."""
    codecs = {"a": Rowwise(8), "b": Rowwise(4, nonfinite="raise"), "c": Rowwise(8)}
    (on_cpu, traffic), placed = send(codecs), placed_frames(codecs)
    options = {"call": 3, "seed": 1, "traffic": traffic}
    with fake_gpu():
        with pytest.raises(UnencodableError):
            encode_frames(torch.full_like(ROWS, torch.nan), placed, **options)
        frames = encode_frames(ROWS, placed, **options)
    assert torch.equal(frames.buffer[: on_cpu.nbytes[0]], on_cpu.buffer)


def test_a_codec_with_a_decoder_of_its_own_takes_no_frames():
    class Own(Rowwise):
        def decode(self, encoded, segments, out):
            super().decode(replace(encoded, frames=None), segments, out)

    assert (Rowwise(8).takes_frames, Own(8).takes_frames) == (True, False)


def test_errors_name_rank_and_table():
    frames, _ = send(all_tables(Rowwise(4)))
    codecs = all_tables(Rowwise(4))
    flipped = SealedFrames(frames.buffer.clone(), frames.nbytes, 3)
    flipped.buffer[100] ^= 1
    with pytest.raises(CorruptFrameError, match="frame from rank 7: checksum differs"):
        receive(flipped, codecs)
    with pytest.raises(CorruptFrameError, match="bytes where"):
        receive(SealedFrames(frames.buffer[:-8], frames.nbytes, 3), codecs)


def test_a_mask_codec_is_refused_where_no_masks_are():
    """Whatever codec the receiver has, in whichever table: an error that names rank and table."""
    placed = placed_frames({"a": Identity(), "b": ForwardMask("fp32"), "c": Identity()})
    placed = with_masks(placed, new_masks(placed, ROWS.device))
    traffic = Traffic("embedding_forward", LAYOUT.tables())
    frames = encode_frames(ROWS, placed, call=3, seed=1, traffic=traffic)
    expected = "frame from rank 7, table 'b': codec 9 is not the one this rank expects"
    for codec in (Identity(), Rowwise(4), TopK(density=0.5), ErrorBounded(0.1)):
        with pytest.raises(CorruptFrameError, match=expected):
            receive(frames, all_tables(codec))


def test_every_wire_id_decodes_or_is_refused_at_every_receiver():
    """Rows arrive as their sender's config decodes them, or a CorruptFrameError is raised."""
    num_pairs = len(receivers.PAIRS)
    decoded, refused = receivers.search(num_pairs + 1, seed=0)  # sound frames, then damaged ones
    assert decoded + refused >= 2 * (num_pairs // receivers.NUM_TABLES)
    assert min(decoded, refused) > 0


def test_unencodable_values_name_the_table():
    rows = ROWS.clone()
    rows[2, 5] = torch.nan
    with pytest.raises(UnencodableError, match="table 'b': NaN or inf"):
        send(all_tables(Rowwise(4, nonfinite="raise")), rows)


def test_a_frame_for_all_ranks_is_encoded_once_and_counted_for_each():
    once, _ = send(all_tables(Rowwise(4)))
    frames, traffic = send(all_tables(Rowwise(4)), fan_out=3)
    assert frames.nbytes == once.nbytes * 3
    assert torch.equal(frames.buffer, once.buffer.repeat(3))
    assert int(traffic.wire_nbytes.sum()) + traffic.header_nbytes == 2 * once.nbytes[0]
    assert int(traffic.raw_nbytes.sum()) == 2 * ROWS.numel() * 4


def test_a_nan_error_is_not_zero():
    traffic = Traffic("embedding_forward", ["a"])
    traffic.max_abs_err[0] = torch.nan
    fine = Traffic("embedding_forward", ["a"])
    fine.max_abs_err[0] = 1.0
    for order in ([traffic, fine], [fine, traffic], [traffic]):
        assert torch.tensor(kind_stats(order).tables["a"].max_abs_err).isnan()


def payload(bound, **options):
    codecs = {"a": ErrorBounded(bound), "b": Threshold(0.6), "c": Identity()}
    return send(codecs, **options)[0].buffer


def test_of_a_sum_error_bounds_are_divided_and_thresholds_are_not():
    assert torch.equal(payload(0.03, num_summands=3), payload(0.03 / 3))
    assert not torch.equal(payload(0.03, num_summands=3), payload(0.03))


def test_tolerances_replace_those_of_the_codecs_before_they_are_divided():
    tolerances = torch.tensor([0.06, 0.6, torch.nan], dtype=torch.float64)
    assert torch.equal(payload(0.03, tolerances=tolerances), payload(0.06))
    twice = payload(0.5, tolerances=tolerances, num_summands=3)
    assert torch.equal(twice, payload(0.06 / 3))
    tolerances[1] = 1.2
    assert not torch.equal(payload(0.03, tolerances=tolerances), payload(0.06))


def test_a_sum_of_bounded_values_needs_a_bound_to_divide():
    class Unbounded(ErrorBounded):
        tolerance = None

    codecs = {"a": Unbounded(0.1), "b": Identity(), "c": Identity()}
    with pytest.raises(ValueError, match=r"table 'a': .* is BOUNDED and has no tolerance"):
        send(codecs, num_summands=2)
