"""The scripts of the papers at toy size: each part measures, goes on, and shows its claims."""

import sys
from dataclasses import replace
from functools import partial

import pytest

from examples.papers import command, measurements, readme
from examples.papers.claims import FAILS, HOLDS, OPEN, Claim
from examples.papers.dct import PAPER as DCT
from examples.papers.kdd20 import PAPER as KDD20
from examples.papers.measured import (
    activations,
    feedback,
    grain,
    ranks,
    scopes,
    threshold_time,
    traffic,
)
from examples.papers.measurements import MeasuredPart
from examples.papers.parts import Paper, Request
from examples.papers.thresholds import configs as thresholds
from examples.papers.trainings import TrainingPart

TOY = [
    *("--rows", "1024", "--batch-size", "32", "--ranks", "2", "--embedding-dim", "4"),
    *("--dense-arch", "8", "--over-arch", "8"),
]


def run(monkeypatch, capsys, paper, *words):
    """Return exit status, output and errors of a script."""
    monkeypatch.setattr(sys, "argv", ["paper.py", *map(str, words)])
    try:
        status = command.main(paper, "A paper.")
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    return status, said.out, said.err


def of_part(paper, name):
    (part,) = [part for part in paper.parts if part.name == name]
    return part


@pytest.mark.parametrize("paper", readme.papers(), ids=lambda paper: paper.name)
def test_show_prints_the_claims_of_the_page(paper, monkeypatch, capsys):
    status, out, _ = run(monkeypatch, capsys, paper, "--show")
    assert status == 0
    claims = paper.claims()
    assert out.endswith(f"{len(claims)} claims of {len(paper.parts)} parts\n")
    assert out.count("\n| ") == len(claims) + 2  # and the head


@pytest.mark.parametrize("paper", readme.papers(), ids=lambda paper: paper.name)
def test_configs_are_those_of_the_records(paper):
    """A file of records that a changed config would go on with is refused by quality.study."""
    from trec_qcomm import quality

    for part in paper.parts:
        if isinstance(part, TrainingPart):
            configs = part.configs()
            assert set(part.judged(part.committed).verdicts) <= set(configs)
            plan = quality.plan(lambda *_: {}, configs, 50, limits=part.limits)
            first = part.judged(part.committed).records[0]
            plan = replace(plan, setup=first.setup, num_ranks=first.num_ranks)
            assert plan.read(part.committed)


def test_a_part_trains_goes_on_and_decides(tmp_path, monkeypatch, capsys):
    part = of_part(KDD20, "together")
    paper = Paper("toy", "A toy", [part])
    words = ["--seeds", 1, "--out", tmp_path, *TOY]
    status, out, err = run(monkeypatch, capsys, paper, *words)
    assert status == 0
    assert "together (1 of 1 parts)" in err
    assert OPEN in out
    assert "about 16 seeds" in out
    before = (tmp_path / "together.jsonl").read_text()
    assert before.count("\n") == 3
    assert run(monkeypatch, capsys, paper, *words)[:2] == (0, out)
    assert (tmp_path / "together.jsonl").read_text() == before
    status, shown, _ = run(monkeypatch, capsys, paper, "--show", "--out", tmp_path)
    assert (status, shown.splitlines()[:-1]) == (0, out.splitlines()[:-1])
    status, _, err = run(monkeypatch, capsys, paper, *words, "--embedding-dim", 8)
    assert status == 2
    assert "runs with other embedding_dim" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--show", "--rows", "99"], "--rows 99: --show measures nothing"),
        (["--seeds", "0"], "--seeds 0: expected 1 or more"),
        (["--parts", "none"], "invalid choice: 'none'"),
    ],
)
def test_words_that_cannot_be(words, message, monkeypatch, capsys):
    status, _, err = run(monkeypatch, capsys, KDD20, *words)
    assert status == 2
    assert message in err


def measured(cases, folder):
    def decide(values):
        return [
            Claim(text=n, source="ours", setting="", result="", verdict="holds") for n in values
        ]

    return MeasuredPart("part", "a part", lambda _: cases, decide, folder / "committed.jsonl")


