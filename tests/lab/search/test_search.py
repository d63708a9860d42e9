"""search: the planted plan, resumption, steps back, bad input; a training is a formula."""

from pathlib import Path
from typing import Any

import pytest

import trec_qcomm
from tests.lab.search import planted
from trec_qcomm import ErrorBounded, Fbgemm, Identity, Rowwise, Throughput, load_config, quality
from trec_qcomm.lab import records
from trec_qcomm.lab.search import NotDecidableError, SearchResult
from trec_qcomm.lab.search.calibration import spread_of_fine
from trec_qcomm.lab.search.choices import best

FINE, COARSE, INT2 = ErrorBounded(0.01), ErrorBounded(0.05), Rowwise(2)
INT4_GRADIENTS, INT2_GRADIENTS = Rowwise(4, "stochastic"), Rowwise(2, "stochastic")
CANDIDATES = {"forward": [FINE, COARSE, INT2], "backward": [INT4_GRADIENTS, INT2_GRADIENTS]}


@pytest.fixture(autouse=True)
def _calls() -> None:
    planted.CALLS.clear()


def search(path: Path, **changes: Any) -> SearchResult:
    arguments: dict[str, Any] = {
        "train": planted.train, "candidates": CANDIDATES, "budget": 0.02, "path": path,
        "metrics": ["loss"], "use": 1.0, "show_progress": False,
    }  # fmt: skip
    return trec_qcomm.search(**arguments | changes)


WHOLE: dict[str, Any] = {"evaluation": {"loss": quality.EVALUATION}, "base": "dense_float6"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[SearchResult, int]:
    """Return the result of a search, and how many trainings it took."""
    planted.CALLS.clear()
    result = search(tmp_path_factory.mktemp("whole"), **WHOLE)
    return result, len(planted.CALLS)


def test_it_finds_the_planted_table(whole):
    result, _ = whole
    choice = result.plan.choice
    assert {table: pair.forward for table, pair in choice.items()} == {
        "a": COARSE, "b": FINE, "c": COARSE, "d": COARSE,
    }  # fmt: skip
    assert {pair.backward for pair in choice.values()} == {INT2_GRADIENTS}
    shares = result.model.shares["forward"]
    assert max(shares, key=lambda table: shares[table]) == "b"
    assert result.plan.verdict == "Training: PASS; evaluation: PASS"
    assert set(result.plan.verified) == {"loss", "eval-only loss"}
    assert result.plan.nbytes == 15300  # (3.5 + 4 bits of 620 rows, 6 + 4 of 300) x 16 / 8
    half, twice = result.plans["half"], result.plans["twice"]
    assert half.nbytes > result.plan.nbytes >= twice.nbytes
    assert half.expected <= 0.01
    assert result.plan.expected <= 0.02


def test_the_config_that_is_written_is_the_plan(whole, tmp_path):
    result, _ = whole
    result.write(tmp_path / "plan.yaml")
    config = load_config(tmp_path / "plan.yaml")
    config.check_patterns(planted.ROWS)
    assert config.dense == trec_qcomm.load_preset("dense_float6").dense
    assert {rule.unique_bags for rule in config.embedding} == {"auto"}
    for table, pair in result.plan.choice.items():
        rule = config.rule_for(table)
        assert (rule.forward, rule.backward) == (pair.forward, pair.backward)
    text = (tmp_path / "plan.yaml").read_text()
    assert "# Verified over 30 seeds, loss: +0.0" in text
    assert "# Training: PASS; evaluation: PASS." in text
    assert "# backward: 4960 of 39680 bytes, 18.1 dB or more, expected +0.00" in text
    assert len(config.embedding) == 2
    assert "15300  13.0%       -        +0.0" in str(result)


def test_the_same_call_goes_on_where_it_stopped(whole, tmp_path):
    def interrupted(config, seed, perturbation):
        if len(planted.CALLS) == stop:
            raise KeyboardInterrupt
        return planted.train(config, seed, perturbation)

    for stop in (2, 11, 40):  # in the probes, the calibration, the verification
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path, train=interrupted, **WHOLE)
        assert len(planted.CALLS) == stop
    assert str(search(tmp_path, **WHOLE)) == str(whole[0])
    # Models are trained again to be scored: those of a seed that was interrupted.
    assert len(planted.CALLS) - whole[1] in (0, 1)
    stop = len(planted.CALLS)  # from here on no training is needed
    assert str(search(tmp_path, train=interrupted, **WHOLE)) == str(whole[0])


