"""Rules: verdicts of numbers whose answers are known."""

from types import SimpleNamespace

import pytest

from examples.papers.claims import EXAMPLES
from examples.papers.decisions import FAILS, HOLDS, OPEN
from examples.papers.rules import benches, measured, trainings
from trec_qcomm.lab import records
from trec_qcomm.lab.study.paired import Change


@pytest.mark.parametrize("line", ["[]", "{}", '{"case": "a", "values": {"x": "y"}}', "nonsense"])
def test_a_line_that_is_no_measurement_is_named(line, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"case": "a", "values": {"x": 1.0}}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"records\.jsonl, line 2: no measurement"):
        measured.read(path)


def test_a_pair_without_records_leaves_a_comparison_open(monkeypatch, tmp_path):
    lower = {"logloss": Change.from_percents([-1.0, -1.1, -0.9] * 3)}
    monkeypatch.setattr(trainings, "changes_of", lambda _, *pair: lower if pair[0] == "a" else {})

    def outcome(*pairs):
        return trainings.compare(tmp_path, pairs, [True] * len(pairs), is_lower=True)

    alone = outcome(("a", "b"))
    assert (alone.verdict, alone.fields) == (HOLDS, {"seeds": "9 seeds"})
    assert alone.result.startswith("`a` against `b`: test -1.000 [")
    both = outcome(("a", "b"), ("c", "b"))
    assert (both.verdict, both.to_tell) == (OPEN, "trainings of c and b")
    assert outcome(("c", "b")) is None


def test_a_pair_that_does_not_count_is_shown(monkeypatch, tmp_path):
    changes = {"a": Change.from_percents([0.0, 0.001] * 25), "b": Change.from_percents([5, 6] * 25)}
    monkeypatch.setattr(trainings, "changes_of", lambda _, name, base: {"logloss": changes[name]})
    pairs = [("a", "fp32"), ("b", "fp32")]
    verdicts = [
        trainings.compare(tmp_path, pairs, counted, is_lower=False)
        for counted in ([True, True], [True, False])
    ]
    assert [v.verdict for v in verdicts] == [FAILS, HOLDS]
    assert all("`b`: test +5.500" in v.result for v in verdicts)


def test_a_pair_of_runs_that_differs_is_told():
    same = {"fp32": 1.0, "best": 1.0, "another_seed": 1.0}
    cases = {"first": same, "second": same}

    def outcome(**changed):
        return measured.repeats(cases | {"first": same | changed})

    told = [outcome(), outcome(best=0.0), outcome(another_seed=0.0), outcome(best=-1.0)]
    assert [o.verdict for o in told] == [HOLDS, FAILS, OPEN, HOLDS]
    assert "4 of 4 pairs" in told[0].result
    assert "not best (first)" in told[1].result
    assert "best (first)" in told[3].result


@pytest.mark.parametrize(
    ("planned_s", "again_s", "verdict"), [(0.8, 0.9, HOLDS), (0.95, 0.9, OPEN), (1.2, 1.1, FAILS)]
)
def test_a_placement_is_faster_only_beyond_what_equal_plans_differ(planned_s, again_s, verdict):
    values = {"planned_s": planned_s, "dealt_s": 1.0, "dealt_again_s": again_s}
    assert measured.placement({"fast, 1gbit": values}, "dealt").verdict == verdict


def test_classes_need_small_and_large_tables_in_their_places():
    table = {"rank_correlation": -0.9, "num_large": 4, "num_small": 2, "num_small_loose": 2}
    table |= {f"num_{size}_{kind}": 0 for size in ("large", "small") for kind in ("tight", "base")}
    table |= {"num_large_loose": 0, "num_large_tight": 3}
    changes = ({}, {"num_large_tight": 2}, {"num_small_loose": 1}, {"rank_correlation": 0})
    verdicts = [measured.classes({"toy": table | change}).verdict for change in changes]
    assert verdicts == [HOLDS, FAILS, FAILS, OPEN]


@pytest.mark.parametrize(("gaussian", "verdict"), [(True, HOLDS), (False, FAILS)])
def test_a_gaussian_is_told_from_uniform_values(gaussian, verdict):
    spread = [2 ** -(((k - 20) / 6) ** 2) if gaussian else 1.0 for k in range(measured.NUM_BINS)]
    bins = {f"bin {k}": 1000 * share for k, share in enumerate(spread)}
    values = {"index": 0.5, "mean": 0.0, "deviation": 0.25 if gaussian else 0.58, **bins}
    outcome = measured.nearer_to_gaussian({"SGD, t": values})
    assert outcome.verdict == verdict
    assert measured.nearer_to_gaussian({"SGD, t": values | {"index": 1.0}}).verdict == OPEN


def steps(rate, share, stock_s, forward_s):
    """Return the records of one run over a link."""
    by_name = {"stock": stock_s, "fp32": stock_s, "forward": forward_s}
    return [
        SimpleNamespace(
            rate=rate, configuration=name, setup={"embedding_optimizer": "sgd"},
            step_s=SimpleNamespace(p50=step_s), breakdown_s={"all-to-all": share * stock_s},
        )
        for name, step_s in by_name.items()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ([("900mbit", 0.58, 2.4, 1.7), ("500mbit", 0.7, 4.0, 2.0)], HOLDS),
        ([("900mbit", 0.58, 2.4, 2.0), ("500mbit", 0.7, 4.0, 3.0)], FAILS),
        ([("900mbit", 0.58, 2.4, 2.0), ("500mbit", 0.7, 4.0, 2.0)], OPEN),
        # The run that says least counts.
        ([("900mbit", 0.58, 2.4, 1.7), ("900mbit", 0.58, 2.4, 1.8)], OPEN),
        # A link whose runs lie on both sides of .6 bounds nothing.
        ([("700mbit", 0.58, 2.4, 1.7), ("700mbit", 0.62, 2.4, 1.7)], OPEN),
    ],
)
def test_the_gain_at_the_papers_share_lies_between_links(runs, verdict):
    made = [record for each in runs for record in steps(*each)]
    outcome = benches.faster_step(made, "sgd", 0.6, 1.38)
    assert outcome.verdict == verdict
    with pytest.raises(ValueError, match=r"\d runs of stock, \d of fp32, \d of forward"):
        benches.faster_step(made[:-1], "sgd", 0.6, 1.38)


def test_an_all_reduce_by_node_sends_a_ranks_share_between_nodes():
    made = records.read(EXAMPLES / "bench" / "results" / "clusters.jsonl")
    assert benches.bytes_between_nodes(made, "fast", "by_node").verdict == HOLDS
    assert benches.bytes_between_nodes(made, "fast", "fast").verdict == FAILS
    alone = [record for record in made if record.ranks_per_host == 1]
    assert benches.bytes_between_nodes(alone, "fast", "by_node") is None
