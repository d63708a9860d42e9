"""Preview's figures against float64 and the kit's round trip; the command as a user runs it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trec_qcomm import load_config, load_preset
from trec_qcomm.codecs import Cast, ErrorBounded, Identity, Rowwise
from trec_qcomm.core.segments import Segments
from trec_qcomm.lab.preview import measure
from trec_qcomm.lab.preview.candidates import CODECS, candidates
from trec_qcomm.lab.preview.choices import ENCODERS, Options, choose
from trec_qcomm.lab.preview.command import main
from trec_qcomm.lab.preview.measure import CodecPreview, TablePreview, preview_table
from trec_qcomm.lab.preview.previews import load_captured, make_preview
from trec_qcomm.lab.preview.text import direction_text, markdown_table
from trec_qcomm.lab.sizes.rows import distinct
from trec_qcomm.testing import round_trip
from trec_qcomm.testing.codecs import encode

STEPS, DIM = 2, 8
TO_PREVIEW: Any = {"num_steps": 1, "distinct_rows": True}


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codecs encode 1 GB/s and decode 3, without being timed."""

    def coding_s(codec: Any, blocks: list[Tensor]) -> tuple[float, float]:
        nbytes = sum(4 * block.numel() for block in blocks)
        return nbytes / 1e9, nbytes / 3e9

    monkeypatch.setattr(measure, "coding_s", coding_s)


def blocks_of(seed: int, *sizes: int, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    table = scale * torch.randn(20, DIM, generator=generator)
    return [table[torch.randint(20, (size,), generator=generator)] for size in sizes]


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path / "rows.pt")
    return path / "rows.pt"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two tables that repeat rows, and gradients, of two steps; as capture_rows saves them."""
    content = {
        "rows": {"small": blocks_of(0, 20, 5), "lar|ge": blocks_of(1, 50, 30, 40, 1)},
        "gradients": {"small": blocks_of(2, 20, 5, scale=1e-5)},
        "without_rows": ["dp"],
        "meta": {"config": "x", "steps": STEPS, "num_left_out": 3, "world_size": 2},
    }
    return saved(tmp_path, content)


@pytest.fixture
def repeated(tmp_path: Path) -> Path:
    """Three tables, looked up with repeats; 2 batches of 50."""
    draw = torch.Generator().manual_seed(1)
    sizes = {"few": 5, "still": 30, "t[x]*": 20}
    rows = {
        name: torch.rand(n, 8, generator=draw)[torch.arange(100) % 50 % n]
        for name, n in sizes.items()
    }
    return saved(tmp_path, {"rows": rows, "meta": {"dim": 8}})


def write(file: Path, *words: object, link_gb_s: float = 1e-6) -> Path:
    """Run the command with --out, on a link on which every codec is faster than float32."""
    out = file.parent / "mine.yaml"
    options = ["--codecs", "int8", "--batch", 50, "--link-gb-s", link_gb_s, "--out", out]
    assert main([str(word) for word in (file, *options, *words)]) == 0
    return out


# Figures.


def offline(codec: Any, blocks: list[Tensor]) -> tuple[int, float]:
    """Return bytes and decibels by the kit's own round trip, added up in float64."""
    rows = torch.cat(blocks)
    segments = Segments.packed([len(block) for block in blocks], DIM)
    decoded = round_trip(codec, rows, segments)
    signal = math.fsum(x * x for x in rows.double().flatten().tolist())
    errors = (rows.double() - decoded.double()).flatten().tolist()
    noise = math.fsum(x * x for x in errors)
    nbytes = int(encode(codec, rows, segments).nbytes.sum())
    return nbytes, 10 * math.log10(signal / noise) if noise else math.inf