def test_plans_are_records_with_those_of_other_budgets(whole):
    path = whole[0].search.folder / "plans.jsonl"
    by_name = {record.configuration: record for record in records.read(path)}
    plan = by_name["plan"]
    assert plan.figures["nbytes"] == 15300
    assert plan.figures["float32_nbytes"] == 920 * 64 * 2
    assert plan.figures["loss low"] < plan.figures["loss mean"] < plan.figures["loss high"]
    assert "loss mean" not in by_name["half"].figures
    assert "codecs of best" not in by_name  # no candidates
    front = [r.figures["nbytes"] for name, r in by_name.items() if name.endswith("of the budget")]
    assert front == sorted(front, reverse=True)
    assert len(front) == 6


def test_a_plan_is_compared_with_best_where_its_codecs_are_candidates(tmp_path):
    codecs = [*dict.fromkeys((best().forward, best().backward)), COARSE]
    candidates = {"forward": codecs, "backward": codecs}
    result = search(tmp_path, candidates=candidates, rounds=0, calibration_seeds=2)
    by_name = {r.configuration: r.figures for r in records.read(tmp_path / "plans.jsonl")}
    assert by_name["codecs of best"]["nbytes"] == 2 * 920 * 16 * 6 / 8  # the planted bits
    share = result.plan.nbytes / by_name["codecs of best"]["nbytes"]
    assert f"{share:.1%}" in str(result)


def test_the_spread_is_that_of_the_null_run_and_of_what_changes_least():
    changes = {
        "null": {"loss": {0: -0.01, 1: 0.01}},
        "fine": {"loss": {0: -0.02, 1: 0.04}},
        "coarse": {"loss": {0: 3.0, 1: 5.0}},
    }
    assert spread_of_fine(changes, ["loss"]) == {"loss": pytest.approx(0.06 / 2**0.5)}
    assert spread_of_fine({"null": changes["null"]}, ["loss"])["loss"] < 0.02


def test_a_new_candidate_is_probed_alone(whole, tmp_path):
    fewer = CANDIDATES | {"forward": [FINE, INT2]}
    search(tmp_path, candidates=fewer, rounds=0, calibration_seeds=2)
    planted.CALLS.clear()
    result = search(tmp_path, rounds=0)
    shadows = [config.debug.shadow for config, _, _ in planted.CALLS if config.debug]
    assert shadows == [(COARSE,)] * 3
    assert result.plan.nbytes == whole[0].plan.nbytes
    assert result.model.prices == whole[0].model.prices


def test_seeds_of_the_verification_were_not_used_before(tmp_path):
    search(tmp_path, rounds=1, first_seed=500)
    used = {
        name: {record.seed for record in records.read(tmp_path / f"{name}.jsonl")}
        for name in ("probes", "calibration", "verification-1")
    }
    assert min(used["probes"]) == 500
    assert not used["verification-1"] & (used["probes"] | used["calibration"])


def test_a_plan_that_fails_steps_back_from_what_costs_most(tmp_path):
    class Worse(planted.Model):
        @property
        def metrics(self) -> dict[str, float]:
            """Let a wide bound of rows cost much more where gradients are coded, too."""
            pairs = [self.config.rule_for(table) for table in planted.ROWS]
            coded = any(p.forward == COARSE and p.backward != Identity() for p in pairs)
            return {"loss": super().metrics["loss"] * (1 + 0.002 * coded)}

    def worse(config, seed, perturbation):
        planted.train(config, seed, perturbation)
        return Worse(config, seed)

    result = search(tmp_path, train=worse)
    assert result.plan.blames[0].startswith("forward error_bounded_0.05 of ")
    assert result.plan.verdict == "Training: PASS"
    assert "# Stepped back from forward error_bounded_0.05 of " in result.text()
    assert (tmp_path / "verification-2.jsonl").exists()


