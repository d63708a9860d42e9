"""Preview's figures against float64 and the kit's round trip; the command as a user runs it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trec_qcomm.codecs import ErrorBounded, Identity, Rowwise
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.planner.cost_model import Throughput
from trec_qcomm.lab import records
from trec_qcomm.lab.analyze.rows import distinct
from trec_qcomm.lab.preview import measure
from trec_qcomm.lab.preview.candidates import CODECS, NAMES, candidates
from trec_qcomm.lab.preview.command import build_parser, main
from trec_qcomm.lab.preview.file import load_captured
from trec_qcomm.lab.preview.measure import CodecPreview, TablePreview, preview_table
from trec_qcomm.lab.preview.previews import make_preview
from trec_qcomm.lab.preview.selector import Measurement
from trec_qcomm.lab.preview.text import direction_text, link_text
from trec_qcomm.testing import round_trip
from trec_qcomm.testing.codecs import encode

STEPS, DIM = 2, 8
SPEED = Throughput(encode_gb_s=1.0, decode_gb_s=3.0)


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codecs encode 1 GB/s and decode 3, without being timed."""
    measured = Measurement(compression_ratio=1.0, throughput=SPEED)
    monkeypatch.setattr(measure, "measure", lambda codec, blocks: measured)


def blocks_of(seed: int, *sizes: int, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    table = scale * torch.randn(20, DIM, generator=generator)
    return [table[torch.randint(20, (size,), generator=generator)] for size in sizes]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two tables that repeat rows, and gradients, of two steps; as capture_rows saves them."""
    content = {
        "rows": {"small": blocks_of(0, 20, 5), "lar|ge": blocks_of(1, 50, 30, 40, 1)},
        "gradients": {"small": blocks_of(2, 20, 5, scale=1e-5)},
        "without_rows": ["dp"],
        "meta": {"config": "x", "steps": STEPS, "num_left_out": 3, "world_size": 2},
    }
    torch.save(content, tmp_path / "rows.pt")
    return tmp_path / "rows.pt"


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
            if direction == "forward":
                blocks = [distinct(block) for block in blocks]
            assert table.num_rows == sum(map(len, captured.blocks[direction][table.table])) / STEPS
            assert table.num_sent == sum(map(len, blocks)) / STEPS
            for figures in table.codecs:
                nbytes, decibels = offline(CODECS[direction][figures.codec], blocks)
                assert figures.wire_nbytes == nbytes / STEPS
                assert figures.signal_to_noise_db == pytest.approx(decibels, rel=1e-12)
                sent = 4 * DIM * table.num_sent
                assert figures.sent_nbytes == sent
                assert figures.encode_s == pytest.approx(sent / 1e9)
                assert figures.decode_s == pytest.approx(sent / 3e9)
                link = 0.75 * max(1 - nbytes / STEPS / sent, 0)  # H is 1 / (1 + 1/3)
                assert figures.break_even_gb_s == pytest.approx(link)
                seen += 1
    assert seen == 2 * len(CODECS["forward"]) + len(CODECS["backward"])


def test_at_the_break_even_link_coding_takes_as_long_as_float32() -> None:
    figures = CodecPreview(
        codec="c", raw_nbytes=9e6, sent_nbytes=4e6, wire_nbytes=1e6, signal_to_noise_db=1.0,
        encode_s=0.002, decode_s=0.004,
    )  # fmt: skip
    assert figures.saved_nbytes == 3e6
    link = figures.break_even_gb_s * 1e9
    assert 4e6 / link == pytest.approx(0.002 + 1e6 / link + 0.004)
    larger = CodecPreview(**vars(figures) | {"wire_nbytes": 5e6})
    assert larger.break_even_gb_s == 0


@pytest.mark.usefixtures("untimed")
def test_nan_and_inf_are_counted_and_left_out() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    odd = torch.tensor([[math.nan, 2.0], [3.0, math.inf]])
    codecs = {"int8": Rowwise(8), "float32": Identity()}
    options: Any = {"direction": "forward", "num_steps": 1, "distinct_rows": True}
    table = preview_table("t", [rows, odd], codecs, **options)
    assert table.num_nonfinite == 2
    by_name = {figures.codec: figures.signal_to_noise_db for figures in table.codecs}
    assert by_name["float32"] == math.inf
    assert 30 < by_name["int8"] < math.inf
    assert "leaves out: t 2." in direction_text([table], unit="a step", top=1)


def test_a_lost_value_is_no_number_of_decibels() -> None:
    fp16 = candidates("forward", names=(), more=["{codec: cast, dtype: fp16}"])
    (codec,) = (codec for name, codec in fp16.items() if name != "float32")
    assert measure.bytes_and_noise(codec, [torch.full((1, 4), 1e6)])[1] == -math.inf
    assert measure.bytes_and_noise(codec, [torch.zeros(1, 4)])[1] == math.inf


@pytest.mark.usefixtures("untimed")
def test_the_command_shows_what_saves_most_first(file: Path, capsys: Any) -> None:
    codecs = "bf16,int4"
    assert main(["--rows", str(file), "--codecs", codecs, "--top", "1"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "Rows, forward: each table, a step of all ranks"
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    # The table of most bytes saved comes first, its codecs likewise; 121 rows of two steps.
    assert cells[4][0] == r"| lar\|ge"
    assert cells[4][1].endswith("of 60 x 8")
    assert [line[2] for line in cells[4:7]] == ["int4", "bf16", "float32"]
    assert [line[6] for line in cells[4:7]][2] == "exact"
    saved = [float(line[4]) for line in cells[4:7]]
    assert saved == sorted(saved, reverse=True)
    assert "KB where rows that repeat go once" in printed.out
    assert "1 more tables save at most " in printed.out
    assert "--top 2 shows all." in printed.out
    assert "Gradients of rows, backward: all 1 tables together" in printed.out
    assert "no room for 3 rows" in printed.out
    assert "Without rows, and not shown: dp." in printed.out
    assert lines[-1].startswith("Next: ")
    assert f"python -m trec_qcomm analyze --data {file} --out mine.yaml" in lines[-1]
    assert "backward, 1 of 1: small" in printed.err


@pytest.mark.usefixtures("untimed")
def test_all_tables_together_are_their_sums(file: Path) -> None:
    captured = load_captured(file, batch=9)
    preview = make_preview(captured, {d: candidates(d) for d in captured.blocks})
    tables = preview.tables["forward"]
    for total, worst in measure.of_all_tables(tables):
        parts = {t.table: c for t in tables for c in t.codecs if c.codec == total.codec}
        for field in ("raw_nbytes", "sent_nbytes", "wire_nbytes", "encode_s", "decode_s"):
            assert getattr(total, field) == sum(getattr(part, field) for part in parts.values())
        least = min(part.signal_to_noise_db for part in parts.values())
        assert total.signal_to_noise_db == least == parts[worst].signal_to_noise_db


@pytest.mark.usefixtures("untimed")
def test_all_rows_are_sent_repeatedly_if_asked(file: Path, capsys: Any) -> None:
    main(["--rows", str(file), "--codecs", "int8", "--all-rows"])
    assert "60 x 8 " in capsys.readouterr().out


@pytest.mark.usefixtures("untimed")
def test_records_hold_every_figure(file: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out.jsonl"
    fp16 = "{codec: cast, dtype: fp16}"
    main(["--rows", str(file), "--codecs", "int4", "--codec", fp16, "--out", str(out)])
    read = records.read(out)
    assert f"wrote {len(read)} records to {out}" in capsys.readouterr().out
    assert len(read) == 3 * 3
    record = next(r for r in read if r.configuration == "int4")
    assert isinstance(record, records.BenchRecord)
    assert record.bench == "preview"
    assert record.config == "{codec: rowwise, bits: 4, rounding: nearest, nonfinite: keep}"
    assert record.setup == {"rows": "rows.pt"}
    figures = preview_table(
        str(record.case["table"]),
        load_captured(file, batch=1).blocks["forward"][str(record.case["table"])],
        {"int4": Rowwise(4)},
        direction="forward",
        num_steps=STEPS,
        distinct_rows=True,
    ).codecs[0]
    assert record.figures["wire_nbytes"] == figures.wire_nbytes
    assert record.figures["signal_to_noise_db"] == figures.signal_to_noise_db
    assert record.figures["break_even_gbit_s"] == 8 * figures.break_even_gb_s
    exact = next(r for r in read if r.configuration == "float32")
    assert isinstance(exact, records.BenchRecord)
    assert exact.figures["is_exact"] is True
    assert "signal_to_noise_db" not in exact.figures
    assert {r.configuration for r in read} == {"float32", "int4", fp16}


@pytest.mark.usefixtures("untimed")
def test_a_file_without_steps_is_told_in_batches(tmp_path: Path, capsys: Any) -> None:
    content = {"rows": {"t": torch.randn(70, 4)}, "meta": {"steps": 900, "batch": 20}}
    torch.save(content, tmp_path / "rows.pt")  # as examples/criteo/train.py --dump-rows does
    main(["--rows", str(tmp_path / "rows.pt"), "--batch", "20", "--codecs", "int8"])
    printed = capsys.readouterr().out
    assert printed.startswith("Rows, forward: each table, a batch\n")
    assert "20 x 4" in printed
    assert "No gradients: capture_rows(steps, gradients=True) keeps them." in printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "rows: expected"),
        ({"rows": {"t": torch.ones(3)}}, r"rows\.t: expected \[n, dim\] float32"),
        ({"gradients": {"t": torch.ones(3)}}, r"gradients\.t: expected \[n, dim\] float32"),
        ({"gradients": [1]}, r'gradients: expected \{"gradients": '),
        ({"meta": 3}, "meta: expected a dict"),
        ({"meta": {"steps": 0, "num_left_out": 0}}, r"meta\.steps: 0 is not an integer >= 1"),
        ({"meta": {"num_left_out": "x"}}, r"meta\.num_left_out: 'x' is not an integer >= 0"),
        ({"without_rows": ["t"]}, "without_rows: expected"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, content: Any, message: str) -> None:
    if isinstance(content, dict):
        content = {"rows": {"t": torch.ones(3, 2)}} | content
    torch.save(content, tmp_path / "rows.pt")
    with pytest.raises(ValueError, match=rf"rows\.pt: {message}"):
        load_captured(tmp_path / "rows.pt", batch=9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--top 0", "top: 0 is not an integer >= 1"),
        ("--batch 0", "batch: 0 is not an integer >= 1"),
        ("--codecs int3", "codecs: 'int3' is not one of"),
        ("--codec zip", "codec zip"),
        ("--codec forward_mask", "codes the columns that another codec kept"),
        ("--codec {codec:rowwise,bits:3}", "codec {codec:rowwise,bits:3}"),
        ("--out absent/out.jsonl", "expected a file in a folder that exists"),
    ],
)
def test_a_bad_option_is_named(file: Path, capsys: Any, words: str, message: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--rows", str(file), *words.split()])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_what_a_codec_refuses_names_table_and_codec() -> None:
    bad = [torch.full((2, 4), math.nan)]
    options: Any = {"direction": "forward", "num_steps": 1, "distinct_rows": True}
    with pytest.raises(ValueError, match="table 't', codec strict: "):
        preview_table("t", bad, {"strict": Rowwise(8, nonfinite="raise")}, **options)


def test_help_has_examples_and_every_name() -> None:
    text = build_parser().format_help()
    assert "python -m trec_qcomm preview --rows rows.pt\n" in text
    assert all(name in text.replace("\n", "") for name in NAMES)
    assert ErrorBounded(0.01) == CODECS["forward"]["bound1%"]


@pytest.mark.parametrize(
    ("gb_s", "text"), [(0.0, "no link"), (0.125, "1.0 Gbit/s"), (0.0125, "100 Mbit/s")]
)
def test_links_are_told_in_bits(gb_s: float, text: str) -> None:
    assert link_text(gb_s) == text


def test_tables_are_sorted_by_what_their_best_codec_saves() -> None:
    def table(name: str, wire: float) -> TablePreview:
        figures = CodecPreview(
            codec="c", raw_nbytes=100.0, sent_nbytes=100.0, wire_nbytes=wire,
            signal_to_noise_db=20.0, encode_s=1.0, decode_s=1.0,
        )  # fmt: skip
        return TablePreview(
            table=name, direction="backward", dim=4, num_rows=1, num_sent=1, num_nonfinite=0,
            codecs=(figures,),
        )  # fmt: skip

    text = direction_text([table("a", 90), table("b", 10), table("c", 50)], unit="a step", top=3)
    shown = [line.split()[1] for line in text.splitlines()[4:7]]
    assert shown == ["b", "c", "a"]
