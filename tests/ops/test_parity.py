"""Every op: cpu and reference write the same bytes and read each other's."""

import pytest
import torch

from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ops import cast, rowwise
from trec_qcomm.ops.rank_sum import rank_sum
from trec_qcomm.testing import awkward_rows, interleaved_segments

BACKENDS = ("reference", "cpu")


def datasets(dim: int) -> list[tuple[torch.Tensor, Segments]]:
    generator = torch.Generator().manual_seed(dim)
    awkward = awkward_rows(dim)
    scales = 10.0 ** torch.linspace(-44, 38, 60)[:, None]
    noise = torch.randn(60, dim, generator=generator) * scales
    return [
        (awkward, Segments.packed([len(awkward) - 1, 0, 1], dim)),
        (noise.clamp(-3e38, 3e38), Segments.packed([1] * 60, dim)),
        (torch.randn(9, 4 * (dim + 3), generator=generator), interleaved_segments(9, 4, dim)),
        (torch.empty(0, dim), Segments.packed([0, 0], dim)),
    ]


def check_op(op, options, decode_options, dim):
    for values, segments in datasets(dim):
        sizes = op.nbytes(segments, *decode_options.values())
        at = exclusive_cumsum(sizes)[:-1]
        payloads, flags = [], []
        for fill, backend in enumerate(BACKENDS):
            payload = torch.full((int(sizes.sum()),), 0x5A + fill, dtype=torch.uint8)
            _, flag = op.encode(values, segments, payload, at, backend=backend, **options)
            payloads.append(payload)
            flags.append(flag)
        assert torch.equal(*payloads)
        assert flags[0] == flags[1]
        decoded = []
        for backend in BACKENDS:
            out = torch.full_like(values, 9.0)
            encoded = Encoded(payloads[0], at, sizes)
            op.decode(encoded, segments, out, backend=backend, **decode_options)
            decoded.append(out.view(torch.int32))
        assert torch.equal(*decoded)


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 16, 33, 64])
@pytest.mark.parametrize("stochastic", [False, True], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_rowwise(bits, stochastic, dim):
    options = {"bits": bits, "stochastic": stochastic, "seed": 2**62 + 12345}
    check_op(rowwise, options, {"bits": bits}, dim)


@pytest.mark.parametrize("dim", [1, 2, 7, 64])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_cast(dtype, dim):
    check_op(cast, {"dtype": dtype}, {"dtype": dtype}, dim)


def test_bindings_refuse_what_kernels_cannot_take():
    segments = Segments.packed([2], 4)
    values, payload, at = torch.zeros(2, 4), torch.zeros(64, dtype=torch.uint8), torch.tensor([0])
    good = (values, segments, payload, at)
    rowwise.encode(*good, bits=4)
    for bad, message in [
        ((values.double(), segments, payload, at), "contiguous float32"),
        ((values[:1], segments, payload, at), "holds 4 values, segments 8"),
        ((torch.zeros(4, 2).T, segments, payload, at), "contiguous float32"),
        ((values, segments, payload[:16], at), "16 bytes do not hold"),
        ((values, segments, payload, torch.tensor([4])), "multiples of 8"),
        ((values, segments, payload.int(), at), "uint8"),
    ]:
        with pytest.raises(ValueError, match=message):
            rowwise.encode(*bad, bits=4)
    with pytest.raises(ValueError, match="bits: 5"):
        rowwise.encode(*good, bits=5)
    with pytest.raises(ValueError, match="seed"):
        rowwise.encode(*good, bits=4, stochastic=True, seed=-1)


@pytest.mark.parametrize("size", [0, 1, 7, 4096, 10_000])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 8])
def test_rank_sum(num_parts, size):
    generator = torch.Generator().manual_seed(size)
    scales = 10.0 ** torch.randint(-30, 30, (num_parts, size), generator=generator)
    parts = torch.randn(num_parts, size, generator=generator) * scales
    if size:
        parts[0, 0], parts[-1, size // 2] = torch.nan, torch.inf
    sums = [torch.full((size, 1), 9.0) for _ in BACKENDS]
    for out, backend in zip(sums, BACKENDS, strict=True):
        rank_sum(parts, out, backend=backend)
    assert torch.equal(*(out.view(torch.int32) for out in sums))


def test_rank_sum_refuses_what_it_cannot_add():
    for bad, message in [
        (torch.zeros(2, 3).double(), "float32"),
        (torch.zeros(3), r"\[P, N\]"),
        (torch.zeros(3, 2).T, "contiguous"),
        (torch.zeros(0, 3), "at least one"),
    ]:
        with pytest.raises(ValueError, match=message):
            rank_sum(bad, torch.zeros(3))
    with pytest.raises(ValueError, match="out: expected 3 contiguous"):
        rank_sum(torch.zeros(2, 3), torch.zeros(4))
