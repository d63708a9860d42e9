"""The numbers of figures, without drawing: those of the records, joined as the page says."""

from dataclasses import replace

import pytest

from tests.lab.report import sample_records as samples
from trec_qcomm.lab.records import SeedEvaluation, SeedTraining
from trec_qcomm.lab.report.command import notes
from trec_qcomm.lab.report.figures import (
    break_even,
    codecs,
    losses,
    search,
    simulation,
    step_time,
    traffic,
)
from trec_qcomm.lab.report.figures import tables as by_table
from trec_qcomm.lab.report.figures.quality import intervals, joined, rate_distortion
from trec_qcomm.lab.report.figures.quality.studies import StudySetup
from trec_qcomm.lab.report.runs import fingerprint, renamed, runs_of, setup_labels
from trec_qcomm.lab.report.style import Looks, render
from trec_qcomm.lab.study.gates import EVALUATION, TRAINING, Verdict
from trec_qcomm.lab.study.verdicts import Rules

STUDY = {"batch_size": 64, "embedding_dim": 8}
ELSEWHERE = "quality shown to be kept (in another setup, 4 ranks x 64, dim 8)"
INT8, INT2 = (samples.INT4.replace("bits: 4", f"bits: {bits}") for bits in (8, 2))


def trained(ne):
    metrics = {"ne": ne, "logloss": ne, "auc": 0.75}
    return SeedTraining(steps=3, progressive_logloss=ne, metrics=metrics, metrics_exact=metrics)


def study_setup(num_ranks=4, **setup):
    return StudySetup(num_ranks, tuple(sorted((STUDY | setup).items())))


def runs(*records):
    return runs_of(samples.placed(*records))[0]


def build(figures, given):
    return figures.build(given, Looks(["stock", "int4", "b"]))


def curve(name, *times):
    """Return runs that take these seconds at 100 Mbit/s, 1 Gbit/s and without a limit."""
    rates = ("100mbit", "1gbit", "none")
    return [samples.network(name, rate, s) for rate, s in zip(rates, times, strict=True)]


def test_hosts_of_several_ranks_are_another_setup() -> None:
    """What leaves such a host is not known by kind: part of what its ranks counted stays there."""
    counted = samples.both_hosts(embedding_forward=(8e6, 2e6, 5e5))
    one = samples.network("int4", config=samples.INT4, traffic=counted)
    two = replace(one, ranks_per_host=2, traffic=counted * 2)
    runs, num_earlier = runs_of([one, two])
    assert num_earlier == 0
    assert [str(run.setup).split(",")[0] for run in runs] == ["2 hosts", "2 hosts of 2 ranks"]
    assert [run.wire is None for run in runs] == [False, True]


def test_break_even_lies_where_the_lines_over_1_by_rate_meet():
    """stock takes 1 + 400 / rate, int4 1.5 + 200 / rate: equal at 400 Mbit/s."""
    every = runs(*curve("stock", 5.0, 1.4, 1.0), *curve("int4", 3.5, 1.7, 1.5))
    (crossed,) = break_even.all_crossings(every).values()
    assert [c.rate_mbit for c in crossed.rates] == [pytest.approx(400)]
    assert crossed.rates[0].is_clear
    assert str(crossed) == "400 Mbit/s"


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((4.0, 1.3, 0.9), "none, faster at every rate measured"),
        ((6.0, 1.5, 1.1), "none, slower at every rate measured"),
        ((4.0, 1.39, 1.001), "(within the scatter)"),
        ((6.0, 1.3, 1.1), "Mbit/s and"),
    ],
)
def test_break_even_is_told_apart_from_scatter_and_from_none(times, said):
    every = runs(*curve("stock", 5.0, 1.4, 1.0), *curve("int4", *times))
    assert said in str(break_even.all_crossings(every)["int4"])


