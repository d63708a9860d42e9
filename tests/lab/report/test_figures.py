"""The numbers of figures, without drawing: those of the records, joined as the page says."""

from dataclasses import replace

import pytest

from tests.lab.report import sample_records as samples
from trec_qcomm.lab.records import SeedEvaluation
from trec_qcomm.lab.report.figures import guard, losses, network, quality, search
from trec_qcomm.lab.report.runs import by_setup, config_id, parse_rate, runs_of
from trec_qcomm.lab.report.style import Looks
from trec_qcomm.lab.study.gates import PASS

INT8, INT2 = (samples.INT4.replace("bits: 4", f"bits: {bits}") for bits in (8, 2))
OTHER_WORDS = samples.INT4.replace("bits: 4", "bits: 4, rounding: nearest")


def runs(*records):
    return runs_of(samples.placed(*records))


def hashed(name, config):
    return f"{name} ({config_id(samples.study(name, 0, 1.0, config))[:8]})"


def curve(name, *times):
    """Return runs that take these seconds at 100 Mbit/s, 1 Gbit/s and without a limit."""
    rates = ("100mbit", "1gbit", "none")
    return [samples.network(name, rate, s) for rate, s in zip(rates, times, strict=True)]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((3.5, 1.7, 1.5), "400 Mbit/s"),  # 1.5 + 200 / rate
        ((4.0, 1.3, 0.9), None),  # faster at every rate
        ((6.0, 1.5, 1.1), None),  # slower
        ((4.0, 1.39, 1.001), "11 Gbit/s (within the scatter)"),
        ((6.0, 1.3, 1.1), "550 Mbit/s and 2 Gbit/s"),
    ],
)
def test_break_even_lies_where_the_lines_over_1_by_rate_meet(times, said):
    """stock takes 1 + 400 / rate."""
    every = runs(*curve("stock", 5.0, 1.4, 1.0), *curve("int4", *times))
    figure = network.step_time(every, Looks())
    rows = {(row[1], row[2]): row for row in figure.rows}
    assert rows["int4", "100 Mbit/s"][7] == said
    assert rows["int4", "1 Gbit/s"][4:7] == pytest.approx(
        (1e3 * times[1], 1010 * times[1], 1.4 / times[1])
    )
    assert rows["stock", "1 Gbit/s"][6:] == (1.0, None)


def test_rates_are_those_of_tc():
    assert [parse_rate(rate) for rate in ("100mbit", "1gbit", "2.5gbit")] == [100, 1000, 2500]
    assert parse_rate("none") is None
    for wrong in ("100", "mbit", "fast", "-1gbit", "0gbit", "1.2.3bit"):
        with pytest.raises(ValueError, match=r"rate: expected a number and bit, .* got"):
            parse_rate(wrong)


def test_bytes_by_kind_are_those_counted_and_what_float32_takes():
    counts = samples.both_hosts(
        embedding_forward=(8e6, 2e6, 1e6), dense=(4e6, 4e6, 4e6), input=(1e6, 1e6, 1e6)
    )
    int4 = samples.network("int4", sent=6e6, traffic=counts, config=samples.INT4)
    before, stock, plugin = network.traffic(runs(samples.network(sent=13e6), int4)).rows
    assert before[1:] == ("float32, all bags", 8.0, 0.0, 4.0, 1.0, 13.0, None, None, 1.0)
    assert stock[1:] == ("stock", None, None, None, None, None, None, 13.0, 1.0)
    assert plugin[1:] == ("int4", 1.0, 0.0, 4.0, 1.0, 6.0, 7.0, 6.0, 13 / 6)


def test_without_a_count_of_all_bags_before_is_of_what_is_sent():
    """Records from before raw bytes were counted have none; where one has it, it holds for all."""
    old = samples.both_hosts(embedding_forward=(None, 2e6, 1e6))
    new = samples.both_hosts(embedding_forward=(8e6, 8e6, 8e6))
    alone = runs(samples.network("m", traffic=old))
    assert network.traffic(alone).rows[0][1:3] == ("float32, bags merged", 2.0)
    both = [*alone, *runs(samples.network("whole", traffic=new))]
    assert network.traffic(both).rows[0][1:3] == ("float32, all bags", 8.0)