def test_a_measured_part_goes_on_after_an_interrupt(tmp_path, monkeypatch, capsys):
    calls = []

    def case(name, fails=False):
        calls.append(name)
        if fails:
            raise KeyboardInterrupt
        return {"value": 1.5}

    cases = {"a": partial(case, "a"), "b": partial(case, "b", fails=True)}
    paper = Paper("toy", "A toy", [measured(cases, tmp_path)])
    status, _, err = run(monkeypatch, capsys, paper, "--out", tmp_path)
    assert status == command.INTERRUPTED
    assert f"the same command goes on with {tmp_path}" in err
    cases["b"] = partial(case, "b")
    status, out, _ = run(monkeypatch, capsys, paper, "--out", tmp_path)
    assert (status, calls) == (0, ["a", "b", "b"])
    assert "2 claims of 1 parts" in out


@pytest.mark.parametrize("line", ["[]", "{}", '{"case": "a", "values": {"x": "y"}}', "nonsense"])
def test_a_line_that_is_no_measurement_is_named(line, tmp_path):
    path = tmp_path / "records.jsonl"
    measurements.append(path, "a", {"x": 1.0})
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"records\.jsonl, line 2: no measurement"):
        measurements.read(path)


def test_errors_by_ranks_and_grain_at_toy_size():
    by_ranks = {name: case() for name, case in ranks.cases(1, (2, 16)).items()}
    errors = {name: values["seed 0"] for name, values in by_ranks.items()}
    assert 0 < errors["recursive_doubling nearest 16"] < errors["ring nearest 16"] < 1
    assert len(of_part(KDD20, "ranks").decide(by_ranks)) == 4
    by_grain = {name: case() for name, case in grain.cases(1).items()}
    for kind in grain.KINDS:
        fine, coarse = (by_grain[f"{kind}, {g}"] for g in ("32", "tensor"))
        assert 0 < fine["seed 0"] < coarse["seed 0"] < 1
        assert fine["bytes a value"] > coarse["bytes a value"] > 0.5
    assert len(of_part(KDD20, "grain").decide(by_grain)) == len(grain.KINDS)


def test_what_was_sent_and_what_is_kept_are_what_there_was(monkeypatch):
    monkeypatch.setattr(feedback, "NUM_STEPS", 10)
    cases = of_part(KDD20, "telescoping").cases(Request())
    for name in ("all-to-all, 2 bits", "recursive_doubling, 2 bits"):
        values = cases[name]()
        assert values["kept"] < 1e-5 < 0.05 < values["lost"]


def test_neurons_are_dense_autograd_with_a_mask():
    values = {"0.1": activations.measured(0.1, 2)}
    assert values["0.1"]["difference"] == 0
    assert values["0.1"]["ratio"] > 10
    (claim,) = of_part(DCT, "neurons").decide(values)
    assert claim.verdict == HOLDS
    values["0.1"] = values["0.1"] | {"difference": 1e-6}
    (claim,) = of_part(DCT, "neurons").decide(values)
    assert claim.verdict == FAILS


def test_bytes_of_both_at_once():
    words = ("--rows", "1024", "--ranks", "2", "--batch-size", "64", "--dense-arch", "64-16")
    config = thresholds.hybrid()["hybrid"]
    ratios = traffic.ratios(config, (*words, "--over-arch", "64", "--steps", "3"))
    assert ratios["backward"] > ratios["rows"] > ratios["forward"] > 4
    assert ratios["dense"] > 4
    claims = of_part(DCT, "bytes").decide({"hybrid 0.01 and 0.1": ratios})
    assert [claim.verdict for claim in claims] == [HOLDS]


def test_thresholds_at_toy_size():
    kept = {scope: {"seed 0": scopes.kept(scope, 0)} for scope in ("layer", "global")}
    assert 0.01 < kept["layer"]["seed 0"] < kept["global"]["seed 0"] < 1
    assert of_part(DCT, "scopes").decide(kept)[0].verdict == HOLDS
    times = {name: case() for name, case in threshold_time.cases(20_000).items()}
    assert min(value for values in times.values() for value in values.values()) > 0
    assert len(of_part(DCT, "time").decide(times)) == 2
