import math

import pytest
import torch

from tests.fuzz.bounds import worst_error
from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.testing import (
    awkward_rows,
    encode,
    interleaved_segments,
    max_error_in_bounds,
    round_trip,
)

ALL = [
    ErrorBounded(0.01),
    ErrorBounded(0.3),
    ErrorBounded(1e-4),
    ErrorBounded(0.05, mode="abs"),
    ErrorBounded(1e-7, mode="abs"),
    ErrorBounded(1e30, mode="abs"),
    *(ErrorBounded(0.03, encoder=encoder) for encoder in ("vector_lz", "rans")),
]


@pytest.mark.parametrize("exponent", [-37, -30, -20, -7, 0, 5, 20, 30, 37])
def test_same_size_at_every_scale(exponent):
    """With mode rel, scaling by a power of two changes no index; 10^k only by rounding."""
    rows = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
    segments = Segments.packed([256], 64)
    codec = ErrorBounded(0.01)
    sizes = [int(encode(codec, r, segments).nbytes[0]) for r in (rows, rows * 10.0**exponent)]
    assert abs(sizes[1] / sizes[0] - 1) < 0.01
    decoded = round_trip(codec, rows * 10.0**exponent, segments)
    assert max_error_in_bounds(codec, rows * 10.0**exponent, decoded, segments) <= 1


def test_a_small_table_beside_a_large_one():
    """Tables of scales 1 and 1e-3 in one buffer are each coded as if they were alone."""
    matrix = torch.randn(64, 2 * (16 + 3), generator=torch.Generator().manual_seed(0))
    segments = interleaved_segments(64, 2, 16)
    segments.block(matrix, 1).mul_(1e-3)
    codec = ErrorBounded(0.01)
    assert max_error_in_bounds(codec, matrix, round_trip(codec, matrix, segments), segments) <= 1


@pytest.mark.parametrize(
    "rows",
    [
        torch.randint(-(2**31), 2**31 - 1, (40, 16), generator=torch.Generator().manual_seed(0))
        .to(torch.int32)
        .view(torch.float32),
        awkward_rows(16),
        torch.randn(1, 1, generator=torch.Generator().manual_seed(0)),
        torch.randn(1, 3, generator=torch.Generator().manual_seed(0)) * 1e30,
    ],
    ids=["random bits", "awkward", "one value", "three values"],
)
@pytest.mark.parametrize("codec", ALL, ids=repr)
def test_never_larger_than_raw_and_a_header(codec, rows):
    segments = Segments.packed([len(rows)], rows.shape[1])
    raw = 4 * rows.numel()
    assert int(encode(codec, rows, segments).nbytes[0]) <= raw + 8 + (-raw) % 8


def test_tolerances_replace_the_bound_of_each_segment():
    rows = torch.randn(30, 16, generator=torch.Generator().manual_seed(0))
    segments, codec = Segments.packed([10, 10, 10], 16), ErrorBounded(0.01, mode="abs")
    most = codec.max_nbytes(segments)

    def coded(tolerances: torch.Tensor | None) -> Encoded:
        payload = torch.empty(int(most.sum()), dtype=torch.uint8)
        return codec.encode(
            rows, segments, payload, exclusive_cumsum(most)[:-1], tolerances=tolerances
        )

    encoded = coded(torch.tensor([0.5, 0.01, 0.0], dtype=torch.float64))
    out = torch.empty_like(rows)
    codec.decode(encoded, segments, out)
    error = (rows.double() - out.double()).abs()
    assert 0.4 < float(error[:10].max()) <= 0.5
    assert float(error[10:20].max()) <= 0.01
    assert torch.equal(out[20:], rows[20:])
    assert encoded.nbytes[1] == coded(None).nbytes[1]
    for bad in (math.nan, math.inf, -0.1):
        with pytest.raises(ValueError, match="bounds: "):
            coded(torch.tensor([0.1, bad, 0.1], dtype=torch.float64))


@pytest.mark.parametrize(("bound", "ratio"), [(0.01, 6.0), (0.03, 8.0)])
def test_ratio_of_normal_rows(bound, ratio):
    """The codec's docs state these ratios."""
    rows = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
    nbytes = int(encode(ErrorBounded(bound), rows, Segments.packed([512], 64)).nbytes[0])
    assert ratio <= 4 * rows.numel() / nbytes <= ratio * 1.1


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"bound": 0.0}, "bound"),
        ({"bound": -0.1}, "bound"),
        ({"bound": 1.0}, "bound"),
        ({"bound": math.nan}, "bound"),
        ({"bound": math.inf, "mode": "abs"}, "bound"),
        ({"bound": True}, "bound"),
        ({"bound": "0.1"}, "bound"),
        ({"bound": 0.1, "mode": "relative"}, "mode"),
        ({"bound": 0.1, "encoder": "auto"}, "encoder"),
    ],
)
def test_bad_fields_are_named(bad, field):
    with pytest.raises(ValueError, match=rf"error_bounded\.{field}: "):
        ErrorBounded(**bad)


def test_an_int_is_a_bound():
    assert ErrorBounded(2, mode="abs").tolerance == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["bitpack", "rans"])
def test_the_bound_holds_on_hard_values(encoder):
    """`make fuzz` does the same for 10^8 values."""
    assert worst_error(2 * 10**6, encoder) <= 1
