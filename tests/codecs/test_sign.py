import pytest
import torch

from tests.ops.backends import BACKENDS, assert_equal, device_of
from trec_qcomm import Sign
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ops import sign
from trec_qcomm.testing import (
    awkward_rows,
    check_codec,
    check_frame,
    interleaved_segments,
    round_trip,
)


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


def datasets(dim):
    """Return rows and segments: one-row and empty segments, rows that begin at multiples of 4, and
    values whose sum depends on the order, more than one program takes."""
    generator = torch.Generator().manual_seed(dim)
    noise = torch.randn(140, dim, generator=generator)
    scaled = (noise * 10.0 ** torch.linspace(-44, 38, 140)[:, None]).clamp(-3e38, 3e38)
    mixed = noise * 10.0 ** torch.randint(-9, 9, noise.shape, generator=generator)
    mixed[0, 0], mixed[0, -1], mixed[1, 0], mixed[1, -1] = torch.inf, -torch.inf, torch.nan, 1e9
    wide = torch.randn(9, 3 * (dim + 4), generator=generator)
    awkward = awkward_rows(dim)
    return [
        (awkward, Segments.packed([0, len(awkward) - 1, 0, 1], dim)),
        (scaled[::4].contiguous(), Segments.packed([1] * 35, dim)),
        (mixed, Segments.packed([139, 1], dim)),
        (wide, interleaved_segments(9, 3, dim, gap=4)),
        (torch.empty(0, dim), Segments.packed([0, 0], dim)),
    ]


@pytest.mark.triton
@pytest.mark.parametrize("dim", [1, 7, 8, 64, 130])
def test_all_backends_write_the_same_bytes_and_read_them(dim):
    for rows, segments in datasets(dim):
        sizes = sign.nbytes(segments)
        at, payloads, outs = exclusive_cumsum(sizes)[:-1], [], []
        for fill, backend in enumerate(BACKENDS):
            values = rows.to(device_of(backend))
            payload = torch.full((int(sizes.sum()),), fill, dtype=torch.uint8, device=values.device)
            sign.encode(values, segments, payload, at, backend=backend)
            payloads.append(payload)
        assert_equal(payloads)
        for backend in BACKENDS:
            out = torch.full_like(rows, 9.0, device=device_of(backend))
            encoded = Encoded(payloads[0].to(out.device), at, sizes)
            sign.decode(encoded, segments, out, backend=backend)
            outs.append(out.view(torch.int32))
        assert_equal(outs)


@pytest.mark.triton
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_magnitude_below_zero_is_refused(backend):
    device = device_of(backend)
    segments, sizes = Segments.packed([1, 0, 2], 3), torch.tensor([8, 0, 16])
    at, out = torch.tensor([0, 8, 8]), torch.zeros(3, 3, device=device)
    for scale, wrong in [(-0.0, True), (-1.0, True), (-torch.inf, False), (-torch.nan, False)]:
        payload = torch.zeros(24, dtype=torch.uint8)
        payload[12:16].view(torch.float32)[0] = scale
        encoded = Encoded(payload.to(device), at, sizes)
        if wrong:
            with pytest.raises(CorruptFrameError, match="a magnitude below 0") as raised:
                sign.decode(encoded, segments, out, backend=backend)
            assert raised.value.segment == 2
        else:
            sign.decode(encoded, segments, out, backend=backend)


@pytest.mark.triton
@pytest.mark.parametrize("dim", [3, 8])
def test_any_bytes_are_read_alike(dim):
    """The bytes include the payloads of NaN, and bits after the last column."""
    generator = torch.Generator().manual_seed(dim)
    segments = Segments.packed([40, 3], dim)
    sizes = sign.nbytes(segments)
    payload = torch.randint(256, (int(sizes.sum()),), generator=generator).to(torch.uint8)
    at, outs = exclusive_cumsum(sizes)[:-1], []
    for s in range(2):
        scales = payload[int(at[s]) :][: 4 * int(segments.num_rows[s])].view(torch.int32)
        scales[::2] |= 0x7F800000
        scales[1::2] &= 0x7FFFFFFF
    for backend in BACKENDS:
        outs.append(torch.zeros(43, dim, device=device_of(backend)))
        encoded = Encoded(payload.to(outs[-1].device), at, sizes)
        sign.decode(encoded, segments, outs[-1], backend=backend)
    assert_equal(out.view(torch.int32) for out in outs)
