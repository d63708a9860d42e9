import math

import pytest
import torch

from trec_qcomm import CorruptFrameError, Threshold
from trec_qcomm.config import codec_from_dict, codec_to_dict
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops import threshold
from trec_qcomm.testing import (
    awkward_rows,
    check_codec,
    check_frame,
    encode,
    interleaved_segments,
    round_trip,
)

BACKENDS = ("cpu", "reference")
VALUES = ("fp32", "fp16", "int8")
ALL = [Threshold(0.0, values=v) for v in VALUES]


@pytest.mark.parametrize("codec", ALL, ids=repr)
def test_conformance(codec):
    check_codec(codec)


@pytest.mark.parametrize("codec", [*ALL, Threshold(1.0)], ids=repr)
def test_damaged_frames(codec):
    check_frame(codec)


def test_what_is_below_is_zero_and_what_is_not_finite_is_kept():
    rows = torch.tensor([[1.0, -2.0, 0.5, torch.nan], [-0.999, torch.inf, 0.0, -1.0]])
    decoded = round_trip(Threshold(1.0, values="fp32"), rows, Segments.packed([2], 4))
    assert decoded[0, :3].tolist() == [1, -2, 0]
    assert decoded[0, 3].isnan()
    assert decoded[1].tolist() == [0, math.inf, 0, -1]


def test_params_take_the_place_of_the_threshold():
    codec, rows = Threshold(100.0), torch.arange(1.0, 9.0).view(2, 4)
    segments = Segments.packed([1, 1], 4)
    most = codec.max_nbytes(segments)
    payload = torch.empty(int(most.sum()), dtype=torch.uint8)
    at = torch.tensor([0, int(most[0])])
    params = torch.tensor([2.0, 8.0], dtype=torch.float64)
    out = torch.empty(2, 4)
    codec.decode(codec.encode(rows, segments, payload, at, params=params), segments, out)
    assert out.tolist() == [[0, 2, 3, 4], [0, 0, 0, 8]]
    with pytest.raises(ValueError, match=r"thresholds: -1\.0 is not"):
        codec.encode(rows, segments, payload, at, params=-params / 2)


@pytest.mark.parametrize(("share", "least"), [(0.01, 60), (0.001, 400)])
def test_ratio_of_dct(share, least):
    """Of a layer of 512 x 512 normal values."""
    rows = torch.randn(1, 2**18, generator=torch.Generator().manual_seed(0))
    limit = float(rows.abs().flatten().kthvalue(2**18 - int(share * 2**18)).values)
    encoded = encode(Threshold(limit, values="int8"), rows, Segments.packed([2**18], 1))
    assert 4 * 2**18 / int(encoded.nbytes.sum()) >= 2 * least


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


@pytest.mark.parametrize("stored", VALUES)
@pytest.mark.parametrize("dim", [1, 2, 7, 64, 300])
def test_both_backends_write_the_same_bytes_and_read_them(dim, stored):
    for values, segments in datasets(dim):
        for limit in (0.0, 1e-3, 1.0, 1e30):
            most = threshold.max_nbytes(segments, stored)
            at = most.cumsum(0) - most
            limits = torch.full((segments.num_segments,), limit, dtype=torch.float64)
            payloads, sizes = [], []
            for backend in BACKENDS:
                payload = torch.full((int(most.sum()),), 0xA5, dtype=torch.uint8)
                where = (values, segments, payload, at)
                encoded = threshold.encode(
                    *where, thresholds=limits, stored=stored, backend=backend
                )
                payloads.append(payload)
                sizes.append(encoded.nbytes)
            assert torch.equal(*sizes)
            assert bool((sizes[0] <= most).all())
            for begin, size in zip(at.tolist(), sizes[0].tolist(), strict=True):
                assert torch.equal(*(payload[begin : begin + size] for payload in payloads))
            outs = []
            for backend in BACKENDS:
                outs.append(torch.full_like(values, 9.0))
                threshold.decode(encoded, segments, outs[-1], backend=backend)
            assert torch.equal(*(out.view(torch.int32) for out in outs))


def segment(width, count, places, *, kind=0, values=()):
    header = torch.tensor([kind, width, 0, 0, 0, 0, 0, 0], dtype=torch.uint8)
    body = [torch.tensor([count], dtype=torch.int32), torch.tensor(values, dtype=torch.float32)]
    parts = [header, *(part.view(torch.uint8) for part in body)]
    data = torch.cat([*parts, torch.tensor(places, dtype=torch.uint8)])
    return torch.nn.functional.pad(data, (0, -data.numel() % 8))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (segment(8, 2, [3, 3], values=[1, 2]), None),
        (segment(8, 2, [3, 4], values=[1, 2]), "positions"),  # the second would be the ninth
        (segment(255, 2, [3], values=[1, 2]), None),
        (segment(255, 2, [7], values=[1, 2]), "positions"),
        (segment(255, 2, [1], values=[1, 2]), "positions"),
        (segment(32, 2, [0] * 8, values=[1, 2]), "unknown kind"),
        (segment(8, 9, [0] * 9, values=[0] * 9), "more values kept"),
        (segment(8, 2, [3, 3, 0, 0, 0, 0, 0], values=[1, 2]), "size"),
        (segment(0, 2, [], kind=2), "scale"),
        (segment(0, 2, [], kind=3), "unknown kind"),
        (torch.zeros(8, dtype=torch.uint8), "size"),
    ],
)
def test_what_no_encoder_writes_is_refused(backend, data, reason):
    encoded = Encoded(data, torch.tensor([0]), torch.tensor([data.numel()]))
    segments, out = Segments.packed([2], 4), torch.empty(2, 4)
    if reason is None:
        threshold.decode(encoded, segments, out, backend=backend)
        assert sorted(out.flatten().tolist())[-2:] == [1, 2]
    else:
        with pytest.raises(CorruptFrameError, match=reason):
            threshold.decode(encoded, segments, out, backend=backend)


@pytest.mark.parametrize("codec", [*ALL, Threshold(1.5)], ids=repr)
def test_config_round_trip(codec):
    assert codec_from_dict(codec_to_dict(codec)) == codec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": -1.0}, r"threshold.threshold: -1\.0 is not a finite number"),
        ({"threshold": math.nan}, "threshold.threshold: nan"),
        ({"threshold": "1"}, "threshold.threshold: '1'"),
        ({"threshold": 1.0, "values": "int4"}, "threshold.values: 'int4' is not one of"),
    ],
)
def test_bad_fields_name_what_is_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        Threshold(**options)
