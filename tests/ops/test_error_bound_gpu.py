"""error_bound on a GPU: the same bytes, and the same segments refused, as on a CPU.

test_error_bound.py compares cpu with reference.
"""

import math

import numpy as np
import pytest
import torch

from tests.ops.backends import on
from tests.ops.error_bound_kernels import (
    GPU,
    bytes_of,
    check,
    codec_of,
    decode,
    encode,
    noise,
    verdict,
)
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.error_bound import cpu
from trec_qcomm.testing import awkward_rows, interleaved_segments

pytestmark = pytest.mark.triton


def test_many_segments_of_a_row_and_none():
    awkward = awkward_rows(3)
    check(awkward, Segments.packed([1] * len(awkward), 3), 0.3)
    for num_rows in ([0, 0], []):
        assert check(torch.empty(0, 3), Segments.packed(num_rows, 3), 0.01) == set()


@pytest.mark.parametrize(
    ("dim", "gap"), [(33, 3), (64, 4), (1000, 4), (1023, 3), (1024, 4), (1028, 3), (3000, 8)]
)
def test_rows_of_any_length_are_found(dim, gap):
    """Groups begin and end anywhere in a row."""
    num_rows = 2 + 1100 // dim
    values = noise(num_rows, 2 * (dim + gap))
    segments = interleaved_segments(num_rows, 2, dim, gap=gap)
    assert check(values, segments, 0.01, True) == {cpu.BITPACK}


@pytest.fixture
def few_programs(monkeypatch):
    """Give each program several groups, and add up the sizes of few groups at a time."""
    from trec_qcomm.ops.error_bound import gpu

    monkeypatch.setattr(gpu.grouped_batch, "_MANY_CHUNKS", 4)
    monkeypatch.setattr(gpu, "_FEW_GROUPS", 1)
    monkeypatch.setattr(gpu, "_MANY_GROUPS", 2)


def test_programs_of_several_groups(few_programs):
    values = noise(14_000, 1)
    values[5::701] = math.nan
    values[10_003:11_000] = 0.1
    values[11_000:12_024:2] = math.nan
    segments = Segments.packed([8200, 3, 0, 2797, 1024, 1], 1)
    assert check(values, segments, 0.01, True) == {cpu.BITPACK, cpu.RAW, cpu.CONSTANT}
    values[:8200], values[2000:3072], values[4000:4500] = -0.0, 0.0, math.inf
    assert check(values, segments, 1e-8) == {cpu.RAW, cpu.CONSTANT}


def test_constants_and_ranges_that_are_zero_subnormal_or_overflow():
    huge, tiny = torch.finfo(torch.float32).max, 1e-45
    rows = [
        [huge, -huge, 1.0, 0.0], [tiny, 3 * tiny, 0.0, -tiny], [0.0, -0.0, 0.0, -0.0],
        [-0.0, -0.0, 0.0, -0.0], [math.nan, -0.0, -0.0, -0.0], [0.3, 0.3, 0.3, math.nan],
        [-0.3, -math.inf, -0.3, -0.3], [math.nan, math.inf, -math.inf, math.nan],
        [math.inf] * 4, [-huge] * 4, [1.0, 1.0 + 2**-23, 1.0, 1.0], [0.0, tiny, 0.0, 0.0],
    ]  # fmt: skip
    values = torch.tensor(rows)[:, None].expand(-1, 8, -1).reshape(-1, 4).contiguous()
    values.view(torch.int32)[45, 2] = 0x7FC12345
    segments = Segments.packed([8] * len(rows), 4)
    for bound, relative in ((1e-3, True), (0.3, False)):
        assert cpu.CONSTANT in check(values, segments, bound, relative)


def test_bounds_at_the_limits_of_float32():
    rows = torch.cat([noise(4, 8), noise(4, 8) * 1e-40, noise(4, 8) * 1e38])
    segments = Segments.packed([12], 8)
    for bound in (0, 1e-320, 1e-46, 1e-40, 2**-127, 2**-126, 1e-7, 1e38, 2e38, 1e39, 1e300):
        check(rows, segments, float(bound), relative=0 < bound < 1e-40)
    assert check(rows, Segments.packed([4, 4, 4], 8), 3e-39) == {cpu.RAW}


def test_ties_and_their_neighbours():
    """Values are verbatim only beyond the bound, as float64 says in reference.py.

    The kernels have no float64 there. Up to three ulps around ties, with bounds that are a
    power of two and others.
    """
    for bound in (0.1, 0.5, 6e-39, 1.7e30):
        step = 2 * np.float32(bound)
        if np.float64(step) / 2 > bound:
            step = np.nextafter(step, np.float32(0))
        ties = ((torch.arange(-60, 60, dtype=torch.float64) + 0.5) * float(step)).float()
        neighbours = [ties]
        for direction in (-math.inf, math.inf):
            for _ in range(3):
                before = neighbours[-1] if len(neighbours) % 4 else ties
                neighbours.append(torch.nextafter(before, torch.tensor(direction)))
        check(torch.stack(neighbours, 1), Segments.packed([120], 7), bound)


