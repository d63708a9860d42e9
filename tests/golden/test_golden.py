"""Golden frames decode to the same values, and encoders still write the same bytes."""

import json
from pathlib import Path

import pytest
import torch

from tests.golden import make
from trec_qcomm.core.segments import Segments
from trec_qcomm.testing import frame_of, open_frame
from trec_qcomm.wire import frame
from trec_qcomm.wire.id_messages import unpack

CURRENT = Path(__file__).parent / f"v{frame.VERSION}"


def golden_frame(path):
    golden = json.loads(path.read_text())
    data = torch.tensor(list(bytes.fromhex(golden["frame"])), dtype=torch.uint8)
    return data, Segments.packed(golden["num_rows"], golden["dim"]), golden["rows"]


@pytest.mark.parametrize("name", make.CODECS)
def test_golden_frame_decodes(name):
    data, segments, rows = golden_frame(CURRENT / f"{name}.json")
    assert make.as_hex(open_frame(make.CODECS[name], data, segments)) == rows


@pytest.mark.parametrize("name", make.CODECS)
def test_encoder_still_writes_the_current_version(name):
    expected = json.loads((CURRENT / f"{name}.json").read_text())["frame"]
    data, _ = frame_of(make.CODECS[name], make.rows(make.CODECS[name]), make.NUM_ROWS)
    assert make.as_hex(data) == expected


@pytest.mark.parametrize("even", [True, False])
def test_golden_message_of_ids(even):
    golden = json.loads((CURRENT / "ids_packed.json").read_text())
    kind = "even" if even else "stated"
    assert make.as_hex(make.id_message(states_bags=not even)) == golden[kind]
    assert [list(map(list, pair)) for pair in make.ID_MESSAGE] == golden["features"]
    data = torch.tensor(list(bytes.fromhex(golden[kind])), dtype=torch.uint8)
    names = ["f"] * len(make.ID_MESSAGE)
    bags, expected = unpack(data, [0], names, [6] if even else None), make.id_bags()
    assert torch.equal(bags.ids, expected.ids)
    assert torch.equal(bags.lengths, expected.lengths)
    assert torch.equal(bags.num_bags, expected.num_bags)
