"""sc24.py: what its parts measure, on rows whose answers are known, and all of it at toy size."""

import math
import sys
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from examples.bench.codecs.workload import Batch
from examples.papers import pages, sc24
from examples.papers.claims import FAILS, HOLDS, OPEN
from examples.papers.command import main
from examples.papers.dual_level import (
    cases,
    classes,
    distributions,
    encoders,
    figures,
    forward,
    prediction,
    ratio,
    schedules,
    verdicts,
)
from examples.papers.dual_level.setting import parts_of
from examples.papers.measurements import MeasuredPart, append
from examples.papers.pages import Drawing, write_page
from examples.papers.parts import Paper
from trec_qcomm.ext.dual_level.schedule import Constant
from trec_qcomm.lab.preview import selector
from trec_qcomm.lab.preview.selector import Measurement, Throughput
from trec_qcomm.lab.report.style import DIGEST

DIM = 8


def batch_of(tables, ids=None):
    ids = ids or {name: torch.arange(len(rows)) for name, rows in tables.items()}
    return Batch(tables, {name: torch.zeros_like(rows) for name, rows in tables.items()}, ids)


@pytest.fixture
def rows():
    return torch.randn(256, DIM, generator=torch.Generator().manual_seed(0))


def test_ratio_of_rows_that_repeat(rows):
    """Each of 32 rows comes 8 times: sent once they are 8 times smaller, by any encoder."""
    ids = torch.arange(256) % 32
    values = ratio.ratios([batch_of({"t": rows[ids]}, {"t": ids})], "0.01")
    for name in ("bitpack", "rans", "huffman"):
        assert values[f"distinct_{name}"] > 3 * values[name]
    assert values["vector_lz"] > 3 * values["bitpack"]  # which sends copies as distances
    assert values["best"] == max(values["vector_lz"], values["rans"])


def test_huffman_arrives(rows):
    """What is counted can be decoded, and is not below the entropy."""
    integers = ratio.codes(rows, 0.01)
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    data = coder.compress(integers.astype(np.int8).tobytes()) + coder.flush()
    assert ratio.huffman_nbytes(rows, 0.01) == len(data) + 4
    assert np.array_equal(
        np.frombuffer(zlib.decompress(data, -15), np.int8).reshape(-1, DIM), integers
    )
    assert 8 * len(data) >= prediction.entropy([integers]) * rows.numel()


def test_codes_are_within_the_bound(rows):
    spread = float(rows.max() - rows.min())
    decoded = ratio.codes(rows, 0.03) * 2 * 0.03 * spread
    assert np.abs(decoded - rows.double().numpy()).max() <= 0.03 * spread * (1 + 1e-12)
    assert not ratio.codes(torch.ones(3, DIM), 0.03).any()
    with pytest.raises(ValueError, match="finite"):
        ratio.codes(torch.full((1, DIM), math.nan), 0.03)


def test_classes_know_small_and_large():
    sizes = {"small": 5, "large": 5000, "larger": 50_000}
    values = classes.agreement(sizes, {"small": 1.0, "large": 0.5, "larger": 0.3})
    assert values["rank_correlation"] == pytest.approx(-1)
    assert (values["num_large_tight"], values["num_small_loose"]) == (2, 1)
    assert values["num_large_lowest"] == 1
    assert [c.verdict for c in verdicts.classes({"case": values})] == [HOLDS]
    opposite = classes.agreement(sizes, {"small": 0.3, "large": 0.99, "larger": 1.0})
    assert [c.verdict for c in verdicts.classes({"case": opposite})] == [FAILS]
    equal = classes.agreement(sizes, dict.fromkeys(sizes, 1.0))
    assert [c.verdict for c in verdicts.classes({"case": equal})] == [OPEN]


def test_rank_correlation_of_ties():
    assert classes.rank_correlation([1, 1, 2], [1, 1, 2]) == pytest.approx(1)
    assert classes.rank_correlation([1, 1, 2], [0, 2, 1]) == pytest.approx(0)
    assert classes.rank_correlation([1, 1, 1], [1, 2, 3]) == 0


