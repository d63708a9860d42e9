"""The command as a user runs it: rows in, a loadable config and a table out; errors name things."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from trec_qcomm import load_config, load_preset
from trec_qcomm.codecs import Cast, ErrorBounded, Identity, Rowwise
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.dual_level.error_bound import BoundClass, BoundClasses
from trec_qcomm.ext.planner.cost_model import Throughput
from trec_qcomm.lab.analyze import tables
from trec_qcomm.lab.analyze.command import BACKWARD, build_parser, main
from trec_qcomm.lab.analyze.rows import distinct, load_rows
from trec_qcomm.lab.analyze.tables import Options, all_encoders, analyze_table, error_bounded
from trec_qcomm.lab.preview.selector import Measurement


def some_rows(num_rows: int, *, spread: float, seed: int) -> Tensor:
    """[num_rows, 8]: far apart by `spread` of the range that two outer rows make, -1 to 1."""
    rows = torch.rand(num_rows, 8, generator=torch.Generator().manual_seed(seed)) * spread
    rows[0], rows[1] = -1, 1
    return rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three tables that belong to the three classes, looked up with repeats; 2 batches of 50."""
    generator = torch.Generator().manual_seed(0)
    # The base bound makes steps of 0.12 here: what lies within half of one becomes one row.
    few = some_rows(5, spread=2.0, seed=1)
    still = some_rows(30, spread=0.01, seed=2)
    wide = some_rows(20, spread=1.0, seed=3)
    wide[2:4] = 0.001 * wide[2:4]  # 2 of 20 become 1
    rows = {
        "few": few[torch.arange(100) % 5],
        "still": still[torch.arange(100) % 30],
        "t[x]*": wide[
            torch.cat([torch.arange(50) % 20, torch.randperm(50, generator=generator) % 20])
        ],
    }
    torch.save({"rows": rows, "meta": {"dim": 8}}, tmp_path / "rows.pt")
    return tmp_path / "rows.pt"


# A link on which every codec is faster than float32, and one encoder, since others take seconds.
QUICK = ["--link-gb-s", "1e-6", "--encoders", "bitpack"]


def run(data: Path, out: Path, *words: object) -> int:
    options = ["--data", str(data), "--out", str(out), "--batch", "50", *QUICK]
    return main([*options, *map(str, words)])


def test_bounds_are_those_that_pass_the_quality_gate(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "bounds.yaml")
    rules = load_config(tmp_path / "bounds.yaml").embedding
    assert {rule.forward.tolerance for rule in rules} == {0.01}
    best = load_preset("best").embedding[0].forward
    assert best.tolerance == 0.01
    assert sum(len(rule.tables) for rule in rules) == 3


def test_float32_is_kept_where_codecs_lose_time(data: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "bounds.yaml"
    run(data, out, "--link-gb-s", "1e6")
    (rule,) = load_config(out).embedding
    assert (rule.forward, rule.backward, rule.unique_bags) == (Identity(), Identity(), "auto")
    assert len(rule.tables) == 3
    *lines, last = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[-4] for line in lines] == ["identity"] * 3
    assert [line.split()[-2] for line in lines] == ["identity"] * 3
    assert all(float(line.split()[at]) < 1 for line in lines for at in (-1, -3))
    assert "-> 1.8 KB, " in last  # the distinct rows as float32
    assert "; 3 stay float32, which is faster on this link; wrote " in last


def test_tables_without_rows_stay_float32(tmp_path: Path) -> None:
    file, out = tmp_path / "rows.pt", tmp_path / "bounds.yaml"
    torch.save({"rows": {"a": torch.eye(3)}, "without_rows": ["dp[1]"]}, file)
    run(file, out)
    config = load_config(out)
    config.check_patterns(["a", "dp[1]"])
    rule = config.rule_for("dp[1]")
    assert (rule.forward, rule.backward, rule.unique_bags) == (Identity(), Identity(), False)
    assert '- "dp[[]1]"  # no rows in the file' in out.read_text()


