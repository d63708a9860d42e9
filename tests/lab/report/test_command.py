"""The command `python -m trec_qcomm report`, and the page that it writes."""

import dataclasses
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import trec_qcomm
from tests.lab.records.test_json_lines import EVERY_KIND
from tests.lab.report import sample_records
from tests.lab.search import planted
from tests.lab.search.test_search import CANDIDATES
from trec_qcomm.lab.records import ProgressRecord, Record, TrainingRecord, append, read_all
from trec_qcomm.lab.report.command import main

ROOT = Path(__file__).parents[3]
KEYS = [
    "quality", "rate-distortion", "step-time", "traffic", "losses", "debug",
    "guard", "search",
]  # fmt: skip
EVIL = "<script>alert('x')</script>&\"$_{"


class Elements(HTMLParser):
    """Ids of sections, names and attributes of all elements, and the texts of <td>."""

    def __init__(self, text):
        super().__init__()
        self.sections, self.names, self.cells, self.attributes = [], [], [], []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        self._in_cell = tag == "td"
        if tag == "td":
            self.cells.append("")
        if tag == "section":
            self.sections.append(dict(attrs)["id"])

    def handle_endtag(self, tag):
        self._in_cell = self._in_cell and tag != "td"

    def handle_data(self, data):
        if self._in_cell:
            self.cells[-1] += data


def report(folder, records, *words):
    """The page that these records make."""
    source = sample_records.write(folder / "records.jsonl", records)
    assert main([str(source), "--out", str(folder / "page.html"), *words]) == 0
    return Elements((folder / "page.html").read_text())


def refused(folder, capsys, *words):
    """What the command complains about."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--out", str(folder / "page.html")])
    assert ended.value.code == 2
    assert not (folder / "page.html").exists()
    return capsys.readouterr().err


def test_the_command_starts_in_a_process_of_its_own():
    """Nothing has imported study there before, whose modules use some of the report."""
    words = [sys.executable, "-m", "trec_qcomm", "report", "--help"]
    assert "usage: " in subprocess.run(words, check=True, capture_output=True, text=True).stdout


def test_every_kind_of_record_becomes_a_figure_in_page_and_png(tmp_path):
    """stock takes 2 + 600 / rate and int4 2.4 + 160 / rate, equal at 1100 Mbit/s."""
    page = report(tmp_path, sample_records.everything(), "--png", str(tmp_path / "png"))
    assert page.sections == [*KEYS, "records"]
    assert page.names.count("svg") == len(KEYS)
    for key in KEYS:
        assert (tmp_path / "png" / f"{key}.png").read_bytes().startswith(b"\x89PNG")
    cells = f"|{'|'.join(page.cells)}|"
    for row in (
        "int4|100 Mbit/s|3960|4000|4040|2|1.1 Gbit/s",
        "int4|no limit|2376|2400|2424|0.833333|1.1 Gbit/s",
        "float32, all bags|0.6|0.6|0.3|0.1|1.6|–|–|1",
        "int4|0.03|0.03|0.3|0.1|0.46|1|0.46|3.47826",
        "stock|0|3|0.7|0.6|0.5|0|0.9",
        "network|4|abc1234|torch 2.13.0|cpu x86_64",
    ):
        assert f"|{row}|" in cells


def test_a_folder_of_every_kind_that_is_written_and_of_a_search_is_drawn(tmp_path):
    """Each stage of a search is a study of its own, so the plan's line has its own verdict."""
    result = trec_qcomm.search(
        lambda *case: {"logloss": planted.train(*case).metrics["loss"]}, budget=0.02, use=1.0,
        candidates=CANDIDATES, path=tmp_path / "search", metrics=["logloss"], show_progress=False,
    )  # fmt: skip
    append(tmp_path / "every.jsonl", *EVERY_KIND)
    append(tmp_path / "more.jsonl", *sample_records.everything())
    written = {kind for kind, t in Record.kinds.items() if t.__module__.startswith("trec_qcomm.")}
    assert {record.kind for record in read_all([tmp_path])} == written
    assert main([str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    page = Elements((tmp_path / "page.html").read_text())
    # Bytes are joined from one setup, here one whose study has no baseline.
    assert set(page.sections) >= {*KEYS} - {"rate-distortion"}
    (verdict,) = result.plan.verified.values()
    cells = "|".join(page.cells)
    assert re.search(rf"\|plan-[0-9a-f]+\|{verdict.n}\|[^a-zA-Z]*\|PASS\|–\|", cells)


def test_the_page_asks_for_nothing_and_escapes_what_it_shows(tmp_path):
    records = [
        dataclasses.replace(r, configuration=EVIL) if r.configuration == "int4" else r
        for r in sample_records.everything()
    ]
    page = report(tmp_path, records, "--title", EVIL)
    assert not {"script", "iframe", "object", "embed", "img", "form"} & set(page.names)
    assert EVIL in page.cells
    asked = [value for name, value in page.attributes if name in ("src", "href", "xlink:href")]
    assert all(value.startswith("#") for value in asked)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": "fast"}, "rate: expected a number and bit"),
        ({"sent_nbytes": ()}, "sent_nbytes: expected a number a host"),
    ],
)
def test_a_record_that_cannot_be_drawn_names_its_file_and_line(tmp_path, capsys, changes, message):
    """What a record may hold is tested where it is read, in tests/lab/records."""
    path = tmp_path / "odd.jsonl"
    sample_records.write(path, [sample_records.training(), sample_records.network(**changes)])
    assert f"odd.jsonl, line 2, {message}" in refused(tmp_path, capsys, path)
    path.write_text('{"shape": 1}\n')
    assert "odd.jsonl, line 1: version: missing" in refused(tmp_path, capsys, path)


def test_two_trainings_of_a_users_own_are_drawn(tmp_path):
    """In three lines each; without any option of the examples."""
    path = tmp_path / "runs" / "mine.jsonl"
    qcomm = trec_qcomm.QComm.from_yaml(ROOT / "configs" / "int4.yaml")
    sent = sample_records.traffic(dense=(4e6, 4e6, 1e6))
    for name, plugin, ne in (("stock", None, 0.8), ("mine", qcomm, 0.81)):
        record = TrainingRecord.from_qcomm(
            plugin, name=name, setup={"batch_size": 32}, losses=[0.7, 0.6, 0.5], metrics={"ne": ne},
            traffic=sent if plugin else None,
        )  # fmt: skip
        append(path, record)
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    page = Elements((tmp_path / "page.html").read_text())
    assert page.sections == ["traffic", "losses", "records"]
    cells, where = "|".join(page.cells), "1 rank, 32 samples each, 3 steps"
    assert f"{where}|mine|0|0|1|0|1|4|–|4|" in cells
    assert f"{where}|mine|0|3|0.7|0.6|0.5|0|0.81|" in cells


def test_what_cannot_be_read_or_drawn_is_said(tmp_path, capsys, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no *.jsonl in this folder" in refused(tmp_path, capsys, empty)
    assert "no such file or folder" in refused(tmp_path, capsys, tmp_path / "absent.jsonl")
    sample_records.write(empty / "a.jsonl", [ProgressRecord(configuration="a", step=1)])
    assert "no figure can be made of these 1 records" in refused(tmp_path, capsys, empty)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'matplotlib>=3.8'" in refused(tmp_path, capsys, empty)
