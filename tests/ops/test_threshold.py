"""The backends of threshold write the same bytes, read each other's, and refuse the same bytes.

Without a GPU its kernels are interpreted, which is slow, so they get fewer and smaller cases.
"""

from dataclasses import replace

import pytest
import torch

from tests.ops.backends import BACKENDS, assert_equal, device_of
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ops import threshold
from trec_qcomm.ops.dispatch import gpu_kernels
from trec_qcomm.testing import awkward_rows, interleaved_segments

CPU_BACKENDS = ("reference", "cpu")
ALL_BACKENDS = [*CPU_BACKENDS, pytest.param("gpu", marks=pytest.mark.triton)]
VALUES = ("fp32", "fp16", "int8")


def datasets(dim):
    generator = torch.Generator().manual_seed(dim)
    awkward = awkward_rows(dim)
    noise = torch.randn(40, dim, generator=generator)
    few = (torch.rand(40, dim, generator=generator) < 0.02) * noise
    return [
        (awkward, Segments.packed([len(awkward) - 1, 0, 1], dim)),
        (noise, Segments.packed([1] * 40, dim)),
        (few, Segments.packed([17, 23], dim)),
        (torch.zeros(40, dim), Segments.packed([40], dim)),
        (torch.randn(9, 4 * (dim + 3), generator=generator), interleaved_segments(9, 4, dim)),
        (torch.empty(0, dim), Segments.packed([0, 0], dim)),
    ]


def encode(values, segments, limits, stored, backend, fill):
    """Encode into memory of just the declared size that was full of `fill`."""
    most, device = threshold.max_nbytes(segments, stored), device_of(backend)
    payload = torch.full((int(most.sum()),), fill, dtype=torch.uint8, device=device)
    where = (values.to(device), segments, payload, exclusive_cumsum(most)[:-1])
    encoded = threshold.encode(*where, thresholds=limits, stored=stored, backend=backend)
    assert bool((encoded.nbytes <= most).all())
    return replace(encoded, payload=encoded.payload.cpu())


def decode(encoded, segments, backend, shape):
    payload = encoded.payload.to(device_of(backend))
    out = torch.full(shape, 9.0, device=payload.device)
    threshold.decode(replace(encoded, payload=payload), segments, out, backend=backend)
    return out.cpu()


def segment_bytes(encoded):
    spans = zip(encoded.at.tolist(), encoded.nbytes.tolist(), strict=True)
    return [encoded.payload[at : at + nbytes].tolist() for at, nbytes in spans]


def check_parity(values, segments, limits, stored, backends):
    encodings = [
        encode(values, segments, limits, stored, backend, 0x5A + fill)
        for fill, backend in enumerate(backends)
    ]
    for encoded in encodings[1:]:
        assert segment_bytes(encoded) == segment_bytes(encodings[0])
    outs = [decode(encodings[0], segments, backend, values.shape) for backend in backends]
    assert_equal([out.view(torch.int32) for out in outs])
    return encodings[0]


@pytest.mark.parametrize("stored", VALUES)
@pytest.mark.parametrize("dim", [1, 2, 7, 64, 300])
def test_parity(dim, stored):
    for values, segments in datasets(dim):
        for limit in (0.0, 1e-3, 1.0, 1e30):
            limits = torch.full((segments.num_segments,), limit, dtype=torch.float64)
            check_parity(values, segments, limits, stored, CPU_BACKENDS)


def form_of(encoded, segment):
    return int(encoded.payload[int(encoded.at[segment]) + 1])