def test_step_times_name_the_fastest_and_what_keeps_quality():
    fast, kept = curve("fast", 1.0, 1.0, 1.0), curve("kept", 2.0, 1.2, 1.0)
    every = runs(*curve("stock", 4.0, 1.4, 1.0), *fast, *kept)
    quality = {"kept": joined.Passing([study_setup()])}
    (figure,) = step_time.build(every, Looks(["stock", "fast", "kept"]), quality)
    slow, _, free = figure.findings
    assert "stock takes 4000 ms, of fast 1000 ms, 4.0 times as fast" in slow.text
    assert f", and with {ELSEWHERE} kept 2000 ms, 2.0 times" in slow.text
    assert (slow.mark, free.mark) == ("holds", "does not hold")
    assert ("kept", "100 Mbit/s", 2000.0, 2.0) in [(r[1], r[2], r[4], r[6]) for r in figure.rows]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ELSEWHERE),
        ({"num_ranks": 2}, "quality shown to be kept (2 ranks x 64, dim 8)"),
    ],
)
def test_where_quality_was_shown_is_said_of_speed_and_of_bytes(changes, said):
    """The samples' networks have 2 hosts x 64, dim 8."""
    quality = {"int4": joined.Passing([study_setup(**changes)])}
    counts = samples.both_hosts(dense=(1e6, 1e6, 5e5))
    int4 = samples.network("int4", p50_s=0.5, sent=5e5, traffic=counts, config=samples.INT4)
    every = runs(samples.network(), int4)
    (speed,) = step_time.build(every, Looks(["stock", "int4"]), quality)[0].findings
    assert f"of int4 500 ms, 2.0 times as fast, with {said}" in speed.text
    sent = traffic.build(every, quality)[0].findings[0]
    assert f"with int4 0.50 MB, 2.0 times less, with {said}" in sent.text
    every += runs(samples.network("less", sent=1e5, traffic=counts))
    sent = traffic.build(every, quality)[0].findings[0]
    assert f"less 0.10 MB, 10.0 times less, and with {said} int4 0.50 MB, 2.0 times" in sent.text


def test_bytes_by_kind_are_those_counted_and_what_float32_takes():
    counts = samples.both_hosts(
        embedding_forward=(8e6, 2e6, 1e6), dense=(4e6, 4e6, 4e6), input=(1e6, 1e6, 1e6)
    )
    int4 = samples.network("int4", sent=6e6, traffic=counts, config=samples.INT4)
    (figure,) = traffic.build(runs(samples.network(sent=13e6), int4), {})
    before, stock, plugin = figure.rows
    assert before[1:] == ("float32, all bags", 8.0, 0.0, 4.0, 1.0, 13.0, None, None, 1.0)
    assert stock[1:] == ("stock", None, None, None, None, None, None, 13.0, 1.0)
    assert plugin[1:] == ("int4", 1.0, 0.0, 4.0, 1.0, 6.0, 7.0, 6.0, 13 / 6)


def test_without_a_count_of_all_bags_before_is_of_what_is_sent():
    """Records from before raw bytes were counted have none; where one has it, it holds for all."""
    old = samples.both_hosts(embedding_forward=(None, 2e6, 1e6))
    (figure,) = traffic.build(runs(samples.network("m", traffic=old)), {})
    assert figure.rows[0][1:3] == ("float32, bags merged", 2.0)
    new = samples.both_hosts(embedding_forward=(8e6, 8e6, 8e6))
    both = runs(samples.network("m", traffic=old), samples.network("whole", traffic=new))
    (figure,) = traffic.build(both, {})
    assert figure.rows[0][1:3] == ("float32, all bags", 8.0)


def test_counts_that_are_apart_do_not_hold():
    counts = samples.both_hosts(dense=(1e6, 1e6, 9e5))
    every = runs(samples.network("int4", sent=1e6, traffic=counts, config=samples.INT4))
    (figure,) = traffic.build(every, {})
    assert [f.mark for f in figure.findings if "kernel" in f.text] == ["does not hold"]


def test_a_study_gets_its_bytes_by_the_meaning_of_configs_not_by_name():
    other_words = samples.INT4.replace("bits: 4", "bits: 4, rounding: nearest")
    networks = [samples.network(sent=8e6), samples.network("int4", sent=1e6, config=other_words)]
    seeds = [samples.study("fp32", s, 1.0) for s in range(50)]
    seeds += [samples.study("a2a", s, 1.0001 + 1e-6 * (s % 2), samples.INT4) for s in range(50)]
    seeds += [samples.study("int4", s, 1.1, INT8) for s in range(50)]
    every = samples.placed(*networks, *seeds)
    (figure,) = rate_distortion.build(every, runs_of(every)[0], Looks(["stock", "int4"]))
    rows = {row[1]: row for row in figure.rows if row[0].startswith("Study")}
    assert rows["a2a"][2:5] == ("int4", 1.0, 50)
    assert rows["a2a"][5] == pytest.approx(0.01005)
    assert rows["fp32"][2:6] == ("stock", 8.0, 50, 0.0)
    assert rows["int4"][2:4] == (None, None)
    assert any("without bytes" in note and "int4" in note for note in figure.notes)
    assert list(joined.passing(every, runs_of(every)[0])) == ["int4"]
    (finding,) = figure.findings
    assert finding.mark == "holds"


