"""Tests that `python -m tests.ptx` runs under the plugin: every Triton kernel once, codecs against
the reference, and faults that are planted in the project's own kernels."""

import pytest
import torch
from triton.runtime import jit

from tests.ops.record_launches import CODECS, encode_and_decode, record_launches
from tests.ops.test_compiles import kernels
from tests.ops.test_parity import check_frame, check_parity
from tests.ptx import counts, plugin
from tests.ptx.emulator import PtxError
from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.ops.batch.rank_sum.gpu import _rank_sum
from trec_qcomm.ops.device import launch
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.ops.error_bound.gpu import encode_rans
from trec_qcomm.testing import datasets


def test_every_kernel_runs():
    record_launches()
    assert kernels() - {name.rpartition(".")[2] for name, _ in plugin.forms} == set()


@pytest.mark.parametrize("codec", CODECS[::2], ids=repr)  # each kernel, in one form
def test_bytes_and_rows_are_those_of_the_reference(codec, monkeypatch):
    monkeypatch.setattr("tests.ops.test_parity.BACKENDS", ("reference", "gpu"))
    for values, segments in datasets(64):
        check_parity(codec, values, segments, seed=1)
    if codec.takes_frames:
        check_frame(codec, *datasets(64)[4], seed=1)


def test_the_table_of_counts_is_that_of_the_kernels():
    table = counts.README.read_text()
    if f"Triton {counts.triton_version()}." not in table:
        pytest.skip("the table is of another Triton")
    with default_backend("gpu"):
        for name in ("bf16", "float6"):
            assert "\n".join(counts.rows_of(name)) in table


def changed(kernel: jit.JITFunction, old: str, new: str) -> jit.JITFunction:
    """Return a kernel with a fault in its source."""
    assert old in kernel.src
    faulty = jit.JITFunction(kernel.fn, do_not_specialize=kernel.do_not_specialize)
    faulty._unsafe_update_src(kernel.src.replace(old, new))
    return faulty


def sum_parts(kernel: jit.JITFunction, size: int) -> None:
    parts, out = torch.randn(3, size), torch.empty(size)
    launch(kernel, 1, parts, out, 3, size, KIND=0, VECTOR=4, BLOCK=2048)


@pytest.mark.parametrize(
    ("message", "old", "new", "size"),
    [
        ("misaligned", "", "", 42),  # VECTOR does not divide it
        ("out of bounds", "total, mask=live", "total", 40),
        ("out of bounds", "while p < num_parts", "while p <= num_parts", 40),
    ],
)
def test_planted_accesses_are_found(message, old, new, size):
    sum_parts(_rank_sum, 40)
    with pytest.raises(PtxError, match=message):
        sum_parts(changed(_rank_sum, old, new), size)


def test_a_planted_race_is_found(monkeypatch):
    """The interpreter runs this without a word."""
    codec = ErrorBounded(0.01, encoder="rans")
    with default_backend("gpu"):
        encode_and_decode(codec, 64)
        faulty = changed(encode_rans.lay_out_rans, "tl.debug_barrier()", "pass")
        monkeypatch.setattr(encode_rans, "lay_out_rans", faulty)
        with pytest.raises(PtxError, match="race"):
            encode_and_decode(codec, 64)
