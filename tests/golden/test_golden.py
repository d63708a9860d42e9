"""Golden frames decode to the same values; those of other versions are refused by name."""

import json
from pathlib import Path

import pytest
import torch

from tests.golden import make
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Segments
from trec_qcomm.testing import frame_of, open_frame
from trec_qcomm.wire import frame
from trec_qcomm.wire.ids.messages import unpack

FOLDER = Path(__file__).parent
CURRENT = FOLDER / f"v{frame.VERSION}"
REFUSED = sorted(path for path in FOLDER.glob("v*/*.json") if path.parent != CURRENT)


def golden_frame(path):
    golden = json.loads(path.read_text())
    data = torch.tensor(list(bytes.fromhex(golden["frame"])), dtype=torch.uint8)
    return data, Segments.packed(golden["num_rows"], golden["dim"]), golden["rows"]


@pytest.mark.parametrize("name", make.CODECS)
def test_golden_frame_decodes(name):
    data, segments, rows = golden_frame(CURRENT / f"{name}.json")
    assert make.as_hex(open_frame(make.CODECS[name], data, segments)) == rows


@pytest.mark.parametrize("path", REFUSED, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_frame_of_another_version_is_refused_by_name(path):
    data, segments, _ = golden_frame(path)
    version = path.parent.name.removeprefix("v")
    expected = f"wire version {version} is not read by this release, which reads version 2$"
    with pytest.raises(CorruptFrameError, match=expected):
        open_frame(make.CODECS[path.stem], data, segments)


def test_frames_of_version_1_are_kept():
    released = {path.stem for path in CURRENT.glob("*.json")}
    later = {
        name for name in released if name.startswith(("fbgemm_", "float4", "ids_", "rowwise_3"))
    }
    assert {path.stem for path in REFUSED} == released - later


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
    bags, expected = unpack(data, 1, names, [6] if even else None), make.id_bags()
    assert torch.equal(bags.ids, expected.ids)
    assert torch.equal(bags.lengths, expected.lengths)
    assert torch.equal(bags.num_bags, expected.num_bags)