def test_too_few_seeds_show_nothing():
    seeds = [samples.study("fp32", s, 1.0) for s in range(10)]
    seeds += [samples.study("int4", s, 1.0, samples.INT4) for s in range(10)]
    every = samples.placed(samples.network(), samples.network("int4", config=samples.INT4), *seeds)
    (figure,) = rate_distortion.build(every, runs_of(every)[0], Looks(["stock", "int4"]))
    assert [f.mark for f in figure.findings] == ["not shown"]
    assert "not shown (10 of 50 seeds)" in figure.findings[0].text


def test_quality_is_kept_only_by_what_passes_the_whole_gate():
    """Test loss as before, and a progressive loss that is worse."""
    seeds = [samples.study("fp32", s, 1.0) for s in range(50)]
    for s in range(50):
        record = samples.study("int4", s, 1.0, samples.INT4)
        worse = replace(record.training, progressive_logloss=1.001 + 1e-6 * (s % 2))
        seeds.append(replace(record, training=worse))
    every = samples.placed(samples.network(), samples.network("int4", config=samples.INT4), *seeds)
    (figure,) = rate_distortion.build(every, runs_of(every)[0], Looks(["stock", "int4"]))
    assert [f.mark for f in figure.findings] == ["not shown"]
    assert "progressive_logloss mean > 0.02" in figure.findings[0].text
    assert joined.passing(every, runs_of(every)[0]) == {}


def test_quality_is_kept_only_by_what_passes_in_every_study():
    seeds = [samples.study("fp32", s, 1.0) for s in range(50)]
    seeds += [samples.study("int4", s, 1.0, samples.INT4) for s in range(50)]
    larger = [replace(seed, num_ranks=8) for seed in seeds]
    larger[50:] = [replace(seed, training=trained(1.01)) for seed in larger[50:]]
    network = samples.network("int4", config=samples.INT4)
    both, one = samples.placed(network, *seeds, *larger), samples.placed(network, *seeds)
    assert joined.passing(both, runs_of(both)[0]) == {}
    (passed,) = joined.passing(one, runs_of(one)[0]).values()
    assert passed.setups == [StudySetup(4, ())]


def test_each_measure_has_its_own_gate():
    verdicts = {
        "training": Verdict("not shown (2 of 50 seeds)", 2, {}),
        "eval-only": Verdict("PASS", 10, {}),
    }
    training = intervals.Measure("training", "logloss", TRAINING)
    evaluation = intervals.Measure("eval-only", "ne", EVALUATION)
    line = intervals.Line("a", verdicts)
    assert line.passed(evaluation)
    assert not line.passed(training)
    assert not intervals.Line("null", verdicts, is_null=True).passed(evaluation)


def test_two_names_of_one_config_are_one():
    """A cell of 16 seeds, measured again under the name of its file with 50."""
    seeds = [samples.study("fp32", s, 1.0) for s in range(50)]
    seeds += [samples.study("cell", s, 1.01, samples.INT4) for s in range(16)]
    seeds += [samples.study("int4", s, 1.0, samples.INT4) for s in range(50)]
    every = samples.placed(samples.network(), samples.network("int4", config=samples.INT4), *seeds)
    (line,) = intervals.lines_of(every[2:], Rules.from_record(every[-1]))
    assert (line.name, line.main.num_seeds, line.text("training")) == ("int4", 50, "PASS")
    assert list(joined.passing(every, runs_of(every)[0])) == ["int4"]


