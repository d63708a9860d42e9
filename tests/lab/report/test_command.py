"""The command `python -m trec_qcomm report`, and its page in a real browser."""

import dataclasses
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import trec_qcomm
from tests.lab.report import browser, sample_records
from trec_qcomm.lab.records import ProgressRecord, TrainingRecord, append, read_all
from trec_qcomm.lab.report.command import main
from trec_qcomm.lab.report.figures import FIGURE_KINDS
from trec_qcomm.lab.report.runs import runs_of
from trec_qcomm.lab.report.style import DIGEST, Looks

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "examples" / "bench" / "results"

KEYS = (
    "quality", "rate-distortion", "step-time", "traffic", "losses", "tables", "codecs", "debug",
    "debug-distributions", "debug-shadows", "guard", "search", "predicted",
    "scale", "communication", "break-even",
)  # fmt: skip
EVIL = "<script>alert('x')</script>&\"$_{\x07"


def report(folder, records, *words):
    """The page that these records make."""
    source = sample_records.write(folder / "records.jsonl", records)
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
    report(
        folder, sample_records.everything(), "--png", str(folder / "png"), "--title", "A <title>"
    )
    return folder


def test_every_kind_of_record_becomes_a_figure_in_page_and_png(whole):
    page = (whole / "page.html").read_text()
    sections = re.findall(r'<section id="([a-z-]+)"[^>]*><h2>', page)
    assert sections == [*KEYS, "findings", "records"]
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
        "float32, all bags|0.6|0.6|0.3|0.1|1.6|–|–|1",
        "int4|0.03|0.03|0.3|0.1|0.46|1|0.46|3.47826",
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
    first, second = (
        report(tmp_path, [sample_records.codec(), sample_records.training()]) for _ in range(2)
    )
    assert first == second


def test_what_comes_from_a_file_is_escaped(tmp_path):
    environment = dataclasses.replace(sample_records.ENVIRONMENT, commit=EVIL)
    records = [
        dataclasses.replace(r, configuration=EVIL) if r.configuration == "int4" else r
        for r in sample_records.everything()
    ]
    records += [sample_records.codec(EVIL), sample_records.training(environment=environment)]
    page = report(tmp_path, records, "--title", EVIL)
    elements = Elements(page)
    assert "script" not in elements.names
    assert "<script" not in page
    assert "\x07" not in page
    assert EVIL.replace("\x07", "\ufffd") in elements.cells


def test_a_kind_without_records_is_named(tmp_path, capsys):
    page = report(tmp_path, [sample_records.codec()])
    said = capsys.readouterr()
    absent = [kind.name for kind in FIGURE_KINDS if kind.name != "codec throughput"]
    for name in absent:
        assert f"missing: {name}; it needs " in said.err
        assert name in page[page.index('id="missing"') :]
    assert said.out.splitlines()[-1].endswith(f"missing: {', '.join(absent)}")
    assert "1 figures of 1 records" in said.out
    assert "missing: codec" not in said.err


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
    sample_records.write(path, [sample_records.codec(), sample_records.network(**changes)])
    assert f"odd.jsonl, line 2, {message}" in refused(tmp_path, capsys, path)
    path.write_text('{"shape": 1}\n')
    assert "odd.jsonl, line 1: version: missing" in refused(tmp_path, capsys, path)


def test_at_most_six_findings_are_in_short_and_the_others_below(whole):
    page = (whole / "page.html").read_text()
    short, below = page.index("In short"), page.index("More findings")
    assert page[short : page.index("</ul>", short)].count("<li>") == 6
    num_more = page[below : page.index("</ul>", below)].count("<li>")
    assert f"{num_more} more findings stand below the figures" in page
    assert num_more > 0


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
    assert main([str(path), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    sections = re.findall(r'<section id="([a-z-]+)"[^>]*><h2>', page)
    assert sections == ["rate-distortion", "traffic", "losses", "missing", "records"]
    assert "1 rank, 32 samples each, 3 steps|mine|0|0|1|0|1|4|–|4|" in "|".join(
        Elements(page).cells
    )


def test_what_cannot_be_read_or_drawn_is_said(tmp_path, capsys, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no *.jsonl in this folder" in refused(tmp_path, capsys, empty)
    assert "no such file or folder" in refused(tmp_path, capsys, tmp_path / "absent.jsonl")
    sample_records.write(empty / "a.jsonl", [])
    assert "the files hold no record" in refused(tmp_path, capsys, empty)
    sample_records.write(empty / "a.jsonl", [ProgressRecord(configuration="a", step=1)])
    assert "no figure can be made of these 1 records" in refused(tmp_path, capsys, empty)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'matplotlib>=3.8'" in refused(tmp_path, capsys, empty)


def test_folders_are_searched_and_earlier_and_open_runs_are_told(tmp_path):
    inside = tmp_path / "runs" / "deep"
    inside.mkdir(parents=True)
    progress = ProgressRecord(configuration="a", step=1, run="stopped")
    trainings = [sample_records.training(ne=0.8), sample_records.training()]
    sample_records.write(inside / "a.jsonl", [*trainings, progress])
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
    """The numbers must be equal; `make pictures` draws the pictures again."""
    studies = ROOT / "examples/criteo/results"
    records = read_all([RESULTS / "links.jsonl", studies / "dense.jsonl", studies / "best.jsonl"])
    runs, _ = runs_of(records)
    looks = Looks(run.configuration for run in runs)
    figures = [figure for kind in FIGURE_KINDS for figure in kind.build(records, runs, looks)]
    (figure,) = (figure for figure in figures if figure.key == name)
    picture = RESULTS / f"{name}.png"
    assert png_texts(picture) == {DIGEST: figure.digest}
    assert picture.stat().st_size < 60_000
    (path,) = re.findall(rf"\]\((\S+{name}\.png)\)", (ROOT / page).read_text())
    assert ((ROOT / page).parent / path).resolve() == picture.resolve()


def png_texts(path):
    """The tEXt chunks: length, type, keyword, 0, text, checksum."""
    data, at, texts = path.read_bytes(), 8, {}
    while at < len(data):
        size, kind = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        if kind == b"tEXt":
            name, _, text = data[at + 8 : at + 8 + size].partition(b"\0")
            texts[name.decode()] = text.decode()
        at += size + 12
    return texts


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
    """Return the luminance as WCAG defines it. Args: color: text such as rgb(r, g, b)."""
    channels = [int(c) / 255 for c in re.findall(r"\d+", color)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
