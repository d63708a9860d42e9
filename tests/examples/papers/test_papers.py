"""Claims as data: the page agrees with the records, what --run measures, how the command ends."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from examples.papers import __main__ as command
from examples.papers import page, run
from examples.papers.claims import PAPERS, SOURCES, Claim, Study, read_paper, table
from examples.papers.decisions import FAILS, HOLDS, OPEN
from trec_qcomm import quality
from trec_qcomm.config import load_preset

TOY = [
    *("--rows", "1024", "--batch-size", "32", "--ranks", "2", "--embedding-dim", "4"),
    *("--dense-arch", "8", "--over-arch", "8"),
]


@pytest.fixture(scope="module")
def papers():
    return {name: read_paper(name) for name in PAPERS}


def ended(capsys, *words):
    """Return exit status, output and errors of the command."""
    try:
        status = command.main(list(map(str, words)))
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    return status, said.out, said.err


# What the records say


def test_the_page_has_the_tables_of_the_records(papers):
    """`python -m examples.papers --write` puts it right."""
    text = page.PAGE.read_text()
    assert page.generated(text, list(papers.values())) == text


def test_every_claim_has_its_verdict_from_committed_records(papers):
    """No claim is lost, and no verdict moves unseen."""
    rows = {name: paper.rows() for name, paper in papers.items()}
    assert {name: len(each) for name, each in rows.items()} == {
        "kdd20": 41, "dct": 26, "sc24": 22, "zionex": 10, "micro21": 8,
    }  # fmt: skip
    assert [len(paper.claims) for paper in papers.values()] == list(map(len, rows.values()))
    counts = Counter(row[4].strip("*") for each in rows.values() for row in each)
    assert counts == {HOLDS: 56, FAILS: 33, OPEN: 18}


def test_every_study_has_committed_records_and_a_claim(papers):
    for paper in papers.values():
        named = {claim.study for claim in paper.claims}
        for name, study in paper.studies.items():
            assert study.committed.exists(), name
            assert name in named


def different_records(path, folder):
    """Return a copy of a file with one record of each configuration and setup, of any seed."""
    lines = {}
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        of_run = ("seed", "training", "evaluation", "environment", "seconds")
        lines[json.dumps([pair for pair in fields.items() if pair[0] not in of_run])] = line
    copy = folder / path.name
    copy.write_text("".join(f"{line}\n" for line in lines.values()))
    return copy


def test_a_run_goes_on_with_the_committed_records(papers, tmp_path):
    """A file of records that a changed config would go on with is refused by quality.study."""
    for paper in papers.values():
        for name, study in paper.studies.items():
            if study.run != "train":
                continue
            configs = run.configs_of(paper, name)
            left_out = set(paper.configurations(name)) - set(configs)
            assert all("_3" in config for config in left_out)  # 3 bits, in `compensation`
            committed = different_records(study.committed, tmp_path)
            first = run.trainings_of(committed)[0]
            plan = quality.plan(
                lambda *_: {}, configs, 50, limits=run.LIMITS, setup=first.setup,
                num_ranks=first.num_ranks,
            )  # fmt: skip
            assert plan.read(committed), name


def test_hours_are_sums_of_the_records(papers):
    paper = papers["sc24"]
    lines = map(json.loads, paper.studies["schedules"].committed.read_text().splitlines())
    total = sum(line["seconds"] for line in lines)
    assert sum(page.seconds(paper, "schedules")) == pytest.approx(total)
    (line,) = (x for x in page.studies_table([paper]).splitlines() if "`schedules`" in x)
    assert line.endswith(f"| `--run` | 112 | {total / 7200:.1f} |")


def test_missing_comments_are_named(papers):
    with pytest.raises(ValueError, match=r"expected <!-- claims of kdd20 --> "):
        page.generated("no comments", [papers["kdd20"]])


# The data


CLAIM = {"study": "s", "text": "It pays", "by": "ours", "setting": "toy"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rule": "ratio", "by": "hearsay"}, ", ".join(SOURCES)),
        ({"rule": "luck"}, "rule 'luck': expected one of telescoping, "),
        ({}, "expected one of no_loss, lower, rule"),
        ({"rule": "ratio", "no_loss": ["a"]}, "expected one of no_loss, lower, rule"),
    ],
)
def test_claims_that_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        Claim(**(CLAIM | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"run": "fast"}, "run 'fast': expected one of train"), ({}, "one of run, made_by")],
)
def test_studies_that_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        Study(about="a toy", records="none", **fields)


def test_a_claim_is_a_line_of_the_table():
    head, rule, line = table(("a", "b"), [("+1 | 2", "x")]).splitlines()
    assert len(re.findall(r"(?<!\\)\|", line)) == head.count("|") == rule.count("|")


# The command


def test_show_prints_the_claims_and_a_last_line(papers, capsys):
    status, out, _ = ended(capsys, "zionex", "--studies", "four", "repeats")
    assert status == 0
    assert out.count("\n| ") == 2 + 2  # and the head
    last = out.splitlines()[-1]
    assert last == f"2 claims of the committed records: 2 {HOLDS}, 0 {FAILS}, 0 {OPEN}"


def test_check_tells_what_differs_and_write_puts_it_right(tmp_path, monkeypatch, capsys):
    copy = tmp_path / "README.md"
    copy.write_text(page.PAGE.read_text().replace("| **holds** |", "| **probably** |", 1))
    monkeypatch.setattr(page, "PAGE", copy)
    said = [ended(capsys, word)[:2] for word in ("--check", "--write", "--check")]
    assert [status for status, _ in said] == [1, 0, 0]
    assert [text.split()[-1] for _, text in said] == ["--write", "written", "records"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["kdd"], "paper kdd: expected one of kdd20, dct"),
        (["kdd20", "--studies", "bytes"], "study bytes: expected some of "),
        (["kdd20", "--", "--rows", "99"], "--rows 99: nothing is measured without --run"),
        (["kdd20", "--seeds", "0"], "--seeds 0: expected 1 or more"),
        (["kdd20", "--studies", "grain", "--run"], "kdd20/grain: --run does not measure it"),
        (["micro21", "--run"], "--run measures no study of these papers"),
    ],
)
def test_words_that_cannot_be(words, message, capsys):
    status, _, err = ended(capsys, *words)
    assert status == 2
    assert message in err


def test_a_study_trains_goes_on_and_decides(tmp_path, capsys):
    words = ["kdd20", "--studies", "together", "--run", "--seeds", 1, "--out", tmp_path, "--", *TOY]
    status, out, err = ended(capsys, *words)
    assert status == 0
    assert "[1/1] kdd20/together: all three" in err
    assert "about 16 seeds" in out
    assert out.endswith(f"1 claims of {tmp_path}: 0 {HOLDS}, 0 {FAILS}, 1 {OPEN}\n")
    path = tmp_path / "kdd20" / "together.jsonl"
    before = path.read_text()
    assert before.count("\n") == 3
    assert ended(capsys, *words)[:2] == (0, out)
    assert path.read_text() == before
    assert ended(capsys, "kdd20", "--out", tmp_path)[:2] == (0, out)
    status, _, err = ended(capsys, *words, "--embedding-dim", 8)
    assert status == 2
    assert "runs with other embedding_dim" in err


def test_a_measurement_goes_on_after_an_interrupt(tmp_path, monkeypatch, capsys):
    calls = []

    def fewer(config, words):
        calls.append(config)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {"dense": 36.0, "rows": 15.0}

    monkeypatch.setattr(run, "times_fewer", fewer)
    words = ["dct", "--studies", "bytes", "--run", "--out", tmp_path]
    status, _, err = ended(capsys, *words)
    assert status == command.INTERRUPTED
    assert f"the same command goes on with {tmp_path}" in err
    assert ended(capsys, "dct", "--out", tmp_path)[1].endswith(f"0 {OPEN}\n")  # not all is there
    status, out, _ = ended(capsys, *words)
    assert (status, len(calls)) == (0, 1 + 9)  # the case that was interrupted, again
    assert out.count("\n| ") == 4 + 2
    assert len((tmp_path / "dct" / "bytes.jsonl").read_text().splitlines()) == 9


def test_a_config_that_this_version_does_not_read_is_left_out(papers, monkeypatch, capsys):
    read = run.read_config

    def reads_no_3_bits(content):
        if "bits: 3" in str(content).replace("'", ""):
            raise ValueError("bits 3: expected one of 2, 4, 8")
        return read(content)

    monkeypatch.setattr(run, "read_config", reads_no_3_bits)
    configs = run.configs_of(papers["kdd20"], "compensation")
    assert set(configs) == {
        f"{w}_2{c}" for w in ("backward", "forward") for c in ("", "_compensated")
    }
    assert "kdd20/compensation: without forward_3: bits 3" in capsys.readouterr().err


# What is measured


def test_bytes_of_both_at_once(papers):
    config = run.configs_of(papers["dct"], "bytes")["hybrid 0.01 and 0.1"]
    words = ("--rows", "1024", "--ranks", "2", "--batch-size", "64", "--dense-arch", "64-16")
    ratios = run.times_fewer(config, (*words, "--over-arch", "64", "--steps", "3"))
    assert ratios["backward"] > ratios["rows"] > ratios["forward"] > 4
    assert ratios["dense"] > 4


def test_configs_of_what_was_sent_are_those_of_the_trainings(papers):
    configs = run.configs_of(papers["dct"], "sent")
    rules = papers["dct"].studies["sent"].committed.read_text().splitlines()
    assert set(configs) == {json.loads(line)["case"] for line in rules}
    assert configs["sparse_50"].dense.refresh.every == configs["life_50"].dense.refresh.every == 50


def test_digest_is_that_of_the_bits(papers):
    toy = ["--ranks", "2", "--plan", "row_wise", *papers["zionex"].studies["four"].options.split()]
    exact = run.digest(toy, load_preset("fp32"))
    assert run.digest(toy, load_preset("fp32")) == exact
    assert run.digest(toy, None) == exact  # TorchRec alone
    assert run.digest(toy, load_preset("fp32"), seed=1) != exact
    assert run.digest(toy, load_preset("fp16_bf16")) != exact


def test_four_shardings_and_repeats_at_toy_size(tmp_path, monkeypatch, papers):
    monkeypatch.setattr(run, "presets", lambda: ("fp32", "int4"))
    read = run.read
    monkeypatch.setattr(
        run, "read", lambda path: read(path) if tmp_path in path.parents else {"2 ranks, grid": {}}
    )
    for study in ("four", "repeats"):
        run.run(papers["zionex"], study, tmp_path / "zionex" / f"{study}.jsonl", run.Request())
    (four,) = papers["zionex"].rows(tmp_path)  # the other one takes all places
    assert four[4] == f"**{HOLDS}**"
    repeats = read(tmp_path / "zionex" / "repeats.jsonl")
    assert repeats == {"2 ranks, grid": {"fp32": 1, "int4": 1, "another_seed": 1}}


def test_the_plan_of_four_shardings_has_all_four():
    text = Path(run.FOUR).read_text()
    kinds = set(re.findall(r"sharding: (\w+)", text))
    assert kinds == {"table_wise", "row_wise", "column_wise", "data_parallel"}