def test_hosts_of_several_ranks_are_another_setup():
    """What leaves such a host is not known by kind: part of what its ranks counted stays there."""
    counted = samples.both_hosts(embedding_forward=(8e6, 2e6, 5e5))
    one = samples.network("int4", config=samples.INT4, traffic=counted)
    two = replace(one, ranks_per_host=2, traffic=counted * 2)
    every = runs(one, two)
    assert [str(run.setup).split(",")[0] for run in every] == ["2 hosts", "2 hosts of 2 ranks"]
    assert [run.by_group("wire_nbytes") is None for run in every] == [False, True]


def test_runs_are_compared_where_the_whole_setup_is_equal():
    """The order of the values makes no difference; any other value does."""
    turned = samples.training(setup=dict(reversed(samples.SETUP.items())))
    other = samples.training(setup=samples.SETUP | {"anything": "else"})
    assert len({run.setup for run in runs(samples.training(), turned)}) == 1
    labels = by_setup(runs(samples.training(), turned, other))
    assert sorted(label.endswith(", anything else") for label in labels) == [False, True]


def test_one_name_of_two_configs_is_two_configurations():
    """An earlier int4 on the slow link, and one of today on the fast one, which is measured twice.

    A config that is none today is told by its text.
    """
    old, new, again = (
        samples.network("int4", rate, s, config=text)
        for rate, s, text in (
            ("100mbit", 3.0, INT2), ("none", 2.0, samples.INT4), ("none", 1.0, OTHER_WORDS)
        )
    )  # fmt: skip
    times = {run.configuration: run.step_s["p50"] for run in runs(old, new, again)}
    assert times == {hashed("int4", INT2): 3.0, hashed("int4", samples.INT4): 1.0}
    yore = runs(*(samples.training("old", config=f"bits_of_yore: {n}") for n in (3, 4, 4)))
    assert len({run.configuration for run in yore}) == len(yore) == 2


def test_a_study_gets_its_bytes_by_the_meaning_of_configs_not_by_name():
    networks = [samples.network(sent=8e6), samples.network("int4", sent=1e6, config=OTHER_WORDS)]
    seeds = [samples.study("fp32", s, 1.0) for s in range(50)]
    seeds += [samples.study("a2a", s, 1.0001 + 1e-6 * (s % 2), samples.INT4) for s in range(50)]
    seeds += [samples.study("int4", s, 1.1, INT8) for s in range(50)]
    every = samples.placed(*networks, *seeds)
    figure = quality.rate_distortion(every, runs_of(every), Looks())
    rows = {row[1]: row for row in figure.rows if row[0].startswith("Study")}
    assert rows["a2a"][2:5] == ("int4", 1.0, 50)
    assert rows["a2a"][5] == pytest.approx(0.01005)
    assert rows["fp32"][2:6] == ("stock", 8.0, 50, 0.0)
    assert rows["int4"][2:4] == (None, None)


def a_study(**changes):
    """50 seeds: `good` is .01 % off by turns, `bad` 1 % worse; the null run has five seeds."""
    seeds = []
    for s in range(50):
        fp32, turn = 1.0 + s / 8, 1e-4 * (-1) ** s
        losses = {"fp32": fp32, "good": fp32 * (1 + turn), "bad": fp32 * (1.01 + turn)}
        losses |= {"null": fp32} if s < 5 else {}
        seeds += [samples.study(name, s, loss, **changes) for name, loss in losses.items()]
    return samples.placed(*seeds)


def test_a_study_alone_has_a_line_a_config_and_each_study_a_figure():
    sgd = a_study(setup={"dense_optimizer": "sgd"})
    figure, other = quality.intervals([*a_study(), *sgd])
    assert (figure.key, other.key) == ("quality", "quality-2")
    assert other.title.endswith("4 ranks, dense layers by sgd")
    assert figure.rows == other.rows
    measures = ("seeds", "mean [%]", "low [%]", "high [%]", "upper [%]")
    assert tuple(figure.columns[1:6]) == tuple(f"test log loss, {measure}" for measure in measures)
    null, bad, good = figure.rows
    assert null == ("null", *[5, 0.0, 0.0, 0.0, 0.0] * 2, None, None)
    assert bad[:3] == ("bad", 50, pytest.approx(1.0))
    assert good[2] == pytest.approx(0, abs=1e-9)
    # Changes of +-.01 % in turns: s = .01 sqrt(50 / 49), and Student's t of 49 degrees is 2.0096.
    assert good[4] == pytest.approx(2.0096 * 0.01 / 49**0.5, rel=1e-3) == -good[3]
    assert (good[-2], good[-1]) == (PASS, None)
    assert bad[-2].startswith("not shown (logloss mean > 0.02")


