"""examples/bench/gpu.py without a GPU: it checks the kernels, and times nothing."""

import os
import sys
from pathlib import Path

import pytest
import torch

from tests.commands import run as run_command

ROOT = Path(__file__).parents[2]
SMALL = ("--check-only", "--device", "cpu", "--rows", "40", "--dim", "16", "--ranks", "2")
# Few segments, as kernels are interpreted.
SMALL = (*SMALL, "--tables", "4", "--inputs", "1", "--data", "trained")


def run(*options, code=""):
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "examples.bench.gpu"]
    return run_command(
        [*command, *options],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )


def check(options, last, code=""):
    done = run(*options, code=code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == last
    return done.stdout


@pytest.mark.triton
@pytest.mark.slow
def test_checks_every_codec():
    """Check all but those that take long to interpret; of fbgemm, one of its precisions."""
    code = """
from examples.bench import gpu
from tests.ops.interpreter import fast_interpreter
slow = {name for name in gpu.CODECS if name.startswith("fbgemm ")} - {"fbgemm int8"}
gpu.CODECS = tuple(n for n in gpu.CODECS if n not in slow | {"error_bounded rans"})
with fast_interpreter():
    raise SystemExit(gpu.main())
"""
    check((*SMALL, "--inputs", "2"), "14 checked, 0 wrong; no --out", code)


@pytest.mark.triton
@pytest.mark.slow
def test_a_codec_that_does_not_take_the_dim_is_left_out():
    options = ("--rows", "4", "--ranks", "1", "--dim", "12", "--codecs", "fbgemm int2")
    said = check((*SMALL, *options, "fbgemm int4"), "1 checked, 0 wrong; no --out")
    assert "left out: fbgemm int2: does not take rows of 12" in said


@pytest.mark.triton
@pytest.mark.slow
def test_checks_rans():
    """Check rANS alone, with few segments: it takes long to interpret."""
    few = ("--tables", "2", "--rows", "16", "--data", "gradients", "--codecs", "error_bounded rans")
    check((*SMALL, *few), "1 checked, 0 wrong; no --out")


@pytest.mark.triton
@pytest.mark.slow
def test_a_wrong_kernel_is_not_timed():
    """A codec whose kernels differ between the two memories."""
    code = """
from examples.bench import gpu
from trec_qcomm.ops.rowwise import gpu as kernels
real = kernels.encode
def wrong(values, segments, payload, at, **options):
    flag = real(values, segments, payload, at, **options)
    payload[int(at[0]) + 8] ^= 1
    return flag
kernels.encode = wrong
raise SystemExit(gpu.main())
"""
    done = run(*SMALL, "--codecs", "rowwise 8", "cast fp16", code=code)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "wrong bytes differ from the CPU's" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 checked, 1 wrong; no --out"


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
@pytest.mark.parametrize(
    ("options", "message"),
    [((), "no CUDA device"), (("--device", "cpu"), "only with --check-only")],
)
def test_nothing_is_timed_without_a_gpu(options, message):
    done = run(*options)
    assert done.returncode == 1
    assert message in done.stderr