def test_each_table_gets_the_codec_of_its_class(data: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "bounds.yaml"
    encoders = ["--encoders", ",".join(all_encoders())]
    assert run(data, out, "--bounds", "0.01,0.03,0.05", *encoders) == 0
    config = load_config(out)
    bounds = {"few": 0.05, "still": 0.01, "t[x]*": 0.03}
    config.check_patterns(bounds)
    for table, bound in bounds.items():
        rule = config.rule_for(table)
        assert isinstance(rule.forward, ErrorBounded)
        assert (rule.forward.bound, rule.forward.mode) == (bound, "rel")
        assert rule.forward.encoder in all_encoders()
        assert rule.backward == Rowwise(4, rounding="stochastic")
        assert rule.unique_bags == "auto"
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split()[:3] == ["table", "rows", "distinct"]
    assert [line.split()[:7] for line in lines[1:-1]] == [
        ["few", "50", "5", "1.000", "loose", "0.05", "1.000"],
        ["still", "50", "30", "0.100", "tight", "0.01", "0.100"],
        ["t[x]*", "50", "20", "0.950", "base", "0.03", "0.950"],
    ]
    assert lines[-1].startswith("3 tables: 4.8 KB of rows a batch -> ")
    assert f"(distinct rows {150 / 55:.2f}x, " in lines[-1]
    assert lines[-1].endswith(f"; wrote {out}")
    assert "3 of 3: t[x]*" in printed.err


def test_comments_say_what_was_measured(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "bounds.yaml", "--bounds", "0.01,0.03,0.05")
    text = (tmp_path / "bounds.yaml").read_text()
    assert '# Made by python -m trec_qcomm analyze from "rows.pt".' in text
    assert '- "t[[]x][*]"  # base: index 0.950, kept 0.950, 20 of 50 distinct, ratio ' in text
    assert set(yaml.safe_load(text)) == {"embedding", "seed", "measure_error"}  # all there is


@pytest.mark.parametrize("table", ["a b: #é😀", "*", "[!x]", 'say "hi"\n', "- yes", "true"])
def test_any_name_of_a_table_is_matched(tmp_path: Path, table: str) -> None:
    torch.save({"rows": {table: torch.eye(3)}}, tmp_path / "rows.pt")
    run(tmp_path / "rows.pt", tmp_path / "bounds.yaml")
    config = load_config(tmp_path / "bounds.yaml")
    config.check_patterns([table])
    assert config.rule_for(table).forward.name == "error_bounded"


def test_options_reach_the_config(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "bounds.yaml"
    words = ["--bounds", "0.001,0.002,0.004", "--thresholds", "0,0", "--backward", "fp16"]
    run(data, out, *words, "--all-rows", "--encoders", all_encoders()[0])
    (rule,) = load_config(out).embedding  # all are loose now
    assert rule.forward == ErrorBounded(0.004, encoder=all_encoders()[0])
    assert rule.backward == Cast("fp16")
    assert rule.unique_bags is False
    assert len(rule.tables) == 3


def test_the_ratio_is_that_of_the_bytes(data: Path) -> None:
    batches = load_rows(data, batch=50).batches["still"]
    for unique_bags in (True, False):
        result = analyze_table("still", batches, options(unique_bags=unique_bags))
        sent = [distinct(rows) if unique_bags else rows for rows in batches]
        nbytes = sum(encoded_nbytes(error_bounded(0.01, result.encoder), rows) for rows in sent)
        raw_nbytes = sum(4 * rows.numel() for rows in sent)
        assert result.ratio == raw_nbytes / nbytes
        assert result.sent_nbytes == raw_nbytes / 2
        assert result.raw_nbytes == 4 * 50 * 8


def options(**changes: Any) -> Options:
    values = {"encoders": all_encoders()[:1], "link_gb_s": 1e-6, "unique_bags": True}
    return Options(**values | {"classes": BoundClasses(), "backward": Rowwise(4)} | changes)


def encoded_nbytes(codec: ErrorBounded, rows: Tensor) -> int:
    segments = Segments.packed([len(rows)], rows.shape[1])
    payload = torch.empty(int(codec.max_nbytes(segments)), dtype=torch.uint8)
    encoded = codec.encode(rows, segments, payload, torch.zeros(1, dtype=torch.int64))
    return int(encoded.nbytes)


def test_the_fastest_encoder_over_the_link_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"quick": (4.0, 8.0), "dense": (8.0, 0.5)}  # ratio, GB/s each way

    def measured(name: Any, _: object) -> Measurement:
        ratio, speed = speeds.get(name, (7.0, 4.0))  # another is the codec of gradients
        throughput = Throughput(encode_gb_s=speed, decode_gb_s=speed)
        return Measurement(compression_ratio=ratio, throughput=throughput)

    monkeypatch.setattr(tables, "all_encoders", lambda: ("quick", "dense"))
    monkeypatch.setattr(tables, "error_bounded", lambda bound, encoder: encoder)
    monkeypatch.setattr(tables, "measure", measured)
    rows = [torch.eye(4)]
    # The codec of gradients has a speed-up of 1 at 12/7 GB/s, `quick` at 3.
    cases = ((0.01, "dense", "rowwise"), (1.7, "quick", "rowwise"), (1.8, "quick", "identity"))
    for link_gb_s, expected, backward in cases:
        result = analyze_table("t", rows, options(encoders=("quick", "dense"), link_gb_s=link_gb_s))
        assert result.encoder == expected
        assert result.ratio == speeds[expected][0]
        assert result.bound_class == BoundClass.LOOSE
        assert set(result.by_encoder) == set(speeds)
        assert result.backward.name == backward
    lost = analyze_table("t", rows, options(encoders=("quick", "dense"), link_gb_s=3.1))
    assert (lost.encoder, lost.forward, lost.ratio) == ("identity", Identity(), 1.0)


def test_distinct_rows_are_in_order_of_occurrence() -> None:
    rows = torch.tensor([[3.0, 1.0], [2.0, 9.0], [3.0, 1.0], [1.0, 5.0], [2.0, 9.0]])
    assert distinct(rows).tolist() == [[3, 1], [2, 9], [1, 5]]
    odd = torch.tensor([[math.nan], [math.nan], [0.0], [-0.0]])
    assert len(distinct(odd)) == 3


def test_a_tensor_is_cut_into_batches_and_a_list_is_not(tmp_path: Path) -> None:
    lists = [torch.ones(3, 2), torch.ones(0, 2), torch.ones(1, 2)]
    torch.save({"rows": {"a": torch.ones(70, 2), "b": lists}}, tmp_path / "rows.pt")
    sizes = {}
    for batch in (20, 70, 71):
        loaded = load_rows(tmp_path / "rows.pt", batch=batch)
        sizes[batch] = [[len(rows) for rows in loaded.batches[table]] for table in ("a", "b")]
    assert sizes == {20: [[20, 20, 20], [3, 1]], 70: [[70], [3, 1]], 71: [[70], [3, 1]]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], r"rows: expected \{\"rows\": \{table"),
        ({"tables": {}}, "rows: expected"),
        ({"rows": {}}, "rows: expected"),
        ({"rows": {"t": [1.0]}}, r"rows\.t: expected \[n, dim\] float32"),
        ({"rows": {"t": torch.ones(3)}}, r"rows\.t: expected \[n, dim\] float32"),
        ({"rows": {"t": torch.ones(3, 2).double()}}, r"rows\.t: expected \[n, dim\] float32"),
        ({"rows": {"t": torch.ones(0, 2)}}, r"rows\.t: expected one row or more, all of one dim"),
        ({"rows": {"t": []}}, r"rows\.t: expected one row or more"),
        ({"rows": {"t": torch.ones(1, 2)}, "without_rows": ["t"]}, "without_rows: expected"),
        ({"rows": {"t": torch.ones(1, 2)}, "without_rows": "s"}, "without_rows: expected a list"),
        ({"rows": {"t": [torch.ones(1, 2), torch.ones(1, 3)]}}, r"rows\.t: .* all of one dim"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "rows.pt")
    with pytest.raises(ValueError, match=rf"rows\.pt: {message}"):
        load_rows(tmp_path / "rows.pt", batch=9)