def test_one_name_of_two_configs_is_two_points_of_a_study():
    """Seed 1 of one, seeds 1 and 2 of the other, of which seed 2 is there twice."""
    two = samples.study("a", 2, 1.3, INT2)
    every = [samples.study("fp32", s, 1.0) for s in (1, 2)]
    every += [samples.study("a", 1, 1.1, INT8), samples.study("a", 1, 1.2, INT2), two, two]
    (study,) = joined.joined_studies(samples.placed(*every), [])
    changes = {p.name: (p.change.n, p.change.mean) for p in study.points}
    assert changes == {
        "fp32": (2, 0.0), f"a ({fingerprint(INT8)[:8]})": (1, pytest.approx(10)),
        f"a ({fingerprint(INT2)[:8]})": (2, pytest.approx(25)),
    }  # fmt: skip


def a_study(**changes):
    """50 seeds: `good` is .01 % off by turns, `bad` 1 % worse; the null run has five seeds."""
    seeds = [samples.study("fp32", s, 1.0 + s / 8, **changes) for s in range(50)]
    seeds += [samples.study("null", s, 1.0 + s / 8, **changes) for s in range(5)]
    for s in range(50):
        fp32 = 1.0 + s / 8
        seeds.append(samples.study("good", s, fp32 * (1 + 1e-4 * (-1) ** s), **changes))
        seeds.append(samples.study("bad", s, fp32 * (1.01 + 1e-4 * (-1) ** s), **changes))
    return seeds


def test_a_study_alone_has_a_line_a_config():
    (figure,) = intervals.build(samples.placed(*a_study()))
    assert figure.key == "quality"
    measures = ("seeds", "mean [%]", "low [%]", "high [%]", "upper [%]")
    assert figure.columns[1:6] == tuple(f"test log loss, {measure}" for measure in measures)
    null, bad, good = figure.rows
    assert null == ("null", *[5, 0.0, 0.0, 0.0, 0.0] * 2, None, None)
    assert bad[:3] == ("bad", 50, pytest.approx(1.0))
    assert good[2] == pytest.approx(0, abs=1e-9)
    # Changes of +-.01 % in turns: s = .01 sqrt(50 / 49), and Student's t of 49 degrees is 2.0096.
    assert good[4] == pytest.approx(2.0096 * 0.01 / 49**0.5, rel=1e-3) == -good[3]
    assert (good[-2], good[-1]) == ("PASS", None)
    assert bad[-2].startswith("not shown (logloss mean > 0.02")
    (finding,) = figure.findings
    assert "passed the gate of trainings: good; not shown to pass: bad." in finding.text


def test_each_study_has_a_figure_of_its_own():
    sgd = a_study(setup={"dense_optimizer": "sgd"})
    one, other = intervals.build(samples.placed(*a_study(), *sgd))
    assert (one.key, other.key) == ("quality", "quality-2")
    assert other.title.endswith("4 ranks, dense layers by sgd")
    assert one.rows == other.rows


def test_evaluation_only_is_compared_with_the_same_model_exact():
    seeds = [samples.study("fp32", s, 1.0) for s in range(10)]
    for s in range(10):
        evaluation = SeedEvaluation(metrics={"ne": 2.002 + s}, metrics_exact={"ne": 2.0 + s})
        seeds.append(samples.study("int4", s, 1.0, training=None, evaluation=evaluation))
    (figure,) = intervals.build(samples.placed(*seeds))
    (row,) = figure.rows
    assert figure.columns[2] == "evaluation only: NE, mean [%]"
    assert row[1] == 10
    assert row[2] == pytest.approx(sum(0.2 / (2 + s) for s in range(10)) / 10)
    assert row[-2] is None
    assert row[-1] == "not shown (ne upper > 0.02)"


def test_runs_are_compared_where_the_whole_setup_is_equal():
    """The order of the values makes no difference; any other value does."""
    turned = samples.training(setup=dict(reversed(samples.SETUP.items())))
    assert len({run.setup for run in runs(samples.training(), turned)}) == 1
    other = samples.training(setup=samples.SETUP | {"anything": "else"})
    setups = {run.setup for run in runs(samples.training(), turned, other)}
    assert len(setups) == 2
    labels = setup_labels(list(setups)).values()
    assert sorted(label.endswith(", anything else") for label in labels) == [False, True]


