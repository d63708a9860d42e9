"""Tables of the benches say what the records say, on the pages and on the terminal."""

import sys
from dataclasses import replace

import pytest

from examples.bench import pages, tables
from trec_qcomm.lab.records import (
    TRAFFIC_KINDS,
    Environment,
    NetworkRecord,
    Percentiles,
    TrafficBytes,
)


def record(name, sent, counted=None, p50=1.0, rate="none", **changes):
    """Return a record of two hosts. Args: counted: bytes of dense gradients by our count."""
    host = {kind: TrafficBytes(wire_nbytes=0.0) for kind in TRAFFIC_KINDS}
    host["dense"] = TrafficBytes(wire_nbytes=counted or 0.0)
    fields = {
        "configuration": name,
        "config": "one",
        "setup": {"plan": "table_wise", "batch_size": 8, "dim": 8},
        "environment": Environment(
            commit="abc1234", versions={"torch": "2"}, hardware={"num_cpus": 2, "cpu": "x86_64"}
        ),
        "num_hosts": 2,
        "rate": rate,
        "num_steps": 2,
        "step_s": Percentiles(p20=p50, p50=p50, p80=p50),
        "sent_nbytes": (sent, sent),
        "sent_packets": (1.0, 1.0),
        "traffic": None if counted is None else (host, host),
        "metrics": {"ne": 0.9},
    }
    return NetworkRecord(**(fields | changes))


@pytest.mark.parametrize("section", pages.SECTIONS, ids=lambda s: s.records)
def test_pages_say_what_was_measured(section):
    """`python -m examples.bench.pages --write` puts it right."""
    text = section.page.read_text()
    assert text == section.put_into(text)
    assert section.made().count("\n| ") >= 5


def test_the_gate_tells_a_pass_from_a_configuration_that_costs_quality():
    (section,) = (section for section in pages.SECTIONS if section.title == "Quality gate")
    lines = {line.split(" | ")[0].strip("| "): line for line in section.made().splitlines()}
    assert lines["`int8`"].endswith("| PASS |")
    assert "not shown (logloss mean > 0.02" in lines["`papers/dense_dct`"]


def test_a_missing_comment_is_named():
    with pytest.raises(ValueError, match=r"README\.md: expected <!-- from .*links\.jsonl -->"):
        pages.SECTIONS[0].put_into("no comments")


def test_check_tells_what_differs_and_write_puts_it_right(tmp_path, monkeypatch, capsys):
    net = pages.SECTIONS[0]
    page = tmp_path / "README.md"
    before = net.page.read_text()
    page.write_text(before.replace("1.0x less", "9.9x less"))
    monkeypatch.setattr(pages, "SECTIONS", (replace(net, page=page),))
    said = []
    for words in ("--check", "--write", "--check"):
        monkeypatch.setattr(sys, "argv", ["pages.py", words])
        said.append((pages.main(), capsys.readouterr().out.strip()))
    assert said == [
        (1, "differs: README.md with examples/bench/results/links.jsonl"),
        (0, "written: README.md with examples/bench/results/links.jsonl"),
        (0, "all sections agree with the records"),
    ]
    assert page.read_text() == before


def test_counts_that_disagree_are_told():
    headers = 66.0  # of its one packet
    assert tables.apart(record("a", 1000.0 + headers, 990.0)) == pytest.approx(0.01)
    assert tables.apart(record("a", 1000.0 + headers, 1020.0)) > tables.MOST_APART


def test_the_terminal_has_all_that_was_measured():
    measured = [record("stock", 4e6, p50=2.0), record("best", 1e6, 1e6, p50=0.5)]
    assert "| `best` | 1.00 MB, 4.0x less | 500 ms, 4.0x | 0.9000 |" in tables.networks(measured)
    details = tables.network_details([*measured[:1], replace(measured[1], breakdown_s={"wire": 1})])
    assert "| best | 500 to 500 | 0, 0, 1000, 0 | 0.0% |" in details
    assert "| stock | 2000 to 2000 |  |  |" in details
    said = tables.verdict([measured])
    assert "best on 2 hosts" in said
    assert "4.0x fewer bytes and 4.0x the speed of stock" in said


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config", {"config": "another"}),
        ("batch_size", {"setup": {"plan": "table_wise", "batch_size": 9, "dim": 8}}),
        ("num_steps", {"num_steps": 3}),
        ("delay", {"delay": "1ms"}),
    ],
)
def test_a_line_is_of_one_measurement(name, change):
    """A change between the records of two rates is named."""
    slow, fast = (record("best", 1e6, rate=rate) for rate in ("100mbit", "1gbit"))
    assert "| `best` |" in tables.networks([slow, fast])
    with pytest.raises(ValueError, match=f"best at 1gbit: another {name} than at 100mbit"):
        tables.networks([slow, replace(fast, **change)])


def test_hosts_of_several_ranks_have_a_table_of_their_own():
    one = record("best", 1e6)
    two = replace(one, ranks_per_host=2, sent_nbytes=(3e6, 3e6))
    made = tables.networks([one, two])
    assert made.index("| 2 hosts, table_wise |") < made.index("1.00 MB")
    assert made.index("| 2 hosts of 2 ranks, table_wise |") < made.index("3.00 MB")


def test_plans_of_several_numbers_of_hosts_have_no_table():
    with pytest.raises(ValueError, match=r"records of \[2, 4\] hosts"):
        tables.plans([record("best", 1e6), record("best", 1e6, num_hosts=4)])


def test_a_rate_that_one_configuration_lacks_is_an_empty_cell():
    measured = [record("stock", 4e6, rate=rate) for rate in ("100mbit", "1gbit")]
    made = tables.networks([*measured, record("best", 1e6, rate="1gbit")])
    assert "| `best` | 1.00 MB, 4.0x less |  | 1000 ms, 1.0x | 0.9000 |" in made
    made = tables.networks([*measured, record("best", 1e6, rate="50mbit")])  # a rate without stock
    assert "| `best` | 1.00 MB |  |  | 1000 ms | 0.9000 |" in made


def test_plan_files_of_one_sharding_are_told_apart():
    one, other = (f"Plan(sharding='planned', cluster={n})" for n in (1, 2))
    every = [
        record("a", 1.0, setup={"plan": plan, "batch_size": 8, "dim": 8})
        for plan in ("row_wise", one, other, one)
    ]
    labels = {"row_wise": "row_wise", one: "planned 1", other: "planned 2"}
    assert tables.plan_labels(every) == labels
    assert tables.plan_labels(every[:2]) == {"row_wise": "row_wise", one: "planned"}
    assert all(f"| 2 hosts, {label} |" in tables.networks(every) for label in labels.values())
