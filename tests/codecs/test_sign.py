import pytest
import torch

from trec_qcomm import Sign
from trec_qcomm.core.segments import Segments
from trec_qcomm.ops import sign
from trec_qcomm.testing import awkward_rows, check_codec, check_frame, encode, round_trip


def test_conformance():
    check_codec(Sign())


def test_damaged_frames():
    check_frame(Sign())


def test_a_row_is_its_signs_times_its_mean_magnitude():
    rows = torch.tensor([[1.0, -2.0, 0.0, -0.0], [0.0, 0.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0]])
    decoded = round_trip(Sign(), rows, Segments.packed([2, 1], 4))
    assert decoded.tolist() == [[0.75, -0.75, 0.75, -0.75], [0, 0, 0, 0], [5, 5, 5, 5]]


def test_several_kinds_of_not_finite_are_nan_and_the_others_zero():
    rows = torch.tensor([[1.0, torch.inf, -torch.inf, 2.0]])
    (decoded,) = round_trip(Sign(), rows, Segments.packed([1], 4)).tolist()
    assert decoded[0] == decoded[3] == 0.0
    assert decoded[1] != decoded[1]
    assert decoded[2] != decoded[2]


def test_128_values_take_20_bytes():
    assert Sign().max_nbytes(Segments.packed([100], 128)).tolist() == [2000]


@pytest.mark.parametrize("dim", [1, 7, 8, 64, 130])
def test_both_backends_write_the_same_bytes_and_read_them(dim):
    noise = torch.randn(40, dim, generator=torch.Generator().manual_seed(dim))
    scaled = (noise * 10.0 ** torch.linspace(-44, 38, 40)[:, None]).clamp(-3e38, 3e38)
    for rows in (awkward_rows(dim), scaled, torch.empty(0, dim)):
        segments = Segments.packed([0, len(rows)], dim)
        ours = encode(Sign(), rows, segments)
        theirs = torch.full_like(ours.payload, 7)
        sign.encode(rows, segments, theirs, ours.at, backend="reference")
        assert torch.equal(ours.payload, theirs)
        outs = [torch.full_like(rows, 9.0) for _ in range(2)]
        for out, backend in zip(outs, ("cpu", "reference"), strict=True):
            sign.decode(ours, segments, out, backend=backend)
        assert torch.equal(*(out.view(torch.int32) for out in outs))
