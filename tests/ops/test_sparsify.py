"""The backends of sparsify write the same bytes and masks, and read each other's.

Damaged bytes are in test_sparsify_damage.py. Without a GPU its kernels are interpreted, which is
slow, so they get fewer and smaller cases.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.backends import BACKENDS, assert_equal, device_of
from tests.ops.sparse_rows import (
    ALL_BACKENDS,
    CPU_BACKENDS,
    VALUES,
    decode_by_each,
    encode,
    on_device,
    segment_bytes,
    with_masks,
)
from trec_qcomm.core.segments import Masks, Segments, exclusive_cumsum
from trec_qcomm.ops import sparsify
from trec_qcomm.ops.sparsify import reference
from trec_qcomm.testing import awkward_rows, interleaved_segments

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


def check_parity(values, segments, size, *, backends=CPU_BACKENDS, stored, **choice):
    op = sparsify.encode_top_k if "k" in choice else sparsify.encode_above
    segments, options = with_masks(segments, 0), choice | {"stored": stored}
    encodings = [
        encode(op, values, with_masks(segments, 0x5A + f), size, b, 0x5A + f, **options)
        for f, b in enumerate(backends)
    ]
    first, first_masks = encodings[0]
    for encoded, masks in encodings[1:]:
        assert segment_bytes(encoded) == segment_bytes(first)
        assert torch.equal(masks, first_masks)
    decoded, masks = decode_by_each(sparsify.decode, first, segments, backends, values.shape)
    assert torch.equal(masks, first_masks)
    segments = replace(segments, masks=Masks(masks, segments.masks.at))
    check_masked_parity(values, segments, stored, decoded, backends)


def check_masked_parity(values, segments, stored, sent, backends=CPU_BACKENDS):
    """Check that forward_mask, given the masks, gives the values that were sent with positions."""
    sizes, payloads = [], []
    for fill, backend in enumerate(backends):
        placed = on_device(segments, backend)
        sizes.append(sparsify.masked_nbytes(placed, stored, backend=backend))
        where = (values, segments, sizes[0], backend, fill)
        encoded, _ = encode(sparsify.encode_masked, *where, stored=stored)
        assert torch.equal(encoded.nbytes, sizes[0])
        payloads.append(encoded.payload)
    assert_equal(sizes)
    assert_equal(payloads)
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
    """Return data like `datasets`, small enough for few programs: a program with rows of several
    segments, one with those of a single segment, and one that reaches beyond the last row."""
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
        (40, "fp32", 20),  # more values than are found one by one; a bitmap
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
    """Values of any 32 bits, among them NaN of every kind."""
    words = torch.tensor(rows, dtype=torch.int64).to(torch.int32)
    values = words.repeat(dim)[: len(rows) // dim * dim].view(torch.float32).view(-1, dim)
    segments = Segments.packed([len(values)], dim)
    k = max(1, int(density * dim))
    check_parity(values, segments, sparsify.top_k_nbytes(segments, k, stored), k=k, stored=stored)


def test_search_of_the_level_ends_for_every_shape_of_row():
    """The rows' levels jump across all magnitudes; each row has k - 1, k or k + 1 equal values."""
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


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_masks_need_not_be_noted(backend):
    """Without memory for masks, the same columns are kept."""
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
