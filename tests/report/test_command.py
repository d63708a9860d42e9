"""The command `python -m trec_qcomm.report`, and its page in a real browser."""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report import browser, made
from trec_qcomm.report.__main__ import main
from trec_qcomm.report.figures import KINDS
from trec_qcomm.report.records import read_all
from trec_qcomm.report.runs import runs_of
from trec_qcomm.report.style import DIGEST, Looks

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "examples" / "bench" / "results"

KEYS = (
    "quality", "rate-distortion", "step-time", "traffic", "losses", "tables", "codecs", "predicted",
    "scale", "communication", "break-even",
)  # fmt: skip
EVIL = "<script>alert('x')</script>&\"$_{\x07"


def report(folder, records, *words):
    """The page that these records make."""
    source = made.write(folder / "records.jsonl", records)
    assert main([str(source), "--out", str(folder / "page.html"), *words]) == 0
    return (folder / "page.html").read_text()


def refused(folder, capsys, *words):
    """What the command complains about."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--out", str(folder / "page.html")])
    assert ended.value.code == 2
    assert not (folder / "page.html").exists()
    return capsys.readouterr().err


class Elements(HTMLParser):
    """Names and attributes of all elements, the texts of <td>, and ids."""

    def __init__(self, text):
        super().__init__()
        self.names, self.cells, self.attributes = set(), [], []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes += attrs
        if tag == "td":
            self.cells.append("")
        self._in_cell = tag == "td"

    def handle_endtag(self, tag):
        self._in_cell = self._in_cell and tag != "td"

    def handle_data(self, data):
        if self._in_cell:
            self.cells[-1] += data


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with the page of records of every kind."""
    folder = tmp_path_factory.mktemp("whole")
    report(folder, made.everything(), "--png", str(folder / "png"), "--title", "A <title>")
    return folder


def test_every_kind_of_record_becomes_a_figure_in_page_and_png(whole):
    page = (whole / "page.html").read_text()
    assert re.findall(r'<section id="([a-z-]+)"><h2>', page) == [*KEYS, "records"]
    for key in KEYS:
        assert (whole / "png" / f"{key}.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("<details>") == page.count("<figcaption>") == page.count("<svg ") == len(KEYS)
    assert page.count('aria-label="') == len(KEYS)
    assert "a model, not a measurement" in page
    assert "abc1234" in page
    assert "torch 2.13.0" in page


def test_tables_say_what_the_records_say(whole):
    """stock takes 2 + 600 / rate and int4 2.4 + 160 / rate, equal at 1100 Mbit/s."""
    cells = "|".join(Elements((whole / "page.html").read_text()).cells)
    for row in (
        "int4|100 Mbit/s|3960|4000|4040|2|1.1 Gbit/s",
        "int4|no limit|2376|2400|2424|0.833333|1.1 Gbit/s",
        "float32, all bags|0.3|0.3|0.3|0.1|1|–|1",
        "int4|0.03|0.03|0.3|0.1|0.46|0.46|2.17391",
        "stock|0|3|0.7|0.6|0.5|0",
        "fp32|small|4|–|0.03|32",
        "1|ours|yes|8|1|2|4|1|3|5|0.75|1.5",
        "int4|2|1gbit|1000|1500|50|no",
        "stock|64|tw|100|256|25",
        "int4|stock|8|tw|below|300",
    ):
        assert f"|{row}|" in cells


def test_the_page_asks_for_nothing(whole):
    page = (whole / "page.html").read_text()
    assert "//" not in page.replace("'none'", "")
    elements = Elements(page)
    assert not elements.names & {"script", "iframe", "object", "embed", "img", "form"}
    asked = [v for n, v in elements.attributes if n in ("src", "href") and not v.startswith("#")]
    assert asked == ["data:,"]
    ids = [value for name, value in elements.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(ids)


def test_the_same_records_make_the_same_page(tmp_path):
    first, second = (report(tmp_path, [made.codec(), made.training()]) for _ in range(2))
    assert first == second


def test_what_comes_from_a_file_is_escaped(tmp_path):
    records = [r | {"way": EVIL} if r.get("way") == "int4" else r for r in made.everything()]
    records += [made.codec(EVIL), made.training() | {"commit": EVIL}]
    page = report(tmp_path, records, "--title", EVIL)
    elements = Elements(page)
    assert "script" not in elements.names
    assert "<script" not in page
    assert "\x07" not in page
    assert EVIL.replace("\x07", "\ufffd") in elements.cells


def test_a_kind_without_records_is_named(tmp_path, capsys):
    page = report(tmp_path, [made.codec()])
    said = capsys.readouterr()
    absent = [kind.name for kind in KINDS if kind.name != "codec throughput"]
    for name in absent:
        assert f"missing: {name}; it needs " in said.err
        assert name in page[page.index('id="missing"') :]
    assert said.out.splitlines()[-1].endswith(f"missing: {', '.join(absent)}")
    assert "1 figures of 1 records" in said.out
    assert "missing: codec" not in said.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"shape": 1}', "not a record that is known, by its fields: shape"),
        ('{"bench": "other", "name": "a"}', "not a record that is known"),
        ('{"kind": "fin', "not JSON"),
        ("[1]", "expected an object, got list"),
        (json.dumps(made.codec(ratio="8")), "ratio, of a codec record: expected a number, got '8'"),
        (json.dumps(made.codec(dim=True)), "dim, of a codec record: expected an integer, got True"),
        (json.dumps(made.network(rate="fast")), "rate: expected a number and bit"),
        (json.dumps(made.network(sent_nbytes=[])), "sent_nbytes: expected a number a host"),
        (json.dumps(made.network(counted={"dense": {}})), "a field is missing or of another type"),
        (json.dumps(made.training(metrics={"on": {}})), "metrics.on.ne: missing"),
        (json.dumps({"simulate": "scale", "way": "a"}), "num_gpus, of a scale record: missing"),
    ],
)
def test_a_line_that_is_no_record_names_its_file_and_place(tmp_path, capsys, line, message):
    path = tmp_path / "odd.jsonl"
    path.write_text(f"{json.dumps(made.codec())}\n\n{line}\n")
    error = refused(tmp_path, capsys, path)
    assert "odd.jsonl, line 3" in error
    assert message in error


