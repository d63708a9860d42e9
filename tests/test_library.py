"""Codecs as operators of torch: opcheck for each codec, and a compiled graph without a break."""

import json

import pytest
import torch
from torch.library import opcheck

import trec_qcomm.library
from trec_qcomm.config import codec_to_dict
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.registry import codec_names, codec_type

OPS = torch.ops.trec_qcomm
FIELDS = {"cast": {"dtype": "bf16"}, "error_bounded": {"bound": 0.01}, "float6": {}, "float8": {}}
FIELDS |= {"rowwise": {"bits": 4, "rounding": "stochastic"}, "topk": {"density": 0.25}}
FIELDS |= {"threshold": {"threshold": 0.5}, "fbgemm": {"precision": "int8"}, "identity": {}}


def texts():
    """Return the codecs that ship as they stand in a file, by name."""
    shipped = {name: codec_type(name) for name in codec_names()}
    shipped = {n: c for n, c in shipped.items() if c.__module__.startswith("trec_qcomm.")}
    alone = {name: c for name, c in shipped.items() if not c.follows_forward}
    return {name: json.dumps({"codec": name, **FIELDS[name]}) for name in alone}


TEXTS = texts()


def coded(rows, text):
    payload = OPS.encode(rows, text, 7)
    return OPS.decode(payload, rows.shape[0], rows.shape[1], text)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_torch_finds_nothing_wrong_with_the_operators(text):
    rows = torch.randn(5, 12)
    opcheck(OPS.encode, (rows, text, 7))
    opcheck(OPS.decode, (OPS.encode(rows, text, 7), 5, 12, text))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_compiled_graph_holds_them_without_a_break(text):
    torch.compiler.reset()  # each text is another graph of one function, and torch keeps eight
    rows = torch.randn(9, 16)
    compiled = torch.compile(lambda x: coded(x * 2, text) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(rows), coded(rows * 2, text) + 1)


def test_the_bytes_are_those_of_the_codec():
    rows = torch.randn(7, 16)
    text = json.dumps(codec_to_dict(trec_qcomm.Rowwise(bits=8)))
    payload = OPS.encode(rows, text)
    assert len(payload) == 7 * (4 + 16) + 4  # headers and codes; up to eight bytes
    worst = (OPS.decode(payload, 7, 16, text) - rows).abs().amax()
    assert 0 < worst < (rows.amax() - rows.amin()) / 255
    assert len(OPS.encode(rows[:0], text)) == 0


@pytest.mark.parametrize("text", ["{codec: rowwise", "{codec: rowwise, bits: 8, bits: 4}"])
def test_text_is_read_as_a_file_is(text):
    with pytest.raises(ValueError, match="codec"):
        OPS.encode(torch.randn(2, 4), text)


def test_what_is_wrong_is_told():
    rows = torch.randn(7, 16)
    with pytest.raises(ValueError, match=r"unknown codec 'rowise'.*rowwise"):
        OPS.encode(rows, "{codec: rowise}")
    with pytest.raises(ValueError, match=r"expected .* float32 .*got torch\.float64"):
        OPS.encode(rows.double(), "{codec: float6}")
    payload = OPS.encode(rows, "{codec: rowwise, bits: 4}")
    with pytest.raises(CorruptFrameError, match="bytes where its format has"):
        OPS.decode(payload[:-8], 7, 16, "{codec: rowwise, bits: 4}")
