"""The page of the papers says what the committed records say."""

import json
import re

import pytest

from examples.papers import readme, times
from examples.papers.claims import OPEN, SOURCES, VERDICTS, Claim, table


@pytest.fixture(scope="module")
def papers():
    return readme.papers()


def test_the_page_has_the_tables_of_the_records(papers):
    """`python -m examples.papers.readme --write` puts it right."""
    text = readme.PAGE.read_text()
    for paper in papers:
        assert readme.replaced(text, paper) == text
    assert readme.with_times(text, papers) == text


def test_times_are_sums_of_the_records(papers):
    (schedules,) = (part for part in papers[2].parts if part.name == "schedules")
    lines = map(json.loads, schedules.committed.read_text().splitlines())
    assert sum(times.seconds(schedules)) == pytest.approx(sum(line["seconds"] for line in lines))
    (line,) = (row for row in times.table(papers).splitlines() if "`schedules`" in row)
    assert line.endswith(f"| {sum(times.seconds(schedules)) / 7200:.1f} |")


def test_every_part_has_committed_records_and_claims(papers):
    for paper in papers:
        for part in paper.parts:
            assert part.committed.exists(), part.name
            assert part.claims(part.committed), part.name


def test_check_tells_what_differs_and_write_puts_it_right(tmp_path, monkeypatch, capsys):
    page = tmp_path / "README.md"
    page.write_text(readme.PAGE.read_text().replace("| **holds** |", "| **probably** |", 1))
    monkeypatch.setattr(readme, "PAGE", page)
    said = [
        (readme.main([word]), capsys.readouterr().out) for word in ("--check", "--write", "--check")
    ]
    assert [status for status, _ in said] == [1, 0, 0]
    assert [text.split()[0] for _, text in said] == ["differs:", "written:", "all"]


def test_missing_comments_are_named(papers):
    with pytest.raises(ValueError, match=r"expected <!-- claims of kdd20\.py --> "):
        readme.replaced("no comments", papers[0])


CLAIM = {"text": "It pays", "source": "ours", "setting": "toy", "result": "+1 | 2"}


def test_a_claim_is_a_line_of_the_table():
    head, rule, line = table([Claim(**CLAIM, verdict="holds")]).splitlines()
    assert len(re.findall(r"(?<!\\)\|", line)) == head.count("|") == rule.count("|")
    assert "**holds** | -" in line


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"verdict": "perhaps"}, ", ".join(VERDICTS)),
        ({"verdict": "holds", "source": "hearsay"}, ", ".join(SOURCES)),
        ({"verdict": OPEN}, "to_tell is empty"),
    ],
)
def test_claims_that_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        Claim(**(CLAIM | fields))
