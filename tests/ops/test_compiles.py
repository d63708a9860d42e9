"""Every kernel compiles for a GPU, to instructions that round as the reference does, and without
spilling registers.

The launches that encoding and decoding make under the interpreter are recorded, and the first one
of each kernel is compiled. `make kernels` compiles them all, and odd ones.
"""

import ast
from pathlib import Path

import pytest
import torch

from tests.ops.kernel_table import (
    compile_launches,
    differences,
    problems_of,
    representatives,
    table_in_readme,
    table_of,
    triton_version,
)
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


@pytest.fixture(scope="module")
def compiled(launches):
    chosen = representatives(launches)
    return chosen, compile_launches(chosen)


@pytest.mark.skipif(torch.cuda.is_available(), reason="records what the interpreter runs")
@pytest.mark.timeout(900)
def test_every_kernel_compiles(compiled):
    assert problems_of(*compiled) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="records what the interpreter runs")
def test_the_table_says_what_kernels_take(compiled):
    now = table_of(*compiled)
    if f"Triton {triton_version()}." not in table_in_readme():
        pytest.skip("the table is of another version of Triton")
    wrong = differences(table_in_readme(), now)
    assert not wrong, "\n".join([*wrong, "if meant: python -m tests.ops.kernel_table --write"])


SPILLING = """
import triton
import triton.language as tl


@triton.jit
def spills(x, y):
    i = tl.arange(0, 4096)
    a = tl.load(x + i)
    tl.store(y + i, a * tl.sum(a, 0))  # 128 values of a lane wait for the sum
"""


def test_memory_of_a_thread_is_found(tmp_path, monkeypatch):
    (tmp_path / "spilling_kernel.py").write_text(SPILLING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launch = {
        "module": "spilling_kernel", "kernel": "spills", "types": {"x": "*fp32", "y": "*fp32"},
        "aligned": ["x", "y"], "constants": {}, "options": {"num_warps": 1, "maxnreg": 32},
    }  # fmt: skip
    (result,) = compile_launches([launch])
    assert result.stack > 0
    assert "bytes of stack" in result.problems[0]
    assert "local memory" in result.problems[1]
