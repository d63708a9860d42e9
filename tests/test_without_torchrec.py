"""All but QComm works where TorchRec and FBGEMM are not installed; QComm says what to install.

One program runs in an interpreter in which both are blocked, and so in its ranks.
"""

import json
from typing import Any

import pytest

from tests.commands import run_with

BLOCKED = """
import sys
from importlib.machinery import PathFinder

class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in ("torchrec", "fbgemm_gpu"):
            return super().find_spec(name, path, target)

sys.meta_path = [Others if finder is PathFinder else finder for finder in sys.meta_path]
"""
PROGRAM = """
import json
import sys

import pytest
import torch
import torch.distributed as dist

import trec_qcomm
from trec_qcomm.testing import check_codec, frame_of, open_frame, round_trip, run_ranks

DENSE = {"codec": {"codec": "rowwise", "bits": 8}, "block": 16, "min_numel": 1}

def gradient():
    "Return rank 0's and the mean gradient, and the bytes that were sent."
    weight = torch.nn.Linear(64, 4, bias=False)
    ddp = torch.nn.parallel.DistributedDataParallel(weight)
    compressed = trec_qcomm.compress_ddp(ddp, {"dense": DENSE})
    ddp(torch.full((1, 64), dist.get_rank() + 1.0)).sum().backward()
    return weight.weight.grad, compressed.stats().dense.wire_nbytes

def report():
    rows = torch.linspace(-1, 1, 60).view(10, 6)
    codec = trec_qcomm.Rowwise(8)
    frame, segments = frame_of(codec, rows, [4, 6])
    opened = open_frame(codec, frame, segments)
    yield "codec", (round_trip(codec, rows, segments) - rows).abs().max().item()
    yield "frame", (opened - rows).abs().max().item()
    check_codec(trec_qcomm.Cast("fp16"), dims=(4,))
    yield "config", trec_qcomm.load_preset("best").source
    gradients, nbytes = zip(*run_ranks(gradient, 2))
    yield "gradients", [[g.min().item(), g.max().item()] for g in gradients]
    yield "sent", nbytes
    for name in ("QComm", "QCom"):
        try:
            getattr(trec_qcomm, name)
        except (ImportError, AttributeError) as error:
            yield name, [type(error).__name__, str(error)]
    yield "dir", "QComm" in dir(trec_qcomm)
    folders = [f"tests/{name}" for name in ("ops", "codecs", "wire", "comm", "jit")]
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", *folders]
    yield "collected", int(pytest.main(words))
    yield "imported", [name for name in ("torchrec", "fbgemm_gpu") if name in sys.modules]
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("blocked")
    (folder / "program.py").write_text(PROGRAM)  # where the ranks find its functions
    start = "import json, program; print(json.dumps(dict(program.report())))"
    done = run_with(BLOCKED, folder, start)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"stdout": done.stdout}


def test_codecs_frames_and_configs_work(said: dict[str, Any]) -> None:
    step = 2 / 10 / 255  # of 8 bits, over the values of a row, with room for float32
    assert 0 < said["codec"] <= step
    assert said["frame"] == said["codec"]
    assert said["config"] == "preset best"
    assert said["imported"] == []


@pytest.mark.dist
def test_compress_ddp_reduces_gradients_of_two_ranks(said: dict[str, Any]) -> None:
    assert said["gradients"] == [[1.5, 1.5]] * 2  # constant rows are exact
    assert min(said["sent"]) > 0


def test_qcomm_says_what_to_install(said: dict[str, Any]) -> None:
    error, message = said["QComm"]
    assert error == "ImportError"
    assert message.startswith(
        "trec_qcomm.QComm: No module named 'fbgemm_gpu'. QComm needs torchrec"
    )
    assert said["QCom"] == ["AttributeError", "module 'trec_qcomm' has no attribute 'QCom'"]
    assert said["dir"]


def test_tests_of_kernels_and_collectives_are_collected(said: dict[str, Any]) -> None:
    """A machine with a GPU runs them, where TorchRec may not be installed."""
    assert said["collected"] == 0, said["stdout"]
