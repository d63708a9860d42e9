import math

import pytest
import torch

from trec_qcomm import Threshold
from trec_qcomm.core.segments import Segments
from trec_qcomm.testing import check_codec, check_frame

VALUES = ("fp32", "fp16", "int8")
ALL = [Threshold(0.0, values=v) for v in VALUES]


@pytest.mark.parametrize("codec", ALL, ids=repr)
def test_conformance(codec):
    check_codec(codec)


@pytest.mark.parametrize("codec", [ALL[0], Threshold(1.0)], ids=repr)
def test_damaged_frames(codec):
    check_frame(codec)


def test_tolerances_take_the_place_of_the_threshold():
    codec, rows = Threshold(100.0), torch.arange(1.0, 9.0).view(2, 4)
    segments = Segments.packed([1, 1], 4)
    most = codec.max_nbytes(segments)
    payload = torch.empty(int(most.sum()), dtype=torch.uint8)
    at = torch.tensor([0, int(most[0])])
    tolerances = torch.tensor([2.0, 8.0], dtype=torch.float64)
    out = torch.empty(2, 4)
    codec.decode(codec.encode(rows, segments, payload, at, tolerances=tolerances), segments, out)
    assert out.tolist() == [[0, 2, 3, 4], [0, 0, 0, 8]]
    with pytest.raises(ValueError, match=r"thresholds: -1\.0 is not"):
        codec.encode(rows, segments, payload, at, tolerances=-tolerances / 2)


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
