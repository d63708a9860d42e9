"""The numbers of the guard's timeline: those of its records."""

from dataclasses import replace

import pytest

from tests.lab.report import sample_records as samples
from trec_qcomm.lab.report.figures.guard import MOST_RUNS, _ticks, build, runs_of_guards
from trec_qcomm.lab.report.style import render

RECORDS = samples.placed(*samples.guarded())


def test_a_run_is_its_probes_its_events_and_the_rungs_of_tables():
    (run,) = runs_of_guards(RECORDS)
    assert list(run.probes) == list(range(16))
    assert [event.event for event in run.events] == ["trip", "raise", "lower"]
    stretches = run.stretches()
    assert stretches["t_0", "forward"] == [(0, 3000, 1)]
    assert stretches["t_1", "forward"] == [(0, 1200, 1), (1200, 2800, 2), (2800, 3000, 1)]
    assert stretches["t_1", "backward"] == [(0, 3000, 0)]


def test_the_figure_tells_who_moved_and_how_it_ends():
    (figure,) = build(RECORDS)
    assert [row[2:6] for row in figure.rows] == [
        ("trip", "loss", None, None),
        ("raise", "loss", "t_1", "forward"),
        ("lower", "calm", "t_1", "forward"),
    ]
    assert figure.rows[1][6:8] == ("Rowwise(bits=4)", "Rowwise(bits=8)")
    assert figure.notes == ["3 of 4 kept their rung."]
    first, last = figure.findings
    assert first.text == "int4, guarded: 1 episodes in 16 probes; to blame, in order: t_1."
    assert (last.text, last.mark) == ("It ends with +0.004 % of the loss, limit 0.02 %.", "holds")
    bad = [replace(r, mean=0.5) if getattr(r, "probe", 0) == 15 else r for r in RECORDS]
    assert build(bad)[0].findings[-1].mark == "does not hold"


def test_probes_that_a_resumed_training_reads_again_count_once():
    again = samples.placed(*samples.guarded(), *samples.guarded(start=5))
    (run,) = runs_of_guards(again)
    assert list(run.probes) == list(range(16))
    assert [event.event for event in run.events] == ["trip", "raise", "lower"]


def test_ticks_are_powers_of_ten_times_the_limit():
    assert _ticks([0.001, 0.3], 0.02) == pytest.approx([0, 0.02, 0.2, 2])
    assert _ticks([-0.5, 0.001], 0.02) == pytest.approx([-2, -0.2, -0.02, 0, 0.02])
    assert _ticks([], 0.02) == [0, 0.02]


def test_each_training_has_a_figure_up_to_a_number():
    many = [record for n in range(MOST_RUNS + 2) for record in samples.guarded(f"run{n}")]
    figures = build(samples.placed(*many))
    assert [figure.key for figure in figures[:2]] == ["guard", "guard-2"]
    assert len(figures) == MOST_RUNS
    assert f"Drawn are the first {MOST_RUNS} of {MOST_RUNS + 2} trainings." in figures[0].notes
    assert build([]) == []


def test_a_run_without_moves_means_or_bytes_is_drawn():
    quiet = [
        replace(r, forward={}, backward={}, wire_nbytes=None, mean=None, low=None, high=None)
        for r in RECORDS
        if r.kind == "guard_probe"
    ]
    (figure,) = build(quiet)
    assert len(figure.findings) == 1
    assert "<svg" in render(figure, None)