@pytest.mark.parametrize("content", [None, b"", b"not a tensor", b"PK\x03\x04 a broken zip"])
def test_what_is_no_file_of_rows_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "rows.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"rows\.pt: cannot be read: "):
        load_rows(tmp_path / "rows.pt", batch=9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--batch 0", "batch: 0 is not an integer >= 1"),
        ("--link-gb-s 0", "link_gb_s: 0.0 is not a finite number > 0"),
        ("--link-gb-s nan", "link_gb_s: nan is not"),
        ("--encoders zip", "encoders: 'zip' is not one of ('bitpack'"),
        ("--encoders bitpack,bitpack", "encoders: expected different ones of bitpack"),
        ("--bounds 0.01,x,1", "argument --bounds: invalid numbers value"),
        ("--bounds 0.01,0.03", "bounds: expected one number or three"),
        ("--bounds 0.05,0.03,0.01", "expected 0 < tight <= base <= loose < 1"),
        ("--thresholds 0.5", "thresholds: expected two numbers"),
        ("--thresholds 0.9,0.5", "expected 0 <= tight_below <= loose_from <= 1"),
        ("--backward int3", "invalid choice: 'int3'"),
    ],
)
def test_a_bad_option_is_named(data: Path, capsys: Any, words: str, message: str) -> None:
    out = data.parent / "bounds.yaml"
    with pytest.raises(SystemExit) as stopped:
        run(data, out, *words.split())
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_nothing_is_overwritten_without_force(data: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "bounds.yaml"
    out.write_text("mine")
    with pytest.raises(SystemExit):
        run(data, out)
    assert f"out {out}: exists; --force overwrites it" in capsys.readouterr().err
    assert out.read_text() == "mine"
    run(data, out, "--force")
    assert load_config(out)
    with pytest.raises(SystemExit):
        run(data, tmp_path / "absent" / "bounds.yaml")
    assert "expected a file in a folder that exists" in capsys.readouterr().err


def test_every_backward_codec_makes_a_config(data: Path, tmp_path: Path) -> None:
    for name, codec in BACKWARD.items():
        run(data, tmp_path / "bounds.yaml", "--force", "--backward", name)
        assert {rule.backward for rule in load_config(tmp_path / "bounds.yaml").embedding} == {
            codec
        }


def test_help_has_examples() -> None:
    text = build_parser().format_help()
    assert "python -m trec_qcomm analyze --data rows.pt --out bounds.yaml\n" in text