def test_what_cannot_be_read_or_drawn_is_said(tmp_path, capsys, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no *.jsonl in this folder" in refused(tmp_path, capsys, empty)
    assert "no such file or folder" in refused(tmp_path, capsys, tmp_path / "absent.jsonl")
    made.write(empty / "a.jsonl", [])
    assert "the files hold no record" in refused(tmp_path, capsys, empty)
    made.write(empty / "a.jsonl", [{"kind": "progress", "step": 1}])
    assert "no figure can be made of these 1 records" in refused(tmp_path, capsys, empty)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'matplotlib>=3.8'" in refused(tmp_path, capsys, empty)


def test_folders_are_searched_and_earlier_and_open_runs_are_told(tmp_path):
    inside = tmp_path / "runs" / "deep"
    inside.mkdir(parents=True)
    progress = {"kind": "progress", "step": 1, "name": "stopped"}
    made.write(inside / "a.jsonl", [made.training(ne=0.8), made.training(), progress])
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "1 runs were measured again later" in page
    assert "Without a final record, and so in no figure: stopped." in page


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("step-time", "README.md"), ("traffic", "examples/bench/README.md"),
        ("rate-distortion", "examples/criteo/README.md"), ("quality", "examples/criteo/README.md"),
    ],
)  # fmt: skip
def test_pictures_of_a_page_show_its_records(name, page):
    """Their numbers, that is; `make pictures` draws them again."""
    records = read_all([RESULTS / "net.jsonl", ROOT / "examples/criteo/results/dense.jsonl"])
    runs, _ = runs_of(records)
    looks = Looks(run.way for run in runs)
    figures = [figure for kind in KINDS for figure in kind.build(records, runs, looks)]
    (figure,) = (figure for figure in figures if figure.key == name)
    picture = RESULTS / f"{name}.png"
    assert png_texts(picture) == {DIGEST: figure.digest}
    assert picture.stat().st_size < 60_000
    (path,) = re.findall(rf"\]\((\S+{name}\.png)\)", (ROOT / page).read_text())
    assert ((ROOT / page).parent / path).resolve() == picture.resolve()


def png_texts(path):
    """The tEXt chunks: length, type, keyword, 0, text, checksum."""
    data, at, found = path.read_bytes(), 8, {}
    while at < len(data):
        size, kind = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        if kind == b"tEXt":
            name, _, text = data[at + 8 : at + 8 + size].partition(b"\0")
            found[name.decode()] = text.decode()
        at += size + 12
    return found


@pytest.fixture(scope="module")
def chromium():
    lacks = browser.missing()
    if lacks:
        pytest.skip(lacks)
    with browser.browser() as session:
        yield session


BOXES = """return [...document.querySelectorAll('figure svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  const drawn = svg.getBBox();
  return [box.width, box.height, drawn.width, drawn.height, svg.querySelectorAll('text').length];
})"""
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
COLORS = """const text = document.querySelector('svg text');
return [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
        getComputedStyle(text).fill]"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_every_figure_and_asks_for_nothing(whole, chromium, width):
    page = whole / "page.html"
    chromium.open(page, width=width)
    assert chromium.run("return window.innerWidth") == width
    boxes = chromium.run(BOXES)
    assert len(boxes) == len(KEYS)
    for box in boxes:
        shown_width, shown_height, *drawn, num_texts = box
        assert min(shown_width, shown_height) > 100
        assert min(drawn) > 100
        assert num_texts > 4
    chromium.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert chromium.run(OVERFLOW) <= 0
    assert chromium.console() == []
    assert set(chromium.requests()) - {"data:,"} == {page.resolve().as_uri()}


@pytest.mark.slow
def test_light_and_dark_are_readable(whole, chromium):
    """Contrast of at least 7 of text and of a figure's text, and other colours in the dark."""
    seen = []
    for dark in (False, True):
        chromium.open(whole / "page.html", width=1280, dark=dark)
        paper, *inks = [luminance(color) for color in chromium.run(COLORS)]
        for ink in inks:
            assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) >= 7
        seen.append(paper)
    assert seen[0] > 0.9 > 0.1 > seen[1]


def luminance(color):
    """As WCAG defines it. Args: color: rgb(r, g, b)."""
    channels = [int(c) / 255 for c in re.findall(r"\d+", color)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
