"""All backends write the same bytes and masks, read each other's, and refuse the same bytes.

A GPU's kernels are interpreted where there is none: slow, so they get fewer and smaller cases.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.backends import BACKENDS, assert_equal, device_of
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Masks, Segments, aligned, exclusive_cumsum
from trec_qcomm.ops import sparsify
from trec_qcomm.ops.sparsify import reference
from trec_qcomm.testing import awkward_rows, interleaved_segments

ON_CPU = ("reference", "cpu")
EACH = [*ON_CPU, pytest.param("gpu", marks=pytest.mark.triton)]
VALUES = ("fp32", "fp16", "int8")
DIMS = (1, 2, 7, 16, 64, 65, 128, 200, 300)


def datasets(dim: int) -> list[tuple[torch.Tensor, Segments]]:
    generator = torch.Generator().manual_seed(dim)
    awkward = awkward_rows(dim)
    noise = torch.randn(40, dim, generator=generator)
    scaled = noise * 10.0 ** torch.linspace(-44, 38, 40)[:, None]
    few = torch.randint(-2, 3, (40, dim), generator=generator).float()  # ties, and mostly zeros
    return [
        (awkward, Segments.packed([len(awkward) - 1, 0, 1], dim)),
        (scaled.clamp(-3e38, 3e38), Segments.packed([1] * 40, dim)),
        (scaled.clamp(-3e38, 3e38), Segments.packed([40], dim)),
        (few, Segments.packed([17, 23], dim)),
        (torch.randn(9, 4 * (dim + 3), generator=generator), interleaved_segments(9, 4, dim)),
        (torch.empty(0, dim), Segments.packed([0, 0], dim)),
    ]


def with_masks(segments: Segments, fill: int) -> Segments:
    dims = torch.full_like(segments.num_rows, segments.dim)
    masks = Masks.of_all_columns(segments.num_rows, dims)
    masks.bits.fill_(fill)
    return replace(segments, masks=masks)


def on_device(segments: Segments, backend: str) -> Segments:
    """With a copy of the masks where this backend can read them."""
    bits = segments.masks.bits.to(device_of(backend), copy=True)
    return replace(segments, masks=Masks(bits, segments.masks.at))


def encode(op, values, segments, size, backend, fill, **options):
    """(encoded, its masks) in garbage of `fill`, of just the declared size."""
    device = device_of(backend)
    payload = torch.full((int(size.sum()),), fill, dtype=torch.uint8, device=device)
    segments, at = on_device(segments, backend), exclusive_cumsum(size)[:-1]
    encoded = op(values.to(device), segments, payload, at, backend=backend, **options)
    return replace(encoded, payload=encoded.payload.cpu()), segments.masks.bits.cpu()


def segment_bytes(encoded: Encoded) -> list[list[int]]:
    spans = zip(encoded.at.tolist(), encoded.nbytes.tolist(), strict=True)
    return [encoded.payload[at : at + nbytes].tolist() for at, nbytes in spans]


def decode(op, encoded, segments, backend, shape):
    """(values, masks)."""
    segments = on_device(segments, backend)
    payload = encoded.payload.to(device_of(backend))
    out = torch.full(shape, 9.0, device=payload.device)
    op(replace(encoded, payload=payload), segments, out, backend=backend)
    return out.cpu(), segments.masks.bits.cpu()


def decode_by_each(op, encoded, segments, backends, shape):
    outs, masks = zip(*(decode(op, encoded, segments, b, shape) for b in backends), strict=True)
    assert_equal([out.view(torch.int32) for out in outs])
    assert_equal(masks)
    return outs[0], masks[0]


def check_parity(values, segments, size, *, backends=ON_CPU, stored, **choice):
    op = sparsify.encode_top_k if "k" in choice else sparsify.encode_above
    segments, options = with_masks(segments, 0), choice | {"stored": stored}
    made = [
        encode(op, values, with_masks(segments, 0x5A + f), size, b, 0x5A + f, **options)
        for f, b in enumerate(backends)
    ]
    first = made[0][0]
    for encoded, masks in made[1:]:
        assert segment_bytes(encoded) == segment_bytes(first)
        assert torch.equal(masks, made[0][1])
    decoded, masks = decode_by_each(sparsify.decode, first, segments, backends, values.shape)
    assert torch.equal(masks, made[0][1])
    segments = replace(segments, masks=Masks(masks, segments.masks.at))
    check_masked_parity(values, segments, stored, decoded, backends)


def check_masked_parity(values, segments, stored, sent, backends=ON_CPU):
    """What forward_mask makes of the same values and masks is what was sent with positions."""
    sizes, made = [], []
    for fill, backend in enumerate(backends):
        placed = on_device(segments, backend)
        sizes.append(sparsify.masked_nbytes(placed, stored, backend=backend))
        where = (values, segments, sizes[0], backend, fill)
        encoded, _ = encode(sparsify.encode_masked, *where, stored=stored)
        assert torch.equal(encoded.nbytes, sizes[0])
        made.append(encoded.payload)
    assert_equal(sizes)
    assert_equal(made)
    decoded, _ = decode_by_each(sparsify.decode_masked, encoded, segments, backends, values.shape)
    assert torch.equal(decoded.view(torch.int32), sent.view(torch.int32))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("stored", VALUES)
def test_top_k(stored, dim):
    for k in sorted({1, max(dim // 20, 1), -(-dim // 4), dim}):
        for values, segments in datasets(dim):
            size = sparsify.top_k_nbytes(segments, k, stored)
            check_parity(values, segments, size, k=k, stored=stored)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("stored", VALUES)
def test_above(stored, dim):
    for threshold in (0.0, 0.7, 2.5, 1e39):
        for values, segments in datasets(dim):
            size = sparsify.max_nbytes(segments, stored)
            thresholds = torch.full((segments.num_segments,), threshold, dtype=torch.float64)
            thresholds[::2] *= 0.75
            check_parity(values, segments, size, thresholds=thresholds, stored=stored)


def small_datasets(dim: int) -> list[tuple[torch.Tensor, Segments]]:
    """As `datasets`, in few programs: of several segments, of one, and some beyond the last."""
    generator = torch.Generator().manual_seed(dim)
    bits = torch.randint(-(2**31), 2**31, (3, dim), generator=generator).to(torch.int32)
    few = torch.randint(-2, 3, (3, dim), generator=generator).float()
    awkward = awkward_rows(dim)[:: 1 if dim < 20 else 3]
    rows = torch.cat([awkward, few, bits.view(torch.float32)])
    return [
        (rows, Segments.packed([1, 0, 2, 1, len(rows) - 5, 1, 0], dim)),
        (torch.randn(3, 2 * (dim + 3), generator=generator), interleaved_segments(3, 2, dim)),
        (torch.empty(0, dim), Segments.packed([0, 0], dim)),
        (torch.empty(0, dim), Segments.packed([], dim)),
    ]


@pytest.mark.triton
@pytest.mark.parametrize(
    ("dim", "stored", "k"),
    [
        (1, "fp32", 1),
        (7, "int8", 2),
        (40, "fp32", 20),  # more than are found one by one, and a bitmap
        (130, "fp16", 9),
    ],
)
def test_top_k_on_a_gpu(dim, stored, k):
    for values, segments in small_datasets(dim):
        size = sparsify.top_k_nbytes(segments, k, stored)
        check_parity(values, segments, size, backends=BACKENDS, k=k, stored=stored)


@pytest.mark.triton
@pytest.mark.parametrize(
    ("dim", "stored", "threshold"),
    [
        (1, "int8", 0.7),
        (7, "fp32", 0.0),
        (7, "fp16", 1e39),
        (20, "int8", 0.6),
        (130, "fp16", 2.2),  # packed columns
    ],
)
def test_above_on_a_gpu(dim, stored, threshold):
    for values, segments in small_datasets(dim):
        size = sparsify.max_nbytes(segments, stored)
        limits = torch.full((segments.num_segments,), threshold, dtype=torch.float64)
        limits[::2] *= 0.75
        choice = {"thresholds": limits, "stored": stored}
        check_parity(values, segments, size, backends=BACKENDS, **choice)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=60),
    dim=st.integers(1, 20),
    density=st.floats(0.01, 1),
    stored=st.sampled_from(VALUES),
)
def test_any_bits(rows, dim, density, stored):
    """Rows of any 32 bits each, among them NaN of every kind."""
    words = torch.tensor(rows, dtype=torch.int64).to(torch.int32)
    values = words.repeat(dim)[: len(rows) // dim * dim].view(torch.float32).view(-1, dim)
    segments = Segments.packed([len(values)], dim)
    k = max(1, int(density * dim))
    check_parity(values, segments, sparsify.top_k_nbytes(segments, k, stored), k=k, stored=stored)


def test_search_of_the_level_ends_for_every_shape_of_row():
    """Rows whose levels jump across all magnitudes, one equal value more or less than k."""
    dim, k = 24, 5
    exponents = torch.tensor([0, 120, -149, 127, -60, 3, -126, 90]).repeat(6)
    rows = torch.zeros(len(exponents), dim)
    for i, exponent in enumerate(exponents.tolist()):
        rows[i, i % 20 : i % 20 + (4 + i % 3)] = 2.0**exponent
    segments = Segments.packed([len(rows)], dim)
    check_parity(rows, segments, sparsify.top_k_nbytes(segments, k, "fp32"), k=k, stored="fp32")


@pytest.mark.parametrize("threshold", [0.1, 0.5, 1.0, 1e-46, 1e-45, 3.5e38, 1e300])
def test_thresholds_are_compared_exactly(threshold):
    near = torch.tensor([threshold, 0.0]).float()
    inf = torch.tensor(torch.inf)
    x = torch.stack([near[0], near[0].nextafter(inf), near[0].nextafter(-inf), near[1], inf])
    x = torch.cat([x, -x, torch.tensor([torch.nan])])
    level = sparsify.level_below(torch.tensor([threshold], dtype=torch.float64))
    kept = reference.keep_above(x[None], int(level[0]))[0]
    assert kept[:-1].tolist() == (x[:-1].double().abs() >= threshold).tolist()
    assert bool(kept[-1])


def outcome(op, encoded, segments, backend):
    try:
        shape = (int(segments.offsets[-1]), segments.dim)
        out, bits = decode(op, encoded, segments, backend, shape)
    except CorruptFrameError as error:
        return error.segment, error.reason
    segments = replace(segments, masks=Masks(bits, segments.masks.at))
    masks = [reference.read_mask(segments, s).tolist() for s in range(segments.num_segments)]
    return out.view(torch.int32).tolist(), masks


def check_damage(dim, stored, backends, num_damages) -> int:
    """Bytes changed in any place, and sizes that are not those the header implies; returns how many
    were refused."""
    generator = torch.Generator().manual_seed(dim)
    values = torch.randn(9, dim, generator=generator)
    segments = with_masks(Segments.packed([4, 5], dim), 0)
    most, refused = sparsify.max_nbytes(segments, stored), 0
    choices = [{"k": max(1, dim // 16)}, {"k": max(1, dim // 2)}]  # columns, and a bitmap
    for threshold in (1.9, 0.7):
        choices.append({"thresholds": torch.full((2,), threshold, dtype=torch.float64)})
    for choice in choices:
        op = sparsify.encode_top_k if "k" in choice else sparsify.encode_above
        sound = encode(op, values, segments, most, "cpu", 0, stored=stored, **choice)[0]
        for _ in range(num_damages):
            payload, nbytes = sound.payload.clone(), sound.nbytes.clone()
            s = int(torch.randint(2, (1,), generator=generator))
            place = int(torch.randint(int(nbytes[s]), (1,), generator=generator))
            if torch.rand(1, generator=generator) < 0.4:
                place %= reference.HEADER_NBYTES
            flips = torch.randint(1, 256, (1,), generator=generator).to(torch.uint8)
            payload[int(sound.at[s]) + place] ^= flips[0]
            if torch.rand(1, generator=generator) < 0.2:
                nbytes[s] = 8 * int(torch.randint(int(nbytes[s]) // 8, (1,), generator=generator))
            damaged = Encoded(payload, sound.at, nbytes)
            for op in (sparsify.decode, sparsify.decode_masked):
                results = [outcome(op, damaged, segments, b) for b in backends]
                assert all(result[0] == results[0][0] for result in results)
                if not isinstance(results[0][0], int):
                    assert all(result[1] == results[0][1] for result in results)
                elif "gpu" in backends:  # the reference finds another fault first
                    assert results[backends.index("gpu")] == results[backends.index("cpu")]
                refused += op is sparsify.decode and isinstance(results[0][0], int)
    return refused


@pytest.mark.parametrize("dim", [1, 7, 64, 300])
@pytest.mark.parametrize("stored", VALUES)
def test_all_backends_refuse_the_same_damage(stored, dim):
    assert check_damage(dim, stored, ON_CPU, 100) >= 60


@pytest.mark.triton
@pytest.mark.parametrize(("dim", "stored"), [(1, "int8"), (20, "fp16")])
def test_a_gpu_refuses_the_same_damage(stored, dim):
    assert check_damage(dim, stored, BACKENDS, 3) > 0


def frame_bytes(kind, form, scale, num_kept, values, positions):
    head = torch.tensor([kind, form, 0, 0], dtype=torch.uint8)
    words = torch.tensor([scale]).view(torch.uint8), torch.tensor([num_kept], dtype=torch.int32)
    data = torch.cat([head, words[0], words[1].view(torch.uint8), values, positions])
    size = aligned(torch.tensor([data.numel()]))
    padded = torch.zeros(int(size), dtype=torch.uint8)
    padded[: data.numel()] = data
    return Encoded(padded, torch.zeros(1, dtype=torch.int64), size)


@pytest.mark.parametrize("backend", EACH)
@pytest.mark.parametrize(
    ("form", "num_kept", "positions", "reason"),
    [
        (reference.COLUMNS, 2, [0x10], None),  # columns 0 and 2 of width 3, of one row each
        (reference.COLUMNS, 2, [0x30], "positions"),  # column 6 of 5
        (reference.COLUMNS, 1, [0x00], "positions"),  # one value for two rows
        (reference.COLUMNS, 4, [0x88, 0x06], None),  # 0 1 | 2 3
        (reference.COLUMNS, 4, [0x81, 0x06], "positions"),  # 1 0 | 2 3
        (reference.COUNTED_COLUMNS, 2, [0x02, 0x08], None),  # 2 and 0: columns 0, 1
        (reference.COUNTED_COLUMNS, 2, [0x03, 0x08], "positions"),  # 3 and 0
        (reference.COUNTED_COLUMNS, 2, [0x02, 0x00], "positions"),  # column 0 twice
        (reference.BITMAP, 2, [0x01, 0x10], None),
        (reference.BITMAP, 2, [0x01, 0x20], "positions"),  # a bit beyond the last column
        (reference.BITMAP, 2, [0x01, 0x11], "positions"),  # three bits
        (3, 2, [0x00], "kind"),
        (reference.BITMAP, 11, [0x1F, 0x1F], "more values"),
    ],
)
def test_positions_that_no_encoder_writes(backend, form, num_kept, positions, reason):
    segments = with_masks(Segments.packed([2], 5), 0)
    values = torch.zeros(num_kept, dtype=torch.uint8)
    encoded = frame_bytes(
        reference.INT8, form, 1.0, num_kept, values, torch.tensor(positions, dtype=torch.uint8)
    )
    if reason is None:
        out, _ = decode(sparsify.decode, encoded, segments, backend, (2, 5))
        assert torch.equal(out, torch.zeros(2, 5))
    else:
        with pytest.raises(CorruptFrameError, match=reason) as raised:
            decode(sparsify.decode, encoded, segments, backend, (2, 5))
        assert raised.value.segment == 0


@pytest.mark.parametrize("backend", EACH)
@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-40, torch.inf, torch.nan])
def test_scales_that_no_encoder_writes(backend, scale):
    bitmap = torch.tensor([1], dtype=torch.uint8)
    encoded = frame_bytes(reference.INT8, reference.BITMAP, scale, 1, bitmap, bitmap)
    segments = with_masks(Segments.packed([1], 5), 0)
    with pytest.raises(CorruptFrameError, match="scale"):
        decode(sparsify.decode, encoded, segments, backend, (1, 5))


@pytest.mark.triton
def test_bits_beyond_the_last_column_mean_nothing():
    values = torch.arange(1.0, 11.0).view(2, 5)
    segments = with_masks(Segments.packed([2], 5), 0xFF)
    assert int(sparsify.masked_nbytes(segments, "fp32")[0]) == 8 + 40
    check_masked_parity(values, segments, "fp32", values, BACKENDS)


def test_bindings_refuse_what_kernels_cannot_take():
    segments = Segments.packed([2], 4)
    where = (torch.zeros(2, 4), segments, torch.zeros(64, dtype=torch.uint8), torch.tensor([0]))
    sparsify.encode_top_k(*where, k=4, stored="int8")
    for k in (0, 5):
        with pytest.raises(ValueError, match=rf"k: {k} is not in 1\.\.4"):
            sparsify.encode_top_k(*where, k=k, stored="int8")
    with pytest.raises(ValueError, match="values: 'bf16' is not one of"):
        sparsify.encode_top_k(*where, k=1, stored="bf16")
    for bad in (-1.0, torch.nan, torch.inf):
        with pytest.raises(ValueError, match="is not a finite number >= 0"):
            sparsify.encode_above(
                *where, thresholds=torch.tensor([bad], dtype=torch.float64), stored="int8"
            )
    with pytest.raises(ValueError, match=r"thresholds: expected \[1\] float64"):
        sparsify.encode_above(*where, thresholds=torch.ones(1), stored="int8")
    with pytest.raises(ValueError, match=r"Segments\.masks: there are none"):
        sparsify.encode_masked(*where, stored="int8")


@pytest.mark.parametrize("backend", EACH)
def test_masks_need_not_be_noted(backend):
    """They are found all the same, and are the same."""
    values = torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    segments, device = Segments.packed([2, 3], 20), device_of(backend)
    size = sparsify.top_k_nbytes(segments, 3, "fp32")
    payload = torch.zeros(int(size.sum()), dtype=torch.uint8, device=device)
    where = (values.to(device), segments, payload, exclusive_cumsum(size)[:-1])
    encoded = sparsify.encode_top_k(*where, k=3, stored="fp32", backend=backend)
    out = torch.full((5, 20), 9.0, device=device)
    sparsify.decode(encoded, segments, out, backend=backend)
    assert torch.equal(out.cpu(), torch.where(reference.keep_top_k(values, 3), values, 0))


@pytest.mark.triton
def test_rows_that_no_gpu_program_holds():
    segments = Segments.packed([1], 2**15 + 1)
    values = torch.zeros(1, segments.dim, device=device_of("gpu"))
    payload = torch.zeros(2**18, dtype=torch.uint8, device=values.device)
    where = (values, segments, payload, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"Segments\.dim: 32769 is above 32768"):
        sparsify.encode_top_k(*where, k=1, stored="fp16", backend="gpu")


@pytest.mark.parametrize(
    ("bits", "at", "message"),
    [
        (torch.zeros(1, dtype=torch.uint8), [0], "1 bytes do not hold"),
        (torch.zeros(2, dtype=torch.uint8), [-1], "2 bytes do not hold"),
        (torch.zeros(2, dtype=torch.uint8), [2**63 - 1], "2 bytes do not hold"),
        (torch.zeros(2), [0], "masks.bits: expected contiguous"),
        (torch.zeros(2, dtype=torch.uint8), [0, 0], r"masks.at: expected \[1\]"),
    ],
)
def test_masks_must_hold_the_segments(bits, at, message):
    with pytest.raises(ValueError, match=message):
        replace(Segments.packed([2], 4), masks=Masks(bits, torch.tensor(at)))
