"""The PTX of every Triton kernel runs on the CPU: right bytes, and no access that a GPU refuses.

The kernels run in a process of their own, as Triton interprets or compiles, but not both.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ptx.emulator import IS_HERE

ROOT = Path(__file__).parents[2]


@pytest.mark.triton
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not IS_HERE, reason="needs gcc and x86-64")
@pytest.mark.skipif(torch.cuda.is_available(), reason="runs kernels on CPU tensors")
def test_every_kernel_runs_as_ptx():
    command = [sys.executable, "-m", "tests.ptx", "--part", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