@pytest.mark.usefixtures("untimed")
def test_figures_of_every_codec_are_those_of_float64(file: Path) -> None:
    captured = load_captured(file, batch=9)
    preview = make_preview(captured, {d: candidates(d) for d in captured.blocks})
    seen = 0
    for direction, tables in preview.tables.items():
        for table in tables:
            blocks = captured.blocks[direction][table.table]
            assert table.num_rows == sum(map(len, blocks)) / STEPS
            if direction == "forward":
                blocks = [distinct(block) for block in blocks]
            assert table.num_sent == sum(map(len, blocks)) / STEPS
            sent = 4 * DIM * table.num_sent
            for figures in table.codecs:
                nbytes, decibels = offline(CODECS[direction][figures.codec], blocks)
                assert (figures.wire_nbytes, figures.sent_nbytes) == (nbytes / STEPS, sent)
                assert figures.signal_to_noise_db == pytest.approx(decibels, rel=1e-12)
                assert figures.encode_s == pytest.approx(sent / 1e9)
                assert figures.decode_s == pytest.approx(sent / 3e9)
                link = 0.75 * max(1 - nbytes / STEPS / sent, 0)  # H is 1 / (1 + 1/3)
                assert figures.break_even_gb_s == pytest.approx(link)
                if link:
                    assert figures.speed_up(link) == pytest.approx(1)
                seen += 1
    assert seen == 2 * len(CODECS["forward"]) + len(CODECS["backward"])
    tables = preview.tables["forward"]
    for total, worst in measure.of_all_tables(tables):
        parts = {t.table: c for t in tables for c in t.codecs if c.codec == total.codec}
        for field in ("raw_nbytes", "sent_nbytes", "wire_nbytes", "encode_s", "decode_s"):
            assert getattr(total, field) == sum(getattr(part, field) for part in parts.values())
        least = min(part.signal_to_noise_db for part in parts.values())
        assert total.signal_to_noise_db == least == parts[worst].signal_to_noise_db


@pytest.mark.usefixtures("untimed")
def test_nan_and_inf_are_counted_and_left_out() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    odd = torch.tensor([[math.nan, 2.0], [3.0, math.inf]])
    table = preview_table("t", [rows, odd], {"int8": Rowwise(8), "a": Identity()}, **TO_PREVIEW)
    assert table.num_nonfinite == 2
    by_name = {figures.codec: figures.signal_to_noise_db for figures in table.codecs}
    assert by_name["a"] == math.inf
    assert 30 < by_name["int8"] < math.inf
    assert "leaves out: t 2." in direction_text("forward", [table], unit="a step", top=1)


def test_a_lost_value_is_no_number_of_decibels() -> None:
    assert measure.bytes_and_noise(Cast("fp16"), [torch.full((1, 4), 1e6)])[1] == -math.inf
    assert measure.bytes_and_noise(Cast("fp16"), [torch.zeros(1, 4)])[1] == math.inf


def test_distinct_rows_are_in_order_of_occurrence() -> None:
    rows = torch.tensor([[3.0, 1.0], [2.0, 9.0], [3.0, 1.0], [1.0, 5.0], [2.0, 9.0]])
    assert distinct(rows).tolist() == [[3, 1], [2, 9], [1, 5]]
    odd = torch.tensor([[math.nan], [math.nan], [0.0], [-0.0]])
    assert len(distinct(odd)) == 3


def test_what_a_codec_refuses_names_table_and_codec() -> None:
    bad, strict = [torch.full((2, 4), math.nan)], Rowwise(8, nonfinite="raise")
    with pytest.raises(ValueError, match="table 't', codec strict: "):
        preview_table("t", bad, {"strict": strict}, **TO_PREVIEW)


# What is shown.


