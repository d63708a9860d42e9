"""The worked example of FORMAT.md is what the code writes and reads."""

import re
from importlib.resources import files

import torch

from trec_qcomm.codecs import Rowwise
from trec_qcomm.testing import frame_of, open_frame


def example() -> bytes:
    text = files("trec_qcomm.wire").joinpath("FORMAT.md").read_text()
    block = text.split("## Worked example")[1].split("```")[1]
    return bytes.fromhex("".join(re.findall(r"^((?:[0-9a-f]{2} ){15}[0-9a-f]{2})", block, re.M)))


def test_worked_example():
    rows = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    data, segments = frame_of(Rowwise(4), rows, [1])
    assert bytes(data.tolist()) == example()
    decoded = open_frame(Rowwise(4), torch.tensor(list(example()), dtype=torch.uint8), segments)
    assert decoded.tolist() == [[0.0, 1.0003662109375, 2.000732421875, 3.0010986328125]]