def test_without_a_model_to_score_a_training_of_half_the_tables_tells_them_apart(tmp_path):
    def train(config, seed, perturbation):
        return planted.train(config, seed, perturbation).metrics

    result = search(tmp_path, train=train, rounds=0)
    shares = result.model.shares["forward"]
    assert shares["b"] == max(shares.values()) > 10 * min(shares.values())
    assert result.plan.verdict == ""


def test_a_slow_link_wants_few_bytes_and_a_fast_one_float32(tmp_path, monkeypatch):
    speed = Throughput(encode_gb_s=1.0, decode_gb_s=1.0)
    monkeypatch.setattr("trec_qcomm.lab.search.plans.measure_throughput", lambda codec, dim: speed)
    options = {"rounds": 0, "budget": 1.0}
    slow = search(tmp_path, link_gb_s=1e-6, **options)
    fast = search(tmp_path, link_gb_s=1e6, **options)
    assert slow.plan.nbytes == search(tmp_path, **options).plan.nbytes
    assert {(p.forward, p.backward) for p in fast.plan.choice.values()} == {(Identity(),) * 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": {"forward": []}}, r"candidates\.forward: expected one or more"),
        (
            {"candidates": {"forward": ["identity"], "backward": ["identity"]}},
            "candidates: all are identity",
        ),
        ({"candidates": {"rows": []}}, "candidates, rows: expected one of forward, backward"),
        ({"unique_bags": "maybe"}, "unique_bags: 'maybe' is not one of"),
        (
            {"candidates": {"forward": [{"codec": "rowwise", "bits": 5}]}},
            r"candidates\.forward\[0\]\.bits: rowwise\.bits: 5 is not one of|candidates\.forward",
        ),
        (
            {"candidates": {"forward": [{"codec": "threshold", "threshold": 1}]}},
            "is for gradients only",
        ),
        ({"candidates": {"backward": ["forward_mask"]}}, "codes columns that another codec"),
        ({"candidates": {"forward": [FINE, FINE]}}, r"forward\[1\]: .* is given twice"),
        (
            {"candidates": {"forward": [Fbgemm("int2")]}, "dims": {"t": 12}},
            r"candidates\.forward\[1\]: .*table 't'",
        ),
        ({"budget": 0}, "budget: 0 is not a number above 0"),
        ({"verification_seeds": 4}, "verification_seeds: 4 is not a number above 4"),
        ({"metrics": "loss"}, "metrics: expected a list of names, got 'loss'"),
        ({"base": "absent.yaml"}, "configs, base: absent.yaml: no such file"),
        ({"train": 3}, "train: expected a function, got int"),
    ],
)
def test_bad_input_is_refused_before_any_training(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        search(tmp_path, **changes)
    assert not planted.CALLS


def test_a_budget_below_the_noise_says_how_many_seeds_it_takes(tmp_path):
    with pytest.raises(NotDecidableError, match="not decidable with these seeds: loss") as error:
        search(tmp_path, budget=0.0005)
    assert "so a verification takes" in str(error.value)
    needed = int(str(error.value).split("takes ")[1].split()[0])
    assert 200 < needed < 800  # (.01 / .0005)^2, of a spread from few seeds
    assert not (tmp_path / "verification-1.jsonl").exists()


def test_a_training_that_ignores_debug_is_told_so(tmp_path):
    with pytest.raises(ValueError, match="seed 1000 left no debug records of tables"):
        search(tmp_path, train=lambda config, seed, perturbation: {"loss": 1.0})


def test_records_of_another_setup_are_refused(tmp_path):
    search(tmp_path, rounds=0, setup={"dim": 16})
    with pytest.raises(ValueError, match="a search with other dim; give another path"):
        search(tmp_path, rounds=0, setup={"dim": 64})
