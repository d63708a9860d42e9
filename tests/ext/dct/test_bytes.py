"""The operators write the bytes of FORMAT.md, for whole batches, and read them back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ext.dct import by_hand
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ext.dct import places, rows
from trec_qcomm.ext.dct.masks import Masks, masked_columns
from trec_qcomm.testing import awkward_rows, interleaved_segments

VALUES = ("fp32", "fp16", "int8")
DIMS = (1, 7, 16, 65)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


def datasets(dim: int) -> list[tuple[torch.Tensor, Segments]]:
    generator = torch.Generator().manual_seed(dim)
    awkward = awkward_rows(dim)
    noise = torch.randn(20, dim, generator=generator)
    scaled = (noise * 10.0 ** torch.linspace(-46, 39, 20)[:, None]).clamp(-3e38, 3e38)
    few = torch.randint(-2, 3, (20, dim), generator=generator).float()  # ties, and mostly zeros
    bits = torch.randint(-(2**31), 2**31, (12, dim), generator=generator).to(torch.int32)
    offsets, stride = torch.tensor([0, 4, 4, 7]), torch.full((3,), dim + 1)
    behind = Segments(offsets, dim, torch.tensor([3 * (dim + 1) + 2, 0, 2]), stride)
    return [
        (awkward, Segments.packed([len(awkward) - 1, 0, 1], dim)),
        (scaled, Segments.packed([1] * 20, dim)),
        (scaled, Segments.packed([20], dim)),
        (few, Segments.packed([7, 13], dim)),
        (bits.view(torch.float32), Segments.packed([5, 7], dim)),
        (torch.randn(5, 3 * (dim + 3), generator=generator), interleaved_segments(5, 3, dim)),
        (torch.randn(5, 3 * dim, generator=generator), interleaved_segments(5, 3, dim, gap=0)),
        (torch.randn(9, dim + 1, generator=generator), behind),
        (torch.empty(0, dim), Segments.packed([0, 0], dim)),
        (torch.empty(0, dim), Segments.packed([], dim)),
    ]


def with_masks(segments: Segments, device: str = "cpu") -> Segments:
    dims = torch.full_like(segments.num_rows, segments.dim)
    masks = Masks.of_all_columns(segments.num_rows, dims, torch.device(device))
    return segments.with_notes(masks)


def check(encode, decode, values, segments, size, expected, *, device="cpu", shift=0, **options):
    """Check the bytes of each segment, and that nothing else is written.

    Args: expected: for each segment, its bytes and its rows decoded.  shift: bytes before the
        payload in its memory.
    Returns: what was encoded, and the masks.
    """
    at = exclusive_cumsum(size + 8)[:-1]
    memory = torch.full((shift + int((size + 8).sum()),), 0x5A, dtype=torch.uint8, device=device)
    payload = memory[shift:]
    encoded = encode(values.to(device), segments, payload, at, **options)
    written, data_after = torch.zeros(len(payload), dtype=torch.bool), payload.cpu()
    for s, (data, _) in enumerate(expected):
        begin, nbytes = int(at[s]), int(encoded.nbytes[s])
        assert bytes(data_after[begin : begin + nbytes].tolist()) == data, s
        assert nbytes <= int(size[s])
        written[begin : begin + nbytes] = True
    assert bool((data_after[~written] == 0x5A).all())
    out = torch.full_like(values, 9.0, device=device)
    decode(encoded, segments, out)
    inside, out = torch.zeros_like(values, dtype=torch.bool), out.cpu()
    for s, (_, decoded) in enumerate(expected):
        assert torch.equal(
            segments.block(out, s).contiguous().view(torch.int32), decoded.view(torch.int32)
        )
        segments.block(inside.view(torch.uint8), s).fill_(1)
    assert bool((out[~inside] == 9.0).all())


def decoded_values(kept: torch.Tensor, stored: str) -> torch.Tensor:
    """Return what arrives of the kept values of one segment."""
    scale, data = by_hand.stored_values(kept, stored)
    if stored == "fp32" or not len(kept):
        return kept
    limit = torch.finfo(torch.float32).max
    dtype = torch.float16 if stored == "fp16" else torch.int8
    codes = torch.frombuffer(bytearray(data), dtype=dtype)
    x = (codes.float() * scale).clamp(-limit, limit)
    special = kept.isinf() if stored == "int8" else codes.float().isinf()
    x = torch.where(special, kept.sign() * torch.inf, x)
    return torch.where(kept.isnan(), torch.nan, x)


def scattered(block: torch.Tensor, kept: list[list[int]], stored: str) -> torch.Tensor:
    flat = [i * block.shape[1] + d for i, row in enumerate(kept) for d in row]
    values = block.reshape(-1)[torch.tensor(flat, dtype=torch.int64)]
    out = torch.zeros(block.numel(), dtype=torch.int32)
    out[torch.tensor(flat, dtype=torch.int64)] = decoded_values(values, stored).view(torch.int32)
    return out.view(torch.float32).view(block.shape)


def check_rows(values, segments, stored, *, k=0, thresholds=None, device="cpu", shift=0):
    """Check topk, and forward_mask with the masks that it writes."""
    blocks = [segments.block(values, s) for s in range(segments.num_segments)]
    kept = [
        [by_hand.largest(row, k) if k else by_hand.above(row, float(thresholds[s])) for row in x]
        for s, x in enumerate(blocks)
    ]
    size = rows.top_k_nbytes(segments, k, stored) if k else rows.max_nbytes(segments, stored)
    options = {"k": k} if k else {"thresholds": thresholds}
    results = [scattered(x, columns, stored) for x, columns in zip(blocks, kept, strict=True)]
    segments, where = with_masks(segments, device), {"device": device, "shift": shift}
    data = [
        by_hand.topk_segment(x, columns, stored, counted=not k)
        for x, columns in zip(blocks, kept, strict=True)
    ]
    expected = list(zip(data, results, strict=True))
    encode = rows.encode_top_k if k else rows.encode_above
    check(encode, rows.decode, values, segments, size, expected, stored=stored, **options, **where)
    columns = [row for of_segment in kept for row in of_segment]
    masks = masked_columns(segments.notes, segments).cpu()
    assert [row.nonzero().view(-1).tolist() for row in masks] == columns
    size = rows.masked_nbytes(segments, stored)
    data = [by_hand.masked_segment(x, c, stored) for x, c in zip(blocks, kept, strict=True)]
    expected = list(zip(data, results, strict=True))
    codec = rows.encode_masked, rows.decode_masked
    check(*codec, values, segments, size, expected, stored=stored, **where)


def check_places(values, segments, stored, thresholds, *, device="cpu", shift=0):
    expected = []
    for s in range(segments.num_segments):
        block, threshold = segments.block(values, s).contiguous(), float(thresholds[s])
        data = by_hand.threshold_segment(block.view(-1), threshold, stored)
        kept = [by_hand.above(row, threshold) for row in block]
        expected.append((data, scattered(block, kept, stored)))
    size, options = places.max_nbytes(segments, stored), {"thresholds": thresholds}
    where = {"device": device, "shift": shift, "stored": stored}
    check(places.encode, places.decode, values, segments, size, expected, **options, **where)


def limits(segments: Segments, threshold: float) -> torch.Tensor:
    thresholds = torch.full((segments.num_segments,), threshold, dtype=torch.float64)
    thresholds[::2] *= 0.75
    return thresholds


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("stored", VALUES)
def test_bytes(stored, dim, device):
    for values, segments in datasets(dim):
        for k in sorted({1, -(-dim // 4), dim}):
            check_rows(values, segments, stored, k=k, device=device)
        for threshold in (0.0, 0.7, 1e39):
            thresholds = limits(segments, threshold)
            check_rows(values, segments, stored, thresholds=thresholds, device=device, shift=3)
            check_places(values, segments, stored, thresholds, device=device, shift=8)


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=60),
    dim=st.integers(1, 20),
    density=st.floats(0.01, 1),
    stored=st.sampled_from(VALUES),
)
def test_any_bits(words, dim, density, stored):
    """Values of any 32 bits, among them NaN of every kind."""
    bits = torch.tensor(words, dtype=torch.int64).to(torch.int32).repeat(dim)
    values = bits[: len(words) // dim * dim].view(torch.float32).view(-1, dim)
    segments = Segments.packed([len(values)], dim)
    check_rows(values, segments, stored, k=max(1, int(density * dim)))
    check_places(values, segments, stored, limits(segments, 1.0))


@pytest.mark.parametrize("threshold", [0.1, 0.5, 1.0, 1e-46, 1e-45, 3.5e38, 1e300])
def test_thresholds_are_compared_exactly(threshold):
    near = torch.tensor([threshold, 0.0]).float()
    inf = torch.tensor(torch.inf)
    x = torch.stack([near[0], near[0].nextafter(inf), near[0].nextafter(-inf), near[1], inf])
    x = torch.cat([x, -x, torch.tensor([torch.nan])])[None]
    check_rows(
        x,
        Segments.packed([1], 11),
        "fp32",
        thresholds=torch.tensor([threshold], dtype=torch.float64),
    )