def test_one_value_an_ulp_beyond_the_bound():
    """The inverse of the step is rounded down, so the index is 0; no other value is verbatim."""
    bound = np.float32(1.7)
    beyond = np.nextafter(bound, np.float32(2))
    assert beyond * (np.float32(0.5) / bound) == 0.5
    x = torch.zeros(100, 1)
    x[70] = float(beyond)
    assert check(x, Segments.packed([100], 1), float(bound)) == {cpu.BITPACK}
    assert int(bytes_of(encode(x, Segments.packed([100], 1), float(bound), False, "gpu"))[4]) & 128


def test_indices_up_to_2_to_the_22_travel_and_beyond_are_verbatim():
    largest = 2.0**22
    x = torch.zeros(200, 6)
    x[:2] = torch.tensor([largest, -largest, largest + 1, -largest - 1, 1.0, 1e9])
    x[7, :2], x[9, 0] = torch.tensor([-(2.0**30), -3e38]), 3e38
    assert check(x, Segments.packed([200], 6), 0.5) == {cpu.BITPACK}


def test_many_verbatim_values():
    """In every group more than a program handles together, just below and above the size of raw."""
    values = noise(1300, 2, seed=1)
    values[::5, 0], values[900:1000, 1] = math.nan, math.inf
    segments = Segments.packed([1300], 2)
    assert check(values, segments, 0.01, True) == {cpu.BITPACK}
    values[:, 1] = math.nan
    assert check(values, segments, 0.01, True) == {cpu.RAW}
    constant = torch.full((1500, 1), 2.0)
    constant[1:1400:2] = math.nan
    assert check(constant, Segments.packed([1500], 1), 0.01) == {cpu.CONSTANT}
    constant[1:1500:2] = math.nan
    assert check(constant, Segments.packed([1500], 1), 0.01) == {cpu.RAW}


def test_forged_segments_get_the_verdict_of_cpu():
    rows = noise(9, 7)
    rows[2, 3], rows[5, 1] = math.nan, 1e30
    segments = Segments.packed([9], 7)
    encoded = encode(rows, segments, 0.05, False, "cpu")
    data = bytes_of(encoded)
    generator = torch.Generator().manual_seed(1)
    places = [(3, v) for v in (0, 1, 0x7F, 0x80, 0xFF)] + [(2, 0), (2, 0x80)]
    places += [(4, v) for v in (0, 1, 4, 5, 15, 0x11, 0x41, 0x61, 0x81)]
    places += [(i, v) for i in (5, 7, 8, 9) for v in (0, 1, 2, 0x19, 0x7F, 0xC0, 0xFF)]
    for place in torch.randint(len(data), (60,), generator=generator).tolist():
        places.append((place, int(torch.randint(256, (1,), generator=generator))))
    refused = 0
    for place, value in places:
        forged = data.clone()
        forged[place] = value
        where = Encoded(forged, torch.tensor([0]), torch.tensor([len(forged)]))
        ours, theirs = (verdict(where, segments, rows, b) for b in ("gpu", "cpu"))
        assert ours == theirs, (place, value)
        refused += isinstance(ours, tuple)
    assert 0 < refused < len(places)


@pytest.mark.parametrize(
    ("indices", "num_values"),
    [
        ([0xC0, 0, 0], 33),
        ([0xE0, 0, 0], 33),
        ([25, 0, 0, 0, 0], 1),
        ([24 | 1 << 5, 1, 0, 0, 0, 0], 1),
    ],
    ids=["6 code bits", "7 code bits", "width 25", "width 24 + 1"],
)
def test_headers_of_just_the_right_size_that_no_encoder_writes(indices, num_values):
    header = [0, 0, 0x80, 0x3F, cpu.BITPACK | (-len(indices) % 8) << 4, 0, 0, 0]
    data = torch.tensor(header + indices + [0] * (-len(indices) % 8), dtype=torch.uint8)
    forged = Encoded(data, torch.tensor([0]), torch.tensor([len(data)]))
    like, segments = torch.zeros(num_values, 1), Segments.packed([num_values], 1)
    for backend in ("gpu", "cpu"):
        assert verdict(forged, segments, like, backend)[0] == 0