def test_prediction_pays_only_where_neighbours_are_alike(rows):
    smooth = torch.arange(64.0)[:, None].repeat(1, DIM)
    along = prediction.bits([[smooth]], 0.01)
    assert along["rows"] < 1 < 5 < along["none"]
    independent = prediction.bits([[rows]], 0.01)
    assert independent["columns"] > independent["none"]
    assert independent["rows"] > independent["none"]


@pytest.mark.parametrize("name", prediction.PREDICTIONS)
def test_differences_can_be_undone(rows, name):
    integers = ratio.codes(rows, 0.01)
    back = prediction.differences(integers, name)
    if name in ("rows", "both"):
        back = np.cumsum(back, axis=0)
    if name in ("columns", "both"):
        back = np.cumsum(back, axis=1)
    assert np.array_equal(back, integers)


def test_distribution_of_known_values():
    """Uniform values are told from those of a Gaussian, and all of them are counted."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(4000, DIM, generator=generator) * 2 - 1
    normal = torch.randn(4000, DIM, generator=generator) - 1
    for rows, is_gaussian in ((uniform, False), (normal, True)):
        values = distributions.distribution([rows[:1000], rows[1000:]])
        assert sum(n for key, n in values.items() if key.startswith("bin ")) == rows.numel()
        assert values["largest"] == pytest.approx(rows.abs().max().item())
        gaussian, flat = distributions.distances(values)
        assert min(gaussian, flat) < 0.02 < 0.1 < max(gaussian, flat)
        assert (gaussian < flat) == is_gaussian
    zeros = distributions.shares_of(distributions.distribution([torch.zeros(3, DIM)]))
    assert zeros[distributions.NUM_BINS // 2] == 1
    with pytest.raises(ValueError, match="finite"):
        distributions.distribution([torch.full((1, DIM), math.nan)])


def test_terabyte_beside_kaggle():
    """The claim needs every pair, and each pair to be at least as small."""
    ratios = dict.fromkeys((*ratio.ENCODERS, "best", "distinct_rans"), 2.0)
    names = [f"{s}, SGD, classes" for s in ("dim 32, batch 128", "dim 64, batch 2048")]
    assert verdicts.terabyte({names[0]: ratios}) == []
    for best, expected in ((2.5, HOLDS), (1.5, FAILS)):
        (claim,) = verdicts.terabyte({names[0]: ratios, names[1]: ratios | {"best": best}})
        assert claim.verdict == expected
        assert f"best 2.0x {best}x" in claim.result


def test_figures_of_a_toy_record(tmp_path, rows):
    """Three figures on a page, whose numbers are those of the records."""
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("distributions", "drift")}
    with pytest.raises(ValueError, match="make no figure"):
        write_page("Toy", figures.draw(paths), tmp_path / "page.html")
    for table, index in (("small", 1.0), ("large", 0.5)):
        numbers = {"num_rows": 7, "index": index, **distributions.distribution([rows])}
        append(paths["distributions"], f"SGD, {table}", numbers)
    for share in ("0", "1"):
        append(paths["drift"], f"SGD, {share}", {key: 0.5 for key, _ in figures._DRIFT})
    drawing = figures.draw(paths)
    tables, histograms, drift = drawing.figures
    assert tables.rows == [("SGD", "small", 7, 1.0, "loose"), ("SGD", "large", 7, 0.5, "tight")]
    assert sum(row[-1] for row in histograms.rows) == pytest.approx(2)  # two classes
    assert drift.rows == [("SGD", 0.0, *[0.5] * 4), ("SGD", 1.0, *[0.5] * 4)]
    assert "3 figures" in write_page("Toy", drawing, tmp_path / "page.html")
    assert "<svg" in (tmp_path / "page.html").read_text()
    for figure in drawing.figures:
        assert (tmp_path / "page_png" / f"{figure.key}.png").stat().st_size > 1000


def test_pictures_show_the_records():
    """`make pictures` draws them again."""
    drawing = figures.draw({part.name: part.committed for part in sc24.PAPER.parts})
    page = (sc24.RECORDS.parents[1] / "README.md").read_text()
    for figure in drawing.figures:
        with Image.open(sc24.RECORDS / f"{figure.key}.png") as picture:
            assert picture.info[DIGEST] == figure.digest
        assert f"](results/sc24/{figure.key}.png)" in page


def test_encoder_by_link():
    """A slow link takes the smaller bytes, a fast one the faster encoder; seconds add up."""
    small = Measurement(
        compression_ratio=20, throughput=Throughput(encode_gb_s=0.1, decode_gb_s=0.1)
    )
    fast = Measurement(compression_ratio=5, throughput=Throughput(encode_gb_s=100, decode_gb_s=100))
    by_table = {"t": {"bitpack": fast, "vector_lz": small, "rans": small}}
    slow_link, fast_link = (encoders.on_link(by_table, gbit) for gbit in (0.001, 100.0))
    assert slow_link["tables_vector_lz"] == fast_link["tables_bitpack"] == 1
    assert slow_link["ratio_choice"] == pytest.approx(20)
    assert slow_link["speed_up_choice"] == slow_link["speed_up_vector_lz"]
    assert encoders.end_to_end(1.0) == pytest.approx(1)
    assert encoders.end_to_end(math.inf, share=0.5) == pytest.approx(4 / 3)


def test_schedules_have_equal_means():
    for kind in schedules.KINDS:
        schedule = schedules.schedule_of(kind, 500)
        assert schedule.multiplier(0) == 2
        assert schedule.multiplier(500) == 1
        mean = schedules.mean_log2(schedule, 500)
        assert abs(mean - schedules.MEAN_LOG2) < 1 / 250  # a step more, or less, of the end
    assert schedules.mean_log2(Constant(), 500) == 0


def test_parts_of_drops_the_rest(rows):
    whole = batch_of({"t": rows})
    parts = parts_of(whole, 100)
    assert [len(part.ids["t"]) for part in parts] == [100, 100]
    assert torch.equal(parts[1].rows["t"], rows[100:200])
    with pytest.raises(ValueError, match="less than a batch of 300"):
        parts_of(whole, 300)


def test_toy_run(monkeypatch, tmp_path, capsys):
    """All parts that measure here do so on synthetic rows, and a second call measures nothing."""
    monkeypatch.setattr(cases, "OPTIMIZERS", {"SGD": ()})
    monkeypatch.setattr(selector, "MEASURED_REPEATS", 1)
    monkeypatch.setattr(selector, "_TIMED_NBYTES", 1)
    parts = [part.name for part in sc24.PAPER.parts if isinstance(part, MeasuredPart)]
    words = ["--rows", "4096", "--steps", "4", "--dense-arch", "8", "--over-arch", "8"]
    command = ["sc24.py", "--parts", *parts, "--out", str(tmp_path), *words]
    monkeypatch.setattr(sys, "argv", command)
    assert main(sc24.PAPER, "sc24") == 0
    output = capsys.readouterr()
    assert "SZ3 is better without its prediction" in output.out
    before = {path.name: path.read_text() for path in tmp_path.glob("*.jsonl")}
    assert len(before) == len(parts)
    assert "report.html: 3 figures" in output.out
    assert main(sc24.PAPER, "sc24") == 0
    assert {path.name: path.read_text() for path in tmp_path.glob("*.jsonl")} == before


@pytest.mark.parametrize("words", [["--show"], ["--parts", "ratio"]])
def test_a_page_that_cannot_be_is_said_before_any_work(words, monkeypatch, tmp_path, capsys):
    page = tmp_path / "missing" / "page.html"
    monkeypatch.setattr(cases, "Rows", None)  # which all cases need
    monkeypatch.setattr(sys, "argv", ["sc24.py", *words, "--report", str(page)])
    with pytest.raises(SystemExit):
        main(sc24.PAPER, "sc24")
    assert "page.html: expected a file in a folder that exists" in capsys.readouterr().err


def test_a_run_without_matplotlib_says_so(monkeypatch, tmp_path, capsys):
    """The records and claims of the run are there, and its exit status is 0."""
    paper = Paper("toy", "A toy", sc24.PAPER.parts[:1], lambda _: Drawing([]))
    monkeypatch.setattr(cases, "OPTIMIZERS", {})

    def absent():
        raise ValueError("matplotlib is not installed")

    monkeypatch.setattr(pages, "matplotlib", absent)
    monkeypatch.setattr(sys, "argv", ["toy.py", "--out", str(tmp_path)])
    assert main(paper, "toy") == 0
    assert "no page: matplotlib is not installed" in capsys.readouterr().out
    assert (tmp_path / "claims.md").exists()


def test_committed_records_decide_every_claim():
    claims = sc24.PAPER.claims()
    assert len(claims) >= 16
    assert not any("nan" in claim.result for claim in claims)


def _steps(rate, share, stock, ours, *, optimizer="sgd"):
    """Return records of a run of the three trainings over one link."""
    return [
        SimpleNamespace(
            configuration=name, rate=rate, step_s=SimpleNamespace(p50=seconds),
            breakdown_s={"all-to-all": share * seconds}, setup={
                "embedding_optimizer": optimizer, "lr": 0.1, "dense_optimizer": "sgd",
                "dense_lr": 0.1,
            },
        )
        for name, seconds in (("stock", stock), ("fp32", stock), ("forward", ours))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ([("900mbit", 0.58, 2.4, 1.7), ("500mbit", 0.7, 4.0, 2.0)], HOLDS),
        ([("900mbit", 0.58, 2.4, 2.0), ("500mbit", 0.7, 4.0, 3.0)], FAILS),
        ([("900mbit", 0.58, 2.4, 2.0), ("500mbit", 0.7, 4.0, 2.0)], OPEN),
        # The run that says least counts.
        ([("900mbit", 0.58, 2.4, 1.7), ("900mbit", 0.58, 2.4, 1.8)], OPEN),
        ([("500mbit", 0.7, 4.0, 3.0), ("500mbit", 0.7, 4.0, 2.8)], OPEN),
        # A link whose runs lie on both sides of .6 bounds nothing.
        ([("700mbit", 0.58, 2.4, 1.7), ("700mbit", 0.62, 2.4, 1.7)], OPEN),
        ([("700mbit", 0.58, 2.4, 2.0), ("700mbit", 0.62, 2.4, 2.0)], OPEN),
    ],
)
def test_the_gain_at_the_papers_share_lies_between_links(runs, verdict):
    (claim,) = forward.speed_up([record for run in runs for record in _steps(*run)])
    assert claim.verdict == verdict


def test_each_optimizer_has_its_verdict():
    records = _steps("900mbit", 0.58, 2.4, 1.7)
    records += _steps("900mbit", 0.58, 2.4, 2.0, optimizer="adagrad")
    sgd, adagrad = forward.speed_up(records)
    assert (sgd.verdict, adagrad.verdict) == (HOLDS, OPEN)
    assert "share 0.58: 1.41x (1.00x)" in sgd.result
    assert "share 0.58: 1.20x (1.00x)" in adagrad.result
    with pytest.raises(ValueError, match="900mbit: 1 runs of stock, 1 runs of fp32, 0 runs of for"):
        forward.speed_up(records[:2])


def test_records_without_the_time_of_the_all_to_all_are_refused():
    records = _steps("900mbit", 0.58, 2.4, 1.7)
    records[0].breakdown_s = {}
    with pytest.raises(ValueError, match="900mbit: a run of stock has no time of the all-to-all"):
        forward.speed_up(records)