@pytest.mark.usefixtures("untimed")
def test_the_command_shows_what_saves_most_first(file: Path, capsys: Any) -> None:
    assert main([str(file), "--codecs", "bf16,int4", "--top", "1"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "Rows, forward: each table, a step of all ranks"
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    # The table of most bytes saved comes first, its codecs likewise; 121 rows of two steps.
    assert cells[4][0] == r"| lar\|ge"
    assert cells[4][1].endswith("of 60 x 8")
    assert [line[2] for line in cells[4:7]] == ["int4", "bf16", "float32"]
    assert [line[6] for line in cells[4:7]][2] == "exact"
    saved_kb = [float(line[4]) for line in cells[4:7]]
    assert saved_kb == sorted(saved_kb, reverse=True)
    for told in (
        "KB where rows that repeat go once", "1 more tables save at most ", "--top 2 shows all.",
        "Gradients of rows, backward: all 1 tables together", "no room for 3 rows",
        "Without rows, and not shown: dp.",
    ):  # fmt: skip
        assert told in printed.out
    assert f"python -m trec_qcomm preview {file} --out mine.yaml" in lines[-1]
    assert "backward, 1 of 1: small" in printed.err
    main([str(file), "--codecs", "int8", "--all-rows"])
    assert "60 x 8 " in capsys.readouterr().out


@pytest.mark.usefixtures("untimed")
def test_a_file_without_steps_is_told_in_batches(tmp_path: Path, capsys: Any) -> None:
    lists = [torch.randn(3, 4), torch.ones(0, 4), torch.randn(1, 4)]
    content = {"rows": {"t": torch.randn(70, 4), "u": lists}, "meta": {"steps": 900, "batch": 20}}
    rows = saved(tmp_path, content)  # as examples/criteo/train.py --dump-rows does
    for batch, sizes in ((20, [20, 20, 20]), (70, [70]), (71, [70])):
        blocks = load_captured(rows, batch=batch).blocks["forward"]
        assert [[len(b) for b in blocks[table]] for table in "tu"] == [sizes, [3, 1]]
    main([str(rows), "--batch", "20", "--codecs", "int8"])
    printed = capsys.readouterr().out
    assert printed.startswith("Rows, forward: each table, a batch\n")
    assert "20 x 4" in printed
    assert "No gradients: capture_rows(steps, gradients=True) keeps them." in printed


# What is written.


def test_each_table_gets_an_encoder(repeated: Path, capsys: Any) -> None:
    config = load_config(write(repeated))
    config.check_patterns(["few", "still", "t[x]*"])
    for table in ("few", "still", "t[x]*"):
        rule = config.rule_for(table)
        assert rule.forward in {ErrorBounded(0.01, encoder=e) for e in ENCODERS}
        assert rule.backward == Rowwise(4, rounding="stochastic")
        assert rule.unique_bags == "auto"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines[-6:-2]] == [
        ["table", "rows", "encoder", "ratio"], ["few", "5", "of", "50"],
        ["still", "30", "of", "50"], ["t[x]*", "20", "of", "50"],
    ]  # fmt: skip
    assert lines[-1].startswith("3 tables, a batch: 4.8 KB of rows -> ")
    assert f"(distinct rows {150 / 55:.2f}x, " in lines[-1]
    out = repeated.parent / "mine.yaml"
    assert lines[-1].endswith(f"; wrote {out}")
    comments = [line.removeprefix("# ") for line in out.read_text().splitlines() if line[0] == "#"]
    assert comments[0] == 'Made by python -m trec_qcomm preview from "rows.pt".'
    assert comments[-4:] == lines[-6:-2]


@pytest.mark.usefixtures("untimed")
def test_bounds_are_those_that_pass_the_quality_gate(repeated: Path) -> None:
    (rule,) = load_config(write(repeated, "--encoders", "rans")).embedding
    best = load_preset("best").embedding[0].forward
    assert rule.forward == ErrorBounded(0.01, encoder="rans") == best
    assert len(rule.tables) == 3


@pytest.mark.usefixtures("untimed")
def test_float32_is_kept_where_codecs_lose_time(repeated: Path, capsys: Any) -> None:
    (rule,) = load_config(write(repeated, link_gb_s=1e6)).embedding
    assert (rule.forward, rule.backward, rule.unique_bags) == (Identity(), Identity(), "auto")
    *lines, _, last = capsys.readouterr().out.splitlines()[-5:]
    assert [line.split()[-5] for line in lines] == ["identity"] * 3
    assert [line.split()[-2] for line in lines] == ["identity"] * 3
    assert all(float(line.split()[at]) < 1 for line in lines for at in (-1, -3))
    assert "-> 1.8 KB, " in last  # the distinct rows as float32
    assert "; 3 stay float32, which is faster on this link; wrote " in last


@pytest.mark.usefixtures("untimed")
def test_options_reach_the_config(repeated: Path) -> None:
    words = ["--bound", "0.004", "--backward", "bf16", "--all-rows", "--encoders", "vector_lz"]
    (rule,) = load_config(write(repeated, *words)).embedding
    assert rule.forward == ErrorBounded(0.004, encoder="vector_lz")
    assert (rule.backward, rule.unique_bags) == (Cast("bf16"), False)
    for name, codec in CODECS["backward"].items():
        config = load_config(write(repeated, "--force", "--backward", name))
        assert {rule.backward for rule in config.embedding} == {codec}


def test_the_fastest_encoder_over_the_link_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """bitpack takes 4 times fewer bytes at 4 GB/s each way, rans 8 times fewer at .5 GB/s."""
    rows, of_gradients = torch.eye(64), Rowwise(4)
    raw = 4 * rows.numel()
    monkeypatch.setattr(measure, "coding_s", lambda codec, blocks: (raw / 4e9, raw / 4e9))
    turn = 2 * (1 - measure.bytes_and_noise(of_gradients, [rows])[0] / raw)
    sent: Any = {"raw_nbytes": 8e9, "sent_nbytes": 8e9, "signal_to_noise_db": 1.0}
    previews = (
        CodecPreview(codec="bound1%", wire_nbytes=2e9, encode_s=1.0, decode_s=1.0, **sent),
        CodecPreview(codec="bound1%-rans", wire_nbytes=1e9, encode_s=16.0, decode_s=16.0, **sent),
        CodecPreview(codec="float32", wire_nbytes=8e9, encode_s=1.0, decode_s=1.0, **sent),
    )
    figures = TablePreview(
        table="t", dim=4, num_rows=1, num_sent=1, num_nonfinite=0, codecs=previews
    )
    bounded = {e: ErrorBounded(0.01, encoder=e) for e in ("bitpack", "rans")}
    # The codec of gradients has a speed-up of 1 at `turn` GB/s, bitpack at 3.
    for link_gb_s, expected, gradients in (
        (0.01, bounded["rans"], "rowwise"), (0.99 * turn, bounded["bitpack"], "rowwise"),
        (1.01 * turn, bounded["bitpack"], "identity"), (3.1, Identity(), "identity"),
    ):  # fmt: skip
        options = Options(encoders=tuple(bounded), link_gb_s=link_gb_s, backward=of_gradients)
        choice = choose(figures, [rows], options)
        assert (choice.forward, choice.backward.name) == (expected, gradients)
        assert (choice.speed_up > 1) == (expected != Identity())
        assert choice.sent.codec == ("float32" if link_gb_s > 3 else figures_name(expected))


def figures_name(codec: Any) -> str:
    return "bound1%" if codec.encoder == "bitpack" else "bound1%-rans"


@pytest.mark.usefixtures("untimed")
def test_nothing_is_overwritten_without_force(repeated: Path, capsys: Any) -> None:
    out = repeated.parent / "mine.yaml"
    out.write_text("mine")
    with pytest.raises(SystemExit):
        write(repeated)
    assert f"out {out}: exists; --force overwrites it" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert load_config(write(repeated, "--force"))


# Mistakes.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], r"rows: expected \{\"rows\": \{table"),
        ({"rows": {}}, "rows: expected"),
        ({"rows": {"t": [1.0]}}, r"rows\.t: expected \[n, dim\] float32"),
        ({"rows": {"t": torch.ones(3)}}, r"rows\.t: expected \[n, dim\] float32"),
        ({"rows": {"t": torch.ones(3, 2).double()}}, r"rows\.t: expected \[n, dim\] float32"),
        ({"rows": {"t": torch.ones(0, 2)}}, r"rows\.t: expected one row or more, all of one dim"),
        ({"rows": {"t": []}}, r"rows\.t: expected one row or more"),
        ({"rows": {"t": [torch.ones(1, 2), torch.ones(1, 3)]}}, r"rows\.t: .* all of one dim"),
        ({"gradients": {"t": torch.ones(3)}}, r"gradients\.t: expected \[n, dim\] float32"),
        ({"gradients": [1]}, r'gradients: expected \{"gradients": '),
        ({"meta": 3}, "meta: expected a dict"),
        ({"meta": {"steps": 0, "num_left_out": 0}}, r"meta\.steps: 0 is not an integer >= 1"),
        ({"meta": {"num_left_out": "x"}}, r"meta\.num_left_out: 'x' is not an integer >= 0"),
        ({"without_rows": ["t"]}, "without_rows: expected"),
        ({"without_rows": "s"}, "without_rows: expected a list"),
        (b"PK\x03\x04 a broken zip", "cannot be read: "),
        (b"", "cannot be read: "),
        (None, "cannot be read: "),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "rows.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        whole = {"rows": {"t": torch.ones(3, 2)}}
        torch.save(whole | content if isinstance(content, dict) else content, path)
    with pytest.raises(ValueError, match=rf"rows\.pt: {message}"):
        load_captured(path, batch=9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--top 0", "top: 0 is not an integer >= 1"),
        ("--batch 0", "batch: 0 is not an integer >= 1"),
        ("--codecs int3", "codecs: 'int3' is not one of"),
        ("--codec zip", "codec zip"),
        ("--codec forward_mask", "codes the columns that another codec kept"),
        ("--codec {codec:rowwise,bits:3}", "codec {codec:rowwise,bits:3}"),
        ("--out absent/mine.yaml", "expected a file in a folder that exists"),
        ("--link-gb-s 0", "link_gb_s: 0.0 is not a finite number > 0"),
        ("--link-gb-s nan", "link_gb_s: nan is not"),
        ("--encoders auto", "encoders: 'auto' is not one of ('bitpack'"),
        ("--bound x --out mine.yaml", "argument --bound: invalid float value"),
        ("--backward int3", "invalid choice: 'int3'"),
    ],
)
def test_a_bad_option_is_named(file: Path, capsys: Any, words: str, message: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(file), *words.split()])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_table_of_markdown_is_aligned_and_escaped():
    table = markdown_table(("name", "n"), [("a|b", "1"), ("c", "1000")], right=[1])
    assert table.splitlines() == [
        "| name |    n |",
        "| ---- | ---: |",
        r"| a\|b |    1 |",
        "| c    | 1000 |",
    ]
