"""The bench of error_bounded times only what keeps the bound, and says what it left out.

None of the other compressors need be installed: the baseline's lossless half is copying here.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.core.segments import Segments

sys.path.append(str(Path(__file__).parents[2] / "examples" / "bench"))
import error_bounded as bench
import opponents
from opponents import BASELINE

SCALES = (1e-4, 0.1, 1.0, 1e4)
OPTIONS = argparse.Namespace(encoders=["bitpack"], opponents=[BASELINE], repeats=3, seconds=0.01)


def copying(_module: Any, _itemsize: int) -> tuple[Any, Any]:
    return (lambda q: q.tobytes()), bytes


@pytest.fixture(autouse=True)
def baseline_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ("numpy", opponents.Quantized, copying)
    monkeypatch.setitem(opponents._OPPONENTS, BASELINE, entry)


def case(tables: list[torch.Tensor]) -> bench.Case:
    segments = Segments.packed([len(table) for table in tables], tables[0].shape[1])
    return bench.Case("made up", "rows", torch.cat(tables), segments)


def normal(num_rows: int, dim: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bound", [1e-4, 0.01, 0.03])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_the_baseline_keeps_the_bound_without_a_check(bound: float, offset: float) -> None:
    of = case([(normal(200, seed=i) + offset) * scale for i, scale in enumerate(SCALES)])
    one = bench.build(BASELINE, of, bound)
    error = bench.worst_error(one, ErrorBounded(bound), of)
    # Above: hardly anything of the bound is given away (2^-21 max|x|, at most 4 of its ranges).
    assert 0.9 < error <= 1
    # One more step a value would be seen.
    one.q += 1
    one.data = one.q.tobytes()
    one.decode()
    decoded = torch.from_numpy(one.out).view_as(of.rows)
    assert bench.max_error_in_bounds(ErrorBounded(bound), of.rows, decoded, of.segments) > 1


def test_what_breaks_the_bound_is_named_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(_module: Any, _itemsize: int) -> tuple[Any, Any]:
        return (lambda q: (q // 2 * 2).tobytes()), bytes

    entry = ("numpy", opponents.Quantized, forgets)
    monkeypatch.setitem(opponents._OPPONENTS, "forgets", entry)
    options = argparse.Namespace(**vars(OPTIONS) | {"opponents": [BASELINE, "forgets"]})
    records = {r["name"]: r for r in bench.measure(case([normal(50)]), 0.01, options)}
    assert list(records) == [BASELINE, "bitpack", "forgets"]
    assert records["forgets"]["max_error_over_bound"] > 1
    assert not any("speedup" in key or "gb_per_s" in key for key in records["forgets"])
    assert "breaks the bound" in bench.row_of_table(records["forgets"])
    for name in (BASELINE, "bitpack"):
        assert records[name]["max_error_over_bound"] <= 1
        assert records[name]["encode_repeats"] == 3
        assert "breaks" not in bench.row_of_table(records[name])


def test_a_baseline_that_breaks_the_bound_ends_it() -> None:
    # The range is less than what float32 rounds such values by: no step is left.
    of = case([normal(50) * 1e-6 + 1.0])
    with pytest.raises(SystemExit, match=r"zstd-1: an error of .* nothing is timed"):
        list(bench.measure(of, 0.01, OPTIONS))


def test_a_decoder_that_writes_nothing_is_seen() -> None:
    of = case([normal(5)])
    one = bench.build(BASELINE, of, 0.01)
    one.decode = lambda: None
    assert bench.worst_error(one, ErrorBounded(0.01), of) == np.inf


def test_entropy_of_four_equally_frequent_indices_is_two_bits() -> None:
    rows = torch.arange(4.0).repeat(100).view(-1, 8)
    nbytes = bench.entropy_nbytes(ErrorBounded(1 / 6), case([rows, rows]))
    assert nbytes == pytest.approx(2 * 400 * 2 / 8)


@pytest.mark.parametrize("name", opponents.NAMES[1:])
def test_an_installed_opponent_keeps_the_bound(name: str) -> None:
    if line := opponents.missing(name):
        pytest.skip(line)
    of = case([normal(1), torch.zeros(3, 8), normal(300, seed=1)])
    one = bench.build(name, of, 0.01)
    assert bench.worst_error(one, ErrorBounded(0.01), of) <= 1
    assert 0 < one.nbytes() < of.rows.numel() * 4


@pytest.mark.parametrize("name", opponents.NAMES)
def test_what_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, *rest = opponents._OPPONENTS[name]
    monkeypatch.setitem(opponents._OPPONENTS, name, ("zfpy", *rest))
    monkeypatch.setitem(sys.modules, "zfpy", None)
    line = opponents.missing(name)
    assert line is not None
    assert line.startswith("pip install zfpy (")
    assert module == "numpy" or module in opponents.PIP


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    """Two tables of 40 samples with every id twice or more, as --dump-rows writes them."""
    ids = {"a": torch.arange(40) % 20, "b": torch.arange(40) % 3 * 10**12}
    rows = {"a": normal(20)[ids["a"]], "b": normal(3, seed=1)[torch.arange(40) % 3]}
    gradients = {table: normal(40, seed=2) for table in ids}
    torch.save({"rows": rows, "gradients": gradients, "ids": ids}, tmp_path / "rows.pt")
    return tmp_path / "rows.pt"


def test_rows_are_of_distinct_ids_and_gradients_summed(dumped: Path) -> None:
    options = argparse.Namespace(rows=[dumped], kind=["rows", "gradients"], samples=40, seed=0)
    [(source, batch, (rows, gradients))] = bench.inputs(options)
    assert source == "rows.pt"
    assert len(batch.ids["a"]) == 40
    for one in (rows, gradients):
        assert one.segments.num_rows.tolist() == [20, 3]
        assert one.segments.dim == 8
    assert torch.equal(rows.rows, torch.cat([normal(20), normal(3, seed=1)]))
    x = normal(40, seed=2)
    assert torch.equal(gradients.rows[:20], x[:20] + x[20:])


def test_a_run_ends_with_every_target(
    dumped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = dumped.parent / "speed.jsonl"
    words = f"bench --rows {dumped} --samples 40 --bounds 0.01 --encoders bitpack --repeats 2"
    words += f" --seconds 0.01 --json {file} --opponents"
    monkeypatch.setattr(sys, "argv", [*words.split(), BASELINE, "zfp"])
    monkeypatch.setitem(sys.modules, "zfpy", None)
    bench.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("skipped: zfp: pip install zfpy")
    assert lines[-1].startswith("targets (p50): bitpack encode_speedup at least 2: ")
    assert lines[-1].count(": not measured") == 3  # of rans
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["name"] for record in records] == [BASELINE, "bitpack", "merging"]
    ours, merging = records[1:]
    assert ours["raw_nbytes"] == 23 * 8 * 4
    assert ours["compression_ratio"] == pytest.approx(
        ours["raw_nbytes"] / ours["wire_nbytes"], abs=1e-3
    )
    assert merging["distinct_share"] == 23 / 80


@pytest.mark.parametrize("words", ["--kind gradients", "--repeats 0"])
def test_what_makes_no_sense_is_refused(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *words.split()])
    with pytest.raises(SystemExit):
        bench.main()
    assert f"error: {words}: " in capsys.readouterr().err


def test_without_the_baseline_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ("zfpy", opponents.Quantized, copying)
    monkeypatch.setitem(opponents._OPPONENTS, BASELINE, entry)
    monkeypatch.setitem(sys.modules, "zfpy", None)
    monkeypatch.setattr(sys, "argv", ["bench"])
    with pytest.raises(SystemExit, match="what all others are measured against"):
        bench.main()


def test_the_worst_case_decides() -> None:
    def record(name: str, speed: float, wire: int) -> dict[str, Any]:
        measured = {f"{call}_speedup": {"p50": speed} for call in ("encode", "decode")}
        sizes = {"wire_nbytes": wire, "entropy_nbytes": 100}
        rates = {f"{call}_gb_per_s": {"p50": speed + 1.7} for call in ("encode", "decode")}
        return {"name": name} | rates | measured | sizes

    records = [record("bitpack", 3.0, 200), record("bitpack", 1.5, 200)]
    said = bench.verdict([*records, record("rans", 0.8, 103), record("rans", 0.9, 104)])
    parts = said.removeprefix("targets (p50): ").split("; ")
    assert parts == [
        "bitpack encode_speedup at least 2: NOT met in 1 of 2 (worst 1.500)",
        "bitpack decode_speedup at least 1.4: met in all of 2 (worst 1.500)",
        "rans encode_gb_per_s at least 0.8: met in all of 2 (worst 2.500)",
        "rans decode_gb_per_s at least 2: met in all of 2 (worst 2.500)",
        "rans wire_over_entropy at most 1.03: NOT met in 1 of 2 (worst 1.040)",
    ]