def test_one_name_of_two_configs_is_two_configurations():
    """An earlier int4 on the slow link, and one of today on the fast one; then both on both."""
    today, then = samples.INT4, samples.INT4.replace("bits: 4", "bits: 2")
    other_words = today.replace("bits: 4", "bits: 4, rounding: nearest")
    old, new = (
        [samples.network("int4", rate, s, config=text) for rate in rates]
        for text, rates, s in ((then, ["100mbit", "none"], 3.0), (today, ["none", "1gbit"], 2.0))
    )
    again = samples.network("int4", "none", 1.0, config=other_words)
    every, earlier = runs_of(samples.placed(samples.network(), *old, *new, again))
    assert earlier == 1
    names = {text: f"int4 ({fingerprint(text)[:8]})" for text in (then, today)}
    assert renamed(every) == [names[then], names[today]]
    times = {(run.configuration, run.rate_mbit): run.step_s["p50"] for run in every}
    assert times == {
        ("stock", 1000.0): 1.0, (names[then], 100.0): 3.0, (names[then], None): 3.0,
        (names[today], None): 1.0, (names[today], 1000.0): 2.0,
    }  # fmt: skip


def test_a_config_that_is_none_today_is_told_by_its_text():
    every = runs(*(samples.training("old", config=f"bits_of_yore: {n}") for n in (3, 4, 4)))
    assert len({run.configuration for run in every}) == len(every) == 2


def test_quality_without_the_codec_is_not_that_with_it():
    exact_only = samples.training("a", metrics={}, metrics_exact={"ne": 0.6})
    stock, both = samples.training("stock", 0.5, config=None), samples.training("b", 0.75)
    every = runs(stock, exact_only, both)
    assert [run.ne for run in every] == [0.5, None, 0.75]
    panel = rate_distortion.run_panel(every, "")
    assert [(p.name, p.change.mean) for p in panel.points] == [("stock", 0.0), ("b", 50.0)]
    assert "measured with the codecs on, and so not in quality" in notes([], every, 0)[0]


def test_points_that_another_beats_in_both_numbers_are_not_on_the_front():
    points = [(1.0, 0.5), (2.0, 0.1), (3.0, 0.2), (4.0, 0.1), (5.0, -0.1)]
    assert joined.pareto_front(points) == [(1.0, 0.5), (2.0, 0.1), (5.0, -0.1)]
    assert joined.pareto_front([]) == []


def test_axes_say_in_which_setups_quality_and_bytes_were_measured():
    network = samples.network("int4", config=samples.INT4)
    setup = {"embedding_dim": 16, "batch_size": 128}
    seeds = [samples.study("fp32", s, 1.0, setup=setup) for s in range(2)]
    seeds += [samples.study("int4", s, 1.0, samples.INT4, setup=setup) for s in range(2)]
    every = samples.placed(network, *seeds)
    source = joined.bytes_source(every, runs_of(every)[0])
    (study,) = joined.joined_studies(every, source)
    panel = rate_distortion.study_panel(study, source, setup_labels([source[0].setup]))
    assert panel.quality_at == "dim 16, 128 samples a rank"
    assert panel.bytes_at == "dim 8, 64 samples a rank"
    assert "These are two setups" in panel.notes[0]


def test_tables_have_bits_bounds_and_the_ratio_with_merged_bags():
    (figure,) = by_table.build(runs(samples.training("dual")))
    assert figure.rows == [
        ("dual", "large", 32.0, 16.0, None, 640 / 480),
        ("dual", "small", 4.0, None, 0.03, 8 * 4),
    ]
    assert "dual 1.3 (large) to 32.0 times (small)" in figure.findings[0].text


def test_losses_are_compared_step_by_step():
    lower = samples.training("int4", losses=(0.7, 0.6, 0.45))
    (figure,) = losses.build(runs(samples.training(), lower), Looks(["fp32", "int4"]))
    assert figure.rows[1][4:] == (0.7, pytest.approx(0.5833333), 0.45, pytest.approx(-10.0))
    assert losses.smooth([0.0, 3.0, 6.0], 3) == [1.5, 3.0, 4.5]