def test_positions_that_do_not_increase_or_are_beyond_the_rows():
    """Positions at the ends of what one program checks: two programs, 128 of 700 at a time."""
    rows = torch.full((1500, 1), 2.0)
    rows[1:1400:2] = math.nan
    segments = Segments.packed([1500], 1)
    data = bytes_of(encode(rows, segments, 0.01, False, "cpu"))
    for v, position in [
        (1, 1), (128, 255), (349, 697), (350, 699), (350, 0), (699, 1397), (699, 1500),
        (699, -1), (699, -(2**31)), (0, 0), (0, 3), (699, 1499),
    ]:  # fmt: skip
        forged = data.clone()
        forged[8 : 8 + 4 * 700].view(torch.int32)[v] = position
        where = Encoded(forged, torch.tensor([0]), torch.tensor([len(forged)]))
        ours, theirs = (verdict(where, segments, rows, b) for b in ("gpu", "cpu"))
        assert ours == theirs, (v, position)
        assert isinstance(ours, tuple) == ((v, position) not in ((0, 0), (699, 1499)))


@pytest.mark.parametrize("kind", ["bitpack", "rans", "raw", "constant"])
def test_every_other_size_is_refused(kind):
    rows = {"raw": noise(1, 7), "constant": torch.ones(9, 7)}.get(kind, noise(9, 7))
    encoder = "rans" if kind == "rans" else "bitpack"
    segments = Segments.packed([len(rows)], 7)
    encoded = encode(rows, segments, 1e-20 if kind == "raw" else 0.01, False, "cpu", encoder)
    size = int(encoded.nbytes[0])
    for wrong in (n for n in [0, 8, 16, size - 8, size - 4, size + 4, size + 8] if n != size):
        payload = torch.zeros(size + 24, dtype=torch.uint8)
        payload[:size] = bytes_of(encoded)
        forged = Encoded(payload, torch.tensor([0]), torch.tensor([wrong]))
        with pytest.raises(CorruptFrameError) as raised:
            decode(forged, segments, rows, "gpu")
        assert raised.value.segment == 0


@pytest.mark.parametrize(("nbytes", "num_verbatim"), [(36, 0), (48, 1)])
def test_raw_rows_without_padding_or_with_verbatim_values_are_refused(nbytes, num_verbatim):
    data = torch.zeros(nbytes, dtype=torch.uint8)
    data[4] = (4 << 4 if num_verbatim else 0) | (128 * num_verbatim)
    forged = Encoded(data, torch.tensor([0]), torch.tensor([nbytes]))
    with pytest.raises(CorruptFrameError):
        decode(forged, Segments.packed([7], 1), torch.zeros(7, 1), "gpu")


@pytest.mark.parametrize(("encoder", "place"), [("bitpack", 8), ("rans", 9)])
def test_the_first_bad_segment_is_named_and_only_rows_of_good_ones_are_written(encoder, place):
    """The place is that of a group's header, or of the number of classes."""
    rows = noise(40, 4)
    segments = Segments.packed([10, 10, 0, 10, 10], 4)
    encoded = encode(rows, segments, 0.05, False, "cpu", encoder)
    payload = encoded.payload.clone()
    for s in (1, 3):
        payload[int(encoded.at[s]) + place] ^= 0xFF
    out = torch.full_like(rows, 9.0, device=GPU)
    forged = Encoded(payload.to(GPU), encoded.at, encoded.nbytes)
    with pytest.raises(CorruptFrameError, match="invalid indices") as raised:
        on("gpu", codec_of().decode, forged, segments, out)
    assert raised.value.segment == 1
    good, whole = out.cpu().view(torch.int32), decode(encoded, segments, rows, "cpu")
    assert torch.equal(good[:10], whole[:10])
    assert torch.equal(good[30:], whole[30:])
    assert bool((out[10:30] == 9).all())


def test_vector_lz_is_for_cpus():
    rows = noise(60, 4)
    segments = Segments.packed([60], 4)
    names = r"\('bitpack', 'rans'\)"
    with pytest.raises(ValueError, match=f"encoder: '.*' is not one of {names} on a GPU"):
        encode(rows, segments, 0.02, True, "gpu", "vector_lz")
    encoded = encode(rows, segments, 0.02, True, "cpu")
    word = int(encoded.at[0]) + 4
    encoded.payload[word] = (encoded.payload[word] & 0xF0) | cpu.VECTOR_LZ
    with pytest.raises(CorruptFrameError, match="vector_lz, is none that a GPU decodes"):
        decode(encoded, segments, rows, "gpu")


def test_segments_that_are_too_large_are_refused():
    from trec_qcomm.ops.error_bound.gpu.grouped_batch import GroupedBatch

    one, zero = torch.tensor([0, 1]), torch.tensor([0])
    for segments, field in [
        (Segments(one * 2**31, 1, zero, torch.tensor([1])), "num_rows"),
        (Segments(one * 2, 1, zero, torch.tensor([2**31])), "stride"),
    ]:
        with pytest.raises(ValueError, match=f"Segments.{field}: 214.* values, and at most"):
            GroupedBatch.from_segments(segments, zero, zero, torch.device("cpu"))