@pytest.mark.triton
@pytest.mark.parametrize(("dim", "stored"), [(1, "fp16"), (7, "fp32"), (8, "int8")])
def test_parity_of_a_gpu_on_short_segments(dim, stored):
    """One program has many segments of all sizes, with bitmaps and with gaps."""
    generator = torch.Generator().manual_seed(dim)
    bits = torch.randint(-(2**31), 2**31, (20, dim), generator=generator).to(torch.int32)
    rows = torch.cat([awkward_rows(dim), bits.view(torch.float32)])
    num_rows = [0, 1, 2, 0, len(rows) - 20, *[1] * 16, 1, 0]
    limits = torch.tensor([0.0, 1e30, 0.5] * 8, dtype=torch.float64)[: len(num_rows)]
    check_parity(rows, Segments.packed(num_rows, dim), limits, stored, BACKENDS)
    for empty in ([], [0, 0]):
        segments, none = Segments.packed(empty, dim), limits[: len(empty)]
        check_parity(rows[:0], segments, none, stored, BACKENDS)


@pytest.mark.triton
@pytest.mark.parametrize("stored", VALUES)
def test_parity_of_a_gpu_on_long_segments(stored):
    """Some gaps reach over chunks, one segment has no gaps, one a bitmap of several chunks."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5300, 1, generator=generator)
    values[1200:2500] = 0  # chunks that keep nothing
    values[4000:5300:700] = 9
    segments = Segments.packed([2700, 0, 1300, 1300], 1)
    limits = torch.tensor([2.2, 0.0, 0.9, 5.0], dtype=torch.float64)
    encoded = check_parity(values, segments, limits, stored, BACKENDS)
    assert [form_of(encoded, s) for s in range(4)] == [11, 0, 255, 10]


@pytest.mark.triton
def test_a_gpu_reads_more_gaps_than_a_chunk_has_values():
    values = torch.arange(1.0, 5001.0)[:, None]
    values[700::2] = 0
    segments, limits = Segments.packed([5000], 1), torch.ones(1, dtype=torch.float64)
    encoded = encode(values, segments, limits, "fp32", "cpu", 0)
    assert form_of(encoded, 0) == 1
    assert torch.equal(decode(encoded, segments, "gpu", (5000, 1)), values)


@pytest.mark.triton
@pytest.mark.parametrize(("dim", "limit"), [(300, 2.0), (64, 0.8), (7, 0.5)])
def test_parity_of_a_gpu_among_other_tables(dim, limit):
    num_rows, generator = max(3, 1100 // dim), torch.Generator().manual_seed(dim)
    values = torch.randn(num_rows, 2 * (dim + 4), generator=generator)
    segments = interleaved_segments(num_rows, 2, dim, gap=4)
    limits = torch.tensor([limit, limit / 2], dtype=torch.float64)
    check_parity(values, segments, limits, "fp16", BACKENDS)


def segment(width, count, places, *, kind=0, values=()):
    header = torch.tensor([kind, width, 0, 0, 0, 0, 0, 0], dtype=torch.uint8)
    body = [torch.tensor([count], dtype=torch.int32), torch.tensor(values, dtype=torch.float32)]
    parts = [header, *(part.view(torch.uint8) for part in body)]
    data = torch.cat([*parts, torch.tensor(places, dtype=torch.uint8)])
    return torch.nn.functional.pad(data, (0, -data.numel() % 8))


@pytest.mark.parametrize("backend", ALL_BACKENDS)
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (segment(8, 2, [3, 3], values=[1, 2]), None),
        (segment(8, 2, [3, 4], values=[1, 2]), "positions"),  # the second would be the ninth
        (segment(31, 2, [3, 0, 0, 0x80, 1, 0, 0, 0], values=[1, 2]), None),  # gaps of 3 and 3
        (segment(31, 2, [255] * 8, values=[1, 2]), "positions"),
        (segment(0, 2, [], values=[1, 2]), None),
        (segment(255, 2, [3], values=[1, 2]), None),
        (segment(255, 2, [7], values=[1, 2]), "positions"),
        (segment(255, 2, [1], values=[1, 2]), "positions"),
        (segment(32, 2, [0] * 8, values=[1, 2]), "unknown kind"),
        (segment(254, 2, [0] * 8, values=[1, 2]), "unknown kind"),
        (segment(8, 9, [0] * 9, values=[0] * 9), "more values kept"),
        (segment(8, -1, [0] * 9, values=[0] * 9), "more values kept"),
        (segment(8, 2, [3, 3, 0, 0, 0, 0, 0], values=[1, 2]), "size"),
        (segment(0, 2, [], kind=2), "scale"),
        (segment(0, 2, [], kind=3), "unknown kind"),
        (torch.zeros(8, dtype=torch.uint8), "size"),
        (torch.zeros(0, dtype=torch.uint8), "size"),
    ],
)
def test_what_no_encoder_writes_is_refused(backend, data, reason):
    encoded = Encoded(data, torch.tensor([0]), torch.tensor([data.numel()]))
    segments = Segments.packed([2], 4)
    if reason is None:
        out = decode(encoded, segments, backend, (2, 4))
        assert sorted(out.flatten().tolist()) == [0] * 6 + [1, 2]
    else:
        with pytest.raises(CorruptFrameError, match=reason) as raised:
            decode(encoded, segments, backend, (2, 4))
        assert raised.value.segment == 0


def outcome(encoded, segments, backend, shape):
    try:
        return decode(encoded, segments, backend, shape).view(torch.int32).tolist()
    except CorruptFrameError as error:
        return error.segment, error.reason


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_a_signalling_nan_alone_keeps_its_bits(backend):
    """fp32 values are stored as they are."""
    bits = torch.tensor([[0x7F800001, 0, 0, 0]], dtype=torch.int32)
    segments = Segments.packed([1], 4)
    encoded = encode(
        bits.view(torch.float32), segments, torch.ones(1).double(), "fp32", "cpu", 0x5A
    )
    decoded = decode(encoded, segments, backend, (1, 4))
    assert torch.equal(decoded.view(torch.int32), bits)


def check_damage(dim, stored, backends, num_damages) -> int:
    """Check that backends agree on bytes that are changed in any place; return how many damaged
    encodings were refused."""
    generator, refused = torch.Generator().manual_seed(dim), 0
    values = torch.randn(70, dim, generator=generator)
    segments, limits = Segments.packed([30, 40], dim), torch.tensor([2.0, 0.7]).double()
    sound = encode(values, segments, limits, stored, "cpu", 0)
    for _ in range(num_damages):
        payload, s = sound.payload.clone(), int(torch.randint(2, (1,), generator=generator))
        place = int(torch.randint(int(sound.nbytes[s]), (1,), generator=generator))
        if torch.rand(1, generator=generator) < 0.3:
            place %= 12
        flips = torch.randint(1, 256, (1,), generator=generator).to(torch.uint8)
        payload[int(sound.at[s]) + place] ^= flips[0]
        damaged = replace(sound, payload=payload)
        results = [outcome(damaged, segments, backend, values.shape) for backend in backends]
        assert all(result == results[0] for result in results)
        refused += isinstance(results[0], tuple)
    return refused


@pytest.mark.parametrize("dim", [1, 7])
@pytest.mark.parametrize("stored", VALUES)
def test_all_backends_refuse_the_same_damage(stored, dim):
    assert check_damage(dim, stored, CPU_BACKENDS, 100) >= 15


@pytest.mark.triton
@pytest.mark.parametrize(("dim", "stored"), [(1, "int8"), (7, "fp16")])
def test_a_gpu_refuses_the_same_damage(stored, dim):
    assert check_damage(dim, stored, BACKENDS, 10) > 0


@pytest.mark.triton
def test_places_that_no_gpu_counts_to(monkeypatch):
    kernels = gpu_kernels(threshold.__name__)
    monkeypatch.setattr(kernels, "MAX_NUMEL", 7)
    segments, limits = Segments.packed([2], 4), torch.zeros(1, dtype=torch.float64)
    with pytest.raises(ValueError, match="8 values in one are above 7, on a GPU"):
        encode(torch.zeros(2, 4), segments, limits, "fp16", "gpu", 0)