def test_codecs_that_nobody_beats_are_named():
    others = [
        samples.codec("fast", False, 5.0, ratio=2.0),
        samples.codec("small", False, 1.0, ratio=9.0),
    ]
    beaten = samples.codec("beaten", True, 1.0, ratio=1.5)
    (figure,) = codecs.build(samples.placed(samples.codec(), beaten, *others))
    assert "in both ratio and speed of encoding: ours (errors" in figure.findings[0].text
    assert figure.findings[0].mark == ""  # one that nobody beats is easily found
    ours = (1, "ours", "yes", 8.0, 1.0, 2.0, 4.0, 1.0, 3.0, 5.0, 0.75, 1.5)
    assert figure.rows[1] == ours
    dims = codecs.build(
        samples.placed(samples.codec(), samples.codec(dim=16), samples.codec(threads=2))
    )
    assert [(f.key, len(f.rows)) for f in dims] == [("codecs", 1), ("codecs-2", 2)]
    (figure,) = codecs.build(samples.placed(samples.codec(error_over_bound=1.25)))
    assert figure.findings[-1].mark == "does not hold"


def test_a_codec_of_two_bounds_is_two_points_of_the_front():
    """The wide bound beats `theirs`; the narrow one is beaten."""
    wide, narrow = (
        samples.codec(bound=0.1, ratio=9.0),
        samples.codec(bound=0.01, encode=0.5, ratio=2.0),
    )
    theirs = samples.codec("theirs", False, 1.0, ratio=3.0)
    for order in ([wide, narrow, theirs], [narrow, wide, theirs]):
        assert codecs.front(samples.placed(*order)) == [("ours", 0.1)]
    (figure,) = codecs.build(samples.placed(wide, narrow, theirs))
    assert "of encoding: ours at 0.1 (errors" in figure.findings[0].text
    assert [row[1] for row in figure.rows] == ["ours at 0.1", "theirs", "ours at 0.01"]


def test_records_of_two_machines_or_trainings_are_two_figures():
    other = replace(samples.ENVIRONMENT, hardware={"cpu": "another"})
    every = samples.codec(), samples.codec(environment=other), samples.codec(seed=1)
    figures = codecs.build(samples.placed(*every))
    assert [len(figure.rows) for figure in figures] == [1, 1, 1]
    assert len({figure.title for figure in figures}) == 3
    assert [f.title for f in codecs.build(samples.placed(samples.codec()))] == [
        "Codec throughput: rows, dim 64"
    ]


def test_what_was_measured_again_is_told():
    (figure,) = codecs.build(samples.placed(samples.codec(), samples.codec(encode=4.0)))
    assert [row[5] for row in figure.rows] == [4.0]
    assert "1 measured again later are not shown (commit abc1234)." in figure.notes[-1]


def test_predictions_count_where_the_model_was_not_fitted():
    figures = build(simulation, samples.placed(*samples.simulated()))
    assert [f.key for f in figures] == ["predicted", "scale", "communication", "break-even"]
    assert all(figure.is_model for figure in figures)
    assert "1 of 2 measurements" in figures[0].findings[0].text
    assert figures[0].findings[0].mark == "does not hold"
    assert figures[0].rows[1] == ("int4", 2, "1gbit", 1000.0, 1500.0, 50.0, "no")
    assert "4.0 times (int4, tw, 8 GPUs, 100 Gbit/s)" in figures[1].findings[0].text
    assert figures[1].rows[0] == ("stock", 8, "tw", 100.0, 32.0, 25.0)
    assert figures[3].rows[1] == ("int4", "stock", 64, "tw", "always", None)
    assert figures[1].notes == ["Assumed: overlap 0.5."]


def test_plans_of_a_search_are_drawn_over_their_bytes(tmp_path):
    given = samples.searched()
    (figure,) = search.build([*given, given[0]])
    assert figure.columns[-3:] == ("loss, mean [%]", "loss, low [%]", "loss, high [%]")
    assert [row[0] for row in figure.rows] == ["best", "half", "plan"]
    assert figure.rows[2] == ["plan", 0.02, 10.0, 10.0, 0.01, 0.001, 20, 0.011, 0.002, 0.02]
    assert figure.rows[1][-3:] == [None] * 3
    (finding,) = figure.findings
    assert finding.text.startswith("The plan plan sends 10.0% of float32's bytes of rows")
    assert "<svg" in render(figure, tmp_path)
    assert (tmp_path / "search.png").exists()
