"""quality.study: any training can be studied; its seeds are paired, its file resumes."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trec_qcomm
from tests.lab.study import toy
from trec_qcomm import load_preset, quality
from trec_qcomm.config import config_to_dict
from trec_qcomm.lab import records
from trec_qcomm.lab.report.figures.quality import intervals
from trec_qcomm.lab.study.progress import Progress

LIMITS = {"loss": quality.Limits(mean=0.02, upper=0.05, seeds=12)}
CONFIGS = {"good": "int8", "bad": toy.BAD}


@pytest.fixture(autouse=True)
def calls() -> list[tuple[int, int, float]]:
    toy.CALLS.clear()
    return toy.CALLS


def study(path: Path, **changes: Any) -> quality.StudyResult:
    arguments: dict[str, Any] = {
        "train": toy.train, "configs": CONFIGS, "seeds": 12, "limits": LIMITS,
        "path": path / "runs.jsonl", "show_progress": False,
    }  # fmt: skip
    return quality.study(**arguments | changes)


def test_each_config_is_compared_with_float32_of_the_same_seed(tmp_path, calls):
    result = study(tmp_path, limits=LIMITS | {"auc": None}, setup={"dim": 4})
    assert result.verdicts["good"].text == "PASS"
    assert result.verdicts["bad"].text == "not shown (loss mean > 0.02, loss upper > 0.05)"
    assert result.verdicts["bad"].changes["loss"].mean == pytest.approx(1, abs=0.01)
    assert result.passed == ["good"]
    assert sorted(set(calls)) == sorted(
        (bits, seed, perturbation)
        for bits, perturbation in ((32, 0.0), (32, 1e-6), (8, 0.0), (2, 0.0))
        for seed in range(12)
    )
    assert len(calls) == 48
    head, _, null, good, bad = result.table().splitlines()
    assert head == "| config | seeds | loss, % | training gate | auc, % |"
    assert null.startswith("| null | 12 | ")
    assert " | - | " in null
    assert good.endswith("| PASS | +0.000 [+0.000, +0.000], upper +0.000 |")
    assert bad.endswith("| -14.286 [-14.286, -14.286], upper -14.286 |")
    assert str(result) == f"{result.table()}\n{tmp_path / 'runs.jsonl'}"
    made = records.read(tmp_path / "runs.jsonl")
    assert {record.setup["dim"] for record in made} == {4}
    assert {record.limits["loss"].upper for record in made} == {0.05}


def test_the_same_call_goes_on_where_it_stopped(tmp_path, calls):
    done = study(tmp_path, configs={"good": "int8"}, seeds=5)
    assert len(calls) == len(done.records) == 15
    whole = study(tmp_path)
    assert len(calls) == len(whole.records) == 48
    assert study(tmp_path).table() == whole.table()
    assert len(calls) == 48


def test_an_interrupted_study_goes_on(tmp_path, calls, monkeypatch):
    def interrupted(config, seed, perturbation):
        if len(toy.CALLS) == 10:
            raise KeyboardInterrupt
        return toy.train(config, seed, perturbation)

    with pytest.raises(KeyboardInterrupt):
        study(tmp_path, train=interrupted)
    assert len(records.read(tmp_path / "runs.jsonl")) == 10
    result = study(tmp_path)
    assert len(calls) == 48
    (tmp_path / "other").mkdir()
    assert study(tmp_path / "other").table() == result.table()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"setup": {"dim": 8}}, r"runs with other dim; give another path"),
        ({"num_ranks": 2}, r"runs with other num_ranks"),
        ({"configs": {"good": toy.BAD}}, r"runs of another config good; give another path or name"),
        ({"baseline": "int8"}, r"runs of another config fp32"),
        ({"limits": {"loss": quality.TRAINING}}, r"runs with other limits of training \({'loss'"),
        ({"seeds": 20}, r"other looks \(\(10, 12\) there, \(10, 15, 20\) here\)"),
        ({"stop_early": False}, r"other looks \(\(10, 12\) there, none here\)"),
    ],
)
def test_a_file_of_another_study_is_refused(tmp_path, calls, changes, message):
    early = {"stop_early": True, "setup": {"dim": 4}, "configs": {"good": "int8"}}
    study(tmp_path, **early)
    number = len(calls)
    with pytest.raises(ValueError, match=message):
        study(tmp_path, **early | changes)
    assert len(calls) == number


def test_a_study_that_may_stop_runs_no_more_than_it_needs(tmp_path, calls):
    limits = {"loss": replace(LIMITS["loss"], seeds=30)}
    result = study(tmp_path, limits=limits, seeds=30, stop_early=True)
    verdicts = {name: (v.text, v.num_seeds) for name, v in result.verdicts.items()}
    assert verdicts == {"good": ("PASS", 10), "bad": ("FAIL (loss mean > 0.02)", 10)}
    assert len(calls) == 40
    again = study(tmp_path, limits=limits, seeds=30, stop_early=True)
    assert len(calls) == 40
    assert again.table() == result.table()


def test_evaluation_switches_codecs_on_for_the_model_of_float32(tmp_path):
    result = study(
        tmp_path, train=toy.train_model, limits=None, evaluation={"loss": quality.EVALUATION},
        seeds=10,
    )  # fmt: skip
    assert result.verdicts == {}
    assert result.evaluation_verdicts["good"].passed
    assert result.evaluation_verdicts["bad"].text == "not shown (loss upper > 0.02)"
    trained = {r.configuration for r in result.records if r.training}
    assert trained == {"fp32", "null"}
    head = result.table().splitlines()[0]
    assert head == "| config | seeds | eval-only: loss, % | eval-only gate |"
    both = study(tmp_path, train=toy.train_model, evaluation={"loss": quality.EVALUATION}, seeds=10)
    assert both.passed == []
    assert both.verdicts["good"].text == "not shown (10 of 12 seeds)"
    assert "loss, codecs off, %" in both.table()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": lambda config, seed: {}}, r"train\(config, seed, perturbation\)"),
        ({"train": "train.py"}, "train: expected .*'train.py' is not a callable"),
        ({"configs": "int8"}, "configs: expected a list or a mapping"),
        ({"configs": ["int8", "some/int8.yaml"]}, "configs: int8 is given twice"),
        ({"configs": ["int9"]}, "configs, int9: config: 'int9' is neither a file nor a preset"),
        ({"configs": ["no/such.yaml"]}, "configs, such: .*no/such.yaml"),
        ({"configs": [load_preset("int8")]}, "configs: a Config has no name"),
        ({"configs": {"null": "int8"}}, "configs: null is run anyway"),
        ({"configs": []}, "configs: expected one or more"),
        ({"limits": None}, "limits: expected limits of one metric or more"),
        ({"limits": {"loss": 0.05}}, "limits, loss: expected Limits or None, got 0.05"),
        ({"seeds": 0}, "seeds 0: expected one or more"),
        ({"seeds": [1, 1]}, "seeds: one is given twice"),
        ({"seeds": 4, "stop_early": True}, "seeds: to stop early takes 5 or more"),
        ({"jobs": 0}, "jobs 0: must be positive"),
        ({"num_ranks": 0}, "num_ranks 0: must be positive"),
        ({"train": lambda c, s, p: {}, "jobs": 2}, "jobs 2: train cannot be sent to other proc"),
        ({"limits": {"ndcg": quality.TRAINING}}, r"no metric ndcg in .* fp32 returned \(loss, auc"),
        ({"train": lambda c, s, p: 0.5}, "train: expected a mapping of metrics, or an object"),
        ({"train": lambda c, s, p: {"loss": "low"}}, "metric loss of seed 0 of fp32: expected a"),
        ({"train": lambda c, s, p: {"loss": float("nan")}}, "metric loss: seed 0 of fp32 is nan"),
        ({"train": lambda c, s, p: {"loss": -1.0}}, "is -1.0, expected a positive number, or is_"),
        ({"evaluation": {"loss": quality.EVALUATION}}, "train: expected an object with metrics"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        study(tmp_path, **changes)


def test_a_file_of_other_records_is_refused(tmp_path):
    other = records.TrainingRecord(configuration="int8", steps=1)
    records.append(tmp_path / "runs.jsonl", other)
    with pytest.raises(ValueError, match="line 1: a record of kind training, not study"):
        study(tmp_path)


def test_metrics_may_be_better_when_higher_and_compared_by_their_difference(tmp_path):
    limits = {
        "auc": quality.Limits(
            mean=0.001, upper=0.002, seeds=5, higher_is_better=True, is_relative=False
        )
    }
    result = study(tmp_path, limits=limits, seeds=5)
    assert result.verdicts["good"].passed
    assert result.verdicts["bad"].changes["auc"].mean == pytest.approx(0.1)
    assert result.table().startswith("| config | seeds | auc | training gate |")
    line = intervals(result.records)[0]
    assert "auc (difference), mean" in line.columns


@pytest.mark.dist
def test_several_processes_run_the_same_and_tell_an_error(tmp_path):
    alone, path = study(tmp_path, seeds=5), tmp_path / "two"
    with pytest.raises(quality.TrainingFailedError, match="RuntimeError: the model is gone"):
        study(path, seeds=5, train=toy.fail_from_seed_3, jobs=2)
    assert "fail_from_seed_3" in (path / "errors.log").read_text()
    kept = records.read(path / "runs.jsonl")
    assert {record.seed for record in kept} <= {0, 1, 2}
    two = study(path, seeds=5, jobs=2)
    assert two.table() == alone.table()
    assert len(two.records) == 20


def test_the_report_judges_by_the_limits_of_the_records(tmp_path):
    result = study(tmp_path)
    (figure,) = intervals(result.records)
    assert figure.columns[1] == "loss, seeds"
    assert [row[0] for row in figure.rows] == ["null", "bad", "good"]
    assert figure.rows[2][-2] == "PASS"
    assert figure.rows[1][-2] == result.verdicts["bad"].text


def test_progress_says_what_is_left(monkeypatch):
    now = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr("trec_qcomm.lab.study.progress.time.monotonic", lambda: next(now))
    file = io.StringIO()
    progress = Progress("mine", most="at most ", file=file)
    progress.step("seed 3, int8", 30)
    progress.step("seed 3, int8", 3)
    assert file.getvalue().splitlines() == [
        "mine: seed 3, int8; 1 done, at most 30 left, at most 5 min",
        "mine: seed 3, int8; 2 done, at most 3 left, at most 30 s",
    ]


def test_the_package_imports_it_when_it_is_first_used():
    assert "quality" not in dir(trec_qcomm)
    assert trec_qcomm.__getattr__("quality") is quality


def test_configs_may_be_given_in_any_form():
    config = load_preset("int8")
    forms = quality.configs_by_name({"a": config, "b": "int8", "c": config_to_dict(config)})
    assert all(config_to_dict(form) == config_to_dict(config) for form in forms.values())
