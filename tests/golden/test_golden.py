"""Frames of every version ever released decode to the same values."""

import json
from pathlib import Path

import pytest
import torch

from tests.golden import make
from trec_qcomm.core.segments import Segments
from trec_qcomm.testing import frame_of, open_frame

FILES = sorted(Path(__file__).parent.glob("v*/*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_golden_frame_decodes(path):
    golden = json.loads(path.read_text())
    data = torch.tensor(list(bytes.fromhex(golden["frame"])), dtype=torch.uint8)
    segments = Segments.packed(golden["num_rows"], golden["dim"])
    decoded = open_frame(make.CODECS[path.stem], data, segments)
    assert make.as_hex(decoded) == golden["rows"]


@pytest.mark.parametrize("name", make.CODECS)
def test_encoder_still_writes_the_current_version(name):
    path = Path(__file__).parent / "v1" / f"{name}.json"
    data, _ = frame_of(make.CODECS[name], make.rows(), make.NUM_ROWS)
    assert make.as_hex(data) == json.loads(path.read_text())["frame"]
