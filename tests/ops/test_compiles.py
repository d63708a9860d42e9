"""Every kernel compiles for a GPU, to instructions that round as the reference does.

The launches that encoding and decoding make under the interpreter are recorded and compiled.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ops.record_launches import record_launches

pytestmark = [pytest.mark.triton, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trec_qcomm"


@pytest.fixture(scope="module")
def launches():
    return record_launches()


def is_jitted(node) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list
    )


def kernels() -> set[str]:
    """Return the names of jitted functions that no jitted function calls."""
    functions = [
        node
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if is_jitted(node)
    ]
    names = {function.name for function in functions}
    called = {
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for function in functions
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
    }
    reduced = {  # handed to tl.reduce and the like
        node.id if isinstance(node, ast.Name) else node.attr
        for function in functions
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        for node in call.args
        if isinstance(node, ast.Name | ast.Attribute)
    }
    return names - called - (reduced & names)


@pytest.mark.skipif(torch.cuda.is_available(), reason="records what the interpreter runs")
def test_every_kernel_is_recorded(launches):
    assert kernels() - {launch["kernel"] for launch in launches} == set()


@pytest.mark.skipif(torch.cuda.is_available(), reason="records what the interpreter runs")
@pytest.mark.timeout(900)
def test_every_kernel_compiles(launches, tmp_path):
    recorded = tmp_path / "launches.json"
    recorded.write_text(json.dumps(launches))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/ops/compile_kernels.py"), str(recorded)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    problems = json.loads(done.stdout.splitlines()[-1])
    wrong = [(w["kernel"], p) for w, p in zip(launches, problems, strict=True) if p]
    assert wrong == []
