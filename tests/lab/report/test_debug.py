"""The numbers of the debugger's figures: those of the records, over ranks and steps."""

import dataclasses
import math

import pytest

from tests.lab.debug.made_runs import STEPS, made_run, planted
from tests.lab.report import sample_records
from trec_qcomm.lab.debug.recorded import DebugRun, noisiest, tried_of
from trec_qcomm.lab.records import Origin
from trec_qcomm.lab.report.figures import debug

GOOD = made_run()


def test_the_noisiest_come_first():
    run = made_run(planted("t_1", "forward", 45, snr_db=lambda r: 3 + (r.step - 45) / 10))
    lines = noisiest(run)
    assert str(lines[0].place) == "t_1, forward"  # 11 of 20 steps
    assert {line.place.direction for line in lines[1:4]} == {"backward"}
    line = next(line for line in lines if str(line.place) == "t_1, forward")
    assert line.decibels[STEPS.index(45) :] == pytest.approx(tuple(3 + n / 2 for n in range(11)))
    assert line.least == pytest.approx(3.0)
    assert [line.median for line in lines] == sorted(line.median for line in lines)
    figure = debug.signal_to_noise(run)
    row = next(row for row in figure.rows if row[:2] == ("t_1", "forward"))
    assert row[5:8] == (pytest.approx(3.0), 45, pytest.approx(8.0))


def test_nan_is_counted_even_in_an_exact_run():
    run = made_run(planted("t_2", "backward", 15, num_nan=2), exact=True)
    figure = debug.signal_to_noise(run)
    assert [row[:2] for row in figure.rows] == [("t_2", "backward")]
    assert figure.rows[0][-1] == 2 * 2 * len(STEPS[STEPS.index(15) :])  # from there, of two ranks
    assert debug.signal_to_noise(made_run(exact=True)) is None


def test_many_steps_and_places_are_cut_and_told():
    assert debug.columns_of(range(7)) == [range(n, n + 1) for n in range(7)]
    columns = debug.columns_of(range(130))
    assert len(columns) <= debug.MOST_COLUMNS
    assert [n for column in columns for n in column] == list(range(130))
    many = [
        dataclasses.replace(r, name=f"{r.name}_{n}")
        for r in made_run(steps=range(0, 10, 5)).records if r.direction == "forward"
        for n in range(20)
    ]  # fmt: skip
    figure = debug.signal_to_noise(DebugRun("many", many))
    assert len(figure.rows) == 60


def test_shadow_curves_are_medians_over_steps():
    run = DebugRun("shadows", sample_records.debugged())
    tried = tried_of(run)
    place = next(place for place in tried if str(place) == "t_0, forward")
    codecs = {codec.codec: codec for codec in tried[place]}
    assert [codec.bits for codec in tried[place]] == sorted(c.bits for c in tried[place])
    assert sum(codec.is_used for codec in tried[place]) == 1
    assert len(codecs) == 4
    four = codecs["Rowwise(bits=4)"]
    assert (four.bits, four.decibels, four.is_used) == (6.0, pytest.approx(24.0), False)
    exact = dataclasses.replace(run.records[0], is_shadow=True, codec="Identity()", snr_db=None)
    only = DebugRun("exact", [*GOOD.records, exact])
    assert all(c.decibels < math.inf for codecs in tried_of(only).values() for c in codecs)


def test_each_folder_is_a_run():
    records = [
        dataclasses.replace(record, origin=Origin(f"{folder}/debug-rank{record.rank}.jsonl", 1))
        for folder in ("runs/good", "runs/bad")
        for record in GOOD.records
    ]
    figures = debug.debug_runs(records)
    assert [figure.key for figure in figures] == ["debug", "debug-2"]
    assert figures[0].title.endswith(": good")
    assert figures[1].title.endswith(": bad")