def test_evaluation_only_is_compared_with_the_same_model_exact():
    seeds = [samples.study("fp32", s, 1.0) for s in range(10)]
    for s in range(10):
        evaluation = SeedEvaluation(metrics={"ne": 2.002 + s}, metrics_exact={"ne": 2.0 + s})
        seeds.append(samples.study("int4", s, 1.0, training=None, evaluation=evaluation))
    (figure,) = quality.intervals(samples.placed(*seeds))
    (row,) = figure.rows
    assert figure.columns[2] == "evaluation only: NE, mean [%]"
    assert row[1:3] == (10, pytest.approx(sum(0.2 / (2 + s) for s in range(10)) / 10))
    assert row[-2:] == (None, "not shown (ne upper > 0.02)")


def test_configurations_of_a_study_are_told_by_their_configs():
    """A cell of 16 seeds, measured again as int4 with 50, and another config of its name."""
    seeds = [samples.study("fp32", s, 1.0) for s in range(50)]
    seeds += [samples.study("cell", s, 1.01, samples.INT4) for s in range(16)]
    seeds += [samples.study("int4", s, 1.0, samples.INT4) for s in range(50)]
    (figure,) = quality.intervals(samples.placed(*seeds))
    assert [(row[0], row[1], row[-2]) for row in figure.rows] == [("int4", 50, PASS)]
    seeds += [samples.study("int4", s, 1.25, INT2) for s in range(2)]
    (figure,) = quality.intervals(samples.placed(*seeds))
    changes = {row[0]: row[1:3] for row in figure.rows}
    assert changes == {
        hashed("int4", samples.INT4): (50, 0.0), hashed("int4", INT2): (2, pytest.approx(25)),
    }  # fmt: skip


def test_losses_are_compared_step_by_step():
    lower = samples.training("int4", losses=(0.7, 0.6, 0.45))
    figure = losses.curves(runs(samples.training(), lower), Looks())
    assert figure.rows[1][4:] == (0.7, pytest.approx(0.5833333), 0.45, pytest.approx(-10.0), 0.9)
    assert losses.smooth([0.0, 3.0, 6.0], 3) == [1.5, 3.0, 4.5]


def test_plans_of_a_search_are_the_last_of_their_name():
    given = samples.searched()
    (figure,) = search.plans([*given, given[0]])
    assert figure.columns[-3:] == ("loss, mean [%]", "loss, low [%]", "loss, high [%]")
    assert [row[0] for row in figure.rows] == ["best", "half", "plan"]
    assert figure.rows[2] == ["plan", 0.02, 10.0, 10.0, 0.01, 0.001, 20, 0.011, 0.002, 0.02]
    assert figure.rows[1][-3:] == [None] * 3


def test_a_guards_run_is_its_probes_and_its_events():
    """Probes that a resumed training reads again count once."""
    once, again = samples.guarded(), samples.guarded(start=5)
    for records in (samples.placed(*once), samples.placed(*once, *again)):
        (run,) = guard.guard_runs(records)
        assert list(run.probes) == list(range(16))
        (figure,) = guard.timelines(records)
        assert [row[2:6] for row in figure.rows] == [
            ("trip", "loss", None, None),
            ("raise", "loss", "t_1", "forward"),
            ("lower", "calm", "t_1", "forward"),
        ]
        assert figure.rows[1][6:8] == ("Rowwise(bits=4)", "Rowwise(bits=8)")


def test_each_training_of_a_guard_has_a_figure_up_to_a_number():
    names = [f"run{n}" for n in range(guard.MOST_RUNS + 2)]
    figures = guard.timelines([r for name in names for r in samples.placed(*samples.guarded(name))])
    assert [figure.key for figure in figures[:2]] == ["guard", "guard-2"]
    assert len(figures) == guard.MOST_RUNS
