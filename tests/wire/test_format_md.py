"""The worked examples of FORMAT.md are what the code writes and reads."""

import re
from importlib.resources import files

import pytest
import torch

from trec_qcomm.codecs import ErrorBounded, Float6, Float8, Rowwise
from trec_qcomm.ext.dct import Threshold
from trec_qcomm.ext.fbgemm import is_installed
from trec_qcomm.ext.fbgemm.codec import Fbgemm
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.testing import frame_of, open_frame
from trec_qcomm.wire.id_messages import pack, unpack


def example(title: str = "Worked example") -> bytes:
    text = files("trec_qcomm.wire").joinpath("FORMAT.md").read_text()
    block = text.split(f"## {title}\n")[1].split("```")[1]
    return bytes.fromhex("".join(re.findall(r"^((?:[0-9a-f]{2} ){7,15}[0-9a-f]{2})", block, re.M)))


def test_worked_example():
    rows = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    data, segments = frame_of(Rowwise(4), rows, [1])
    assert bytes(data.tolist()) == example()
    decoded = open_frame(Rowwise(4), torch.tensor(list(example()), dtype=torch.uint8), segments)
    assert decoded.tolist() == [[0.0, 1.0009765625, 2.001953125, 3.0029296875]]


def test_worked_example_of_error_bounded():
    rows = torch.tensor([[0, 0.6, -1.1, 2], [torch.nan, 0.1, -0.4, 1.3]])
    codec = ErrorBounded(0.25, mode="abs")
    data, segments = frame_of(codec, rows, [2])
    expected = example("Worked example of error_bounded")
    assert bytes(data[48:].tolist()) == expected  # the segment alone
    decoded = open_frame(codec, data, segments)
    assert decoded[0].tolist() == [0, 0.5, -1, 2]
    assert decoded[1, 1:].tolist() == [0, -0.5, 1.5]
    assert decoded[1, 0].isnan()


def test_worked_examples_of_one_segment():
    rows = torch.tensor([[0.5, -2.0, 0.25, 1.0]])
    for codec, decoded in (
        (Threshold(1.0, values="fp32"), [0, -2, 0, 1]),
        (Float6("e4m1"), [0.5, -2, 0.25, 1]),
        (Float8("e4m3"), [0.5, -2, 0.25, 1]),
    ):
        data, segments = frame_of(codec, rows, [1])
        expected = example(f"Worked example of {codec.name}")
        assert bytes(data[48:].tolist()) == expected  # the segment alone
        assert open_frame(codec, data, segments)[0].tolist() == decoded


@pytest.mark.skipif(not is_installed(), reason="needs FBGEMM")
def test_worked_examples_of_fbgemm():
    rows = torch.tensor([[0.5, -2, 0.25, 1, 0, 0, -0.5, 3]])
    written = b""
    for precision in ("int8", "int4", "int2", "fp8", "fp8_e5m2", "mx4"):
        data, _ = frame_of(Fbgemm(precision), rows, [1])
        written += bytes(data[48:].tolist())  # the segment alone
    assert written == example("Worked example of fbgemm")


def test_worked_example_of_a_message_of_ids():
    ids = torch.tensor([3, 4, 6, 7, 8, 40, 7, 2, 9, 4])
    lengths = torch.tensor([1] * 6 + [2, 0, 1, 0, 0, 1])
    expected = example("Worked example of a message of ids")
    packed = pack(Bags(ids, lengths, torch.tensor([6, 6])), [2], even_bags=6)
    assert bytes(packed.buffer.tolist()) == expected
    bags = unpack(torch.tensor(list(expected), dtype=torch.uint8), [0], ["a", "b"], [6])
    assert bags.ids.tolist() == ids.tolist()
    assert bags.lengths.tolist() == lengths.tolist()
