"""The compressors beside our codecs keep the bound they are asked for; merging's time is measured.

None of the other compressors need be installed: the baseline's lossless half is copying here.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from examples.bench import merging
from examples.bench.codecs import compressors
from examples.bench.codecs.compressors import BASELINE, Compressor
from examples.bench.codecs.entries import build_bounded, error_over_bound
from examples.bench.codecs.workload import TableGroup, load, merged
from trec_qcomm.core.segments import Segments
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord

SCALES = (1e-4, 0.1, 1.0, 1e4)


def copying(_module: Any, _itemsize: int) -> tuple[Any, Any]:
    return (lambda q: q.tobytes()), bytes


@pytest.fixture(autouse=True)
def baseline_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ("numpy", compressors.Quantized, copying)
    monkeypatch.setitem(compressors._BOUNDED, BASELINE, entry)


def group_of(tables: list[torch.Tensor]) -> TableGroup:
    segments = Segments.packed([len(table) for table in tables], tables[0].shape[1])
    return TableGroup(torch.cat(tables), segments)


def normal(num_rows: int, dim: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(seed))


def worst_error(compressor: Compressor, group: TableGroup, bound: float) -> float:
    """Return the largest error of a round trip over the bound."""
    compressor.out[:] = np.nan
    compressor.encode()
    compressor.decode()
    return error_over_bound(bound, group, torch.from_numpy(compressor.out).view_as(group.rows))


@pytest.mark.parametrize("bound", [1e-4, 0.01, 0.03])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_the_baseline_keeps_the_bound_without_a_check(bound: float, offset: float) -> None:
    group = group_of([(normal(200, seed=i) + offset) * scale for i, scale in enumerate(SCALES)])
    one = build_bounded(BASELINE, group, bound)
    error = worst_error(one, group, bound)
    # Above: hardly anything of the bound is given away (2^-21 max|x|, at most 4 of its ranges).
    assert 0.9 < error <= 1
    # One more step a value would be seen.
    one.q += 1
    one.data = one.q.tobytes()
    one.decode()
    decoded = torch.from_numpy(one.out).view_as(group.rows)
    assert error_over_bound(bound, group, decoded) > 1


def test_a_range_below_float32s_rounding_is_refused() -> None:
    """A bound below what float32 rounds such values by leaves no step: the check must see it."""
    group = group_of([normal(50) * 1e-6 + 1.0])
    assert worst_error(build_bounded(BASELINE, group, 0.01), group, 0.01) > 1


def test_a_decoder_that_writes_nothing_is_seen() -> None:
    group = group_of([normal(5)])
    one = build_bounded(BASELINE, group, 0.01)
    one.decode = lambda: None
    assert worst_error(one, group, 0.01) == np.inf


@pytest.mark.parametrize("name", compressors.BOUNDED_NAMES[1:])
def test_an_installed_opponent_keeps_the_bound(name: str) -> None:
    if line := compressors.missing(name):
        pytest.skip(line)
    group = group_of([normal(1), torch.zeros(3, 8), normal(300, seed=1)])
    one = build_bounded(name, group, 0.01)
    assert worst_error(one, group, 0.01) <= 1
    assert 0 < one.nbytes() < group.rows.numel() * 4


@pytest.mark.parametrize("name", compressors.BOUNDED_NAMES)
def test_what_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, *rest = compressors._BOUNDED[name]
    monkeypatch.setitem(compressors._BOUNDED, name, ("zfpy", *rest))
    monkeypatch.setitem(sys.modules, "zfpy", None)
    line = compressors.missing(name)
    assert line is not None
    assert line.startswith("pip install zfpy (")
    assert module == "numpy" or module in compressors.PIP


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    """Two tables of 40 samples with every id twice or more, as --dump-rows writes them."""
    ids = {"a": torch.arange(40) % 20, "b": torch.arange(40) % 3 * 10**12}
    rows = {"a": normal(20)[ids["a"]], "b": normal(3, seed=1)[torch.arange(40) % 3]}
    gradients = {table: normal(40, seed=2) for table in ids}
    torch.save({"rows": rows, "gradients": gradients, "ids": ids}, tmp_path / "rows.pt")
    return tmp_path / "rows.pt"


def test_rows_are_of_distinct_ids_and_gradients_summed(dumped: Path) -> None:
    (batch,) = load(dumped, 40, 1)
    distinct = merged(batch)
    assert len(batch.ids["a"]) == 40
    for tables in (distinct.rows, distinct.gradients):
        assert [len(table) for table in tables.values()] == [20, 3]
    assert torch.equal(distinct.rows["a"], normal(20))
    assert torch.equal(distinct.rows["b"], normal(3, seed=1))
    x = normal(40, seed=2)
    assert torch.equal(distinct.gradients["a"], x[:20] + x[20:])


def test_merging_is_measured_beside_all_rows(
    dumped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = dumped.parent / "merging.jsonl"
    words = f"merging --rows {dumped} --samples 40 --repeats 2 --out {file}"
    monkeypatch.setattr(sys, "argv", words.split())
    merging.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"2 cases; {file}"
    made = records.read(file)
    assert len(made) == 2
    for record in made:
        assert isinstance(record, BenchRecord)
        assert record.case["num_ids"] == 80
        assert record.figures["distinct_share"] == 23 / 80
        assert record.figures["time_over_all"] > 0
