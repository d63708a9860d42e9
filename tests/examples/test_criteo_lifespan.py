"""lifespan.py: drifts happen once and to the right rows, guards are judged by the right probes."""

from pathlib import Path
from types import SimpleNamespace

import lifespan
import numpy as np
import pytest
import torch
import yaml
from data.dataset import FEATURES, Dataset
from data.samples import Columns, Samples
from life.drifts import SCALE, SPIKE_FACTOR, SPIKE_STEPS, Drift
from life.lives import Reaction
from life.table import table_of
from options import build_parser
from train import load_dataset

from trec_qcomm.config import load_preset
from trec_qcomm.lab.records import GuardProbeRecord, GuardRecord

SMALL = ["--rows", "1200", "--batch-size", "32", "--ranks", "2", "--embedding-dim", "4"]
SMALL += ["--dense-arch", "4", "--over-arch", "1"]
AT_STEP = 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flood", "drift flood: expected one of none, scale"),
        ("spike:C3", "drift spike:C3: spike takes no feature"),
        ("dead", "drift dead: expected a feature, such as dead:C3"),
        ("dead:t_C3", "drift dead:t_C3: expected a feature"),
        ("dead:C3*2", r"drift dead:C3\*2: expected a number > 0, after one of scale, shrink"),
        ("scale:C3*x", r"drift scale:C3\*x: expected a number > 0"),
    ],
)
def test_bad_drifts_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Drift.from_name(text, 1)


@pytest.mark.parametrize("name", ["dead", "new_ids"])
def test_ids_change_from_a_step_on(name: str) -> None:
    options = build_parser().parse_args(["--config", "stock", *SMALL])
    dataset = load_dataset(options)
    before = ids_of(dataset)
    changed = ids_of(Drift.from_name(f"{name}:C3", AT_STEP).change_rows(dataset, 64))
    assert np.array_equal(ids_of(dataset), before)
    differs = changed != before
    assert not differs[: AT_STEP * 64].any()
    assert not np.delete(differs, 2, axis=1).any()
    assert differs[AT_STEP * 64 :, 2].mean() > 0.5
    assert len(set(changed[AT_STEP * 64 :, 2])) == 1 or name == "new_ids"


def ids_of(dataset: Dataset) -> np.ndarray:
    """[N, 26] a copy of all ids."""
    return np.concatenate([dataset.rows.ids_of(k) for k in range(len(FEATURES))], axis=1)


@pytest.mark.parametrize(
    ("name", "factors"),
    [("scale", [SCALE] * 3), ("shrink", [1 / SCALE] * 3), ("outlier", [1, SCALE, 1])],
)
def test_a_table_changes_once(name: str, factors: list[float]) -> None:
    weights = {"model.t_C3.weight": torch.ones(3, 2), "model.t_C33.weight": torch.ones(3, 2)}
    shards = {
        key: SimpleNamespace(local_shards=lambda w=weight: [SimpleNamespace(tensor=w)])
        for key, weight in weights.items()
    }
    ids = np.array([[0, 0, id_] for id_ in [1] + [2] * 10 + [0] * 90])
    dataset = SimpleNamespace(train=Samples([Columns(ids[:, 0], ids[:, :1], ids)]))
    drift = Drift.from_name(f"{name}:C3", AT_STEP)
    for step in range(2 * AT_STEP):
        trainer = SimpleNamespace(step=step, dmp=SimpleNamespace(state_dict=lambda: shards))
        drift.before_step(trainer, dataset)
        expected = torch.tensor(factors if step >= AT_STEP else [1.0] * 3)[:, None].expand(3, 2)
        assert torch.equal(weights["model.t_C3.weight"], expected)
    assert torch.equal(weights["model.t_C33.weight"], torch.ones(3, 2))


def test_learning_rates_spike_and_come_back() -> None:
    groups = [{"lr": 0.5}, {"lr": 0.25}]
    drift, rates = Drift.from_name("spike", AT_STEP), []
    for step in range(AT_STEP + SPIKE_STEPS + 2):
        trainer = SimpleNamespace(step=step, optimizer=SimpleNamespace(param_groups=groups))
        drift.before_step(trainer, SimpleNamespace())
        rates.append([group["lr"] for group in groups])
    spiked = [SPIKE_FACTOR * 0.5, SPIKE_FACTOR * 0.25]
    assert rates[:AT_STEP] == [[0.5, 0.25]] * AT_STEP
    assert rates[AT_STEP:-2] == [spiked] * SPIKE_STEPS
    assert rates[-2:] == [pytest.approx([0.5, 0.25])] * 2


def test_codecs_of_a_search_on_the_first_rows_follow_float32(tmp_path, monkeypatch) -> None:
    plan, searches = load_preset("fp32"), []

    def search(**options):
        searches.append(options)
        return SimpleNamespace(config=plan, write=lambda path: path.write_text("plan"))

    monkeypatch.setattr(lifespan.trec_qcomm, "search", search)
    words = ["--config", "int8", "--out", str(tmp_path), "--probes", "1", "--no-test", "--every"]
    words += ["2", "--log-every", "1", *SMALL, "--steps", "6"]
    first = [*words, "--search-first", "0.7", "--search-seeds", "2"]
    parse = lifespan._parser().parse_known_args
    whole = lifespan.run_all(*parse([*words, "--runs", "fp32"]), tmp_path / "whole.jsonl")
    lives = lifespan.run_all(*parse([*first, "--runs", "guard"]), tmp_path / "rest.jsonl")
    (options,) = searches
    assert options["train"].num_rows == 4 * 64
    assert options["setup"]["num_rows"] == 4 * 64
    assert options["base"] == load_preset("int8")
    assert (options["budget"], options["calibration_seeds"]) == (0.02, 3)
    guard = lives.of_drift("none", "guard")[0]
    assert yaml.safe_load(guard.config)["embedding"][0]["forward"]["codec"] == "identity"
    assert guard.losses == whole.of_drift("none", "fp32")[0].losses  # optimizers and all
    assert [probe.step for probe in lives.probes["none guard 0"]] == [2]  # of its own steps
    assert list(lives.nbytes("none guard 0")[0]) == [5, 6]
    late = [*first, "--drift", "spike", "--at-step", "3"]
    with pytest.raises(ValueError, match="--at-step 3: before the search ends, 4"):
        lifespan.run_all(*parse(late), tmp_path / "rest.jsonl")


def test_the_first_rows_are_split_as_all_are() -> None:
    dataset = Dataset(np.arange(100), 85, [3])
    first = dataset.first(70)
    assert first.train.tolist() == list(range(60))
    assert first.test.tolist() == list(range(60, 70))


def event(step: int, kind: str, table: str | None = None) -> GuardRecord:
    return GuardRecord(
        configuration="x", step=step, probe=0, event=kind, reason="loss", message="", table=table
    )


def test_a_reaction_is_counted_in_probes_from_the_drift() -> None:
    probes = [
        GuardProbeRecord(configuration="x", step=step, probe=n, limit_ne=0.02)
        for n, step in enumerate(range(10, 80, 10))
    ]
    events = [event(20, "trip"), event(50, "trip"), event(50, "raise", "t_C3")]
    events += [event(60, "raise", "t_C3"), event(70, "raise", "t_C4"), event(70, "calm")]
    reaction = Reaction.from_records(events, probes, 30)
    assert reaction == Reaction(1, 2, ("t_C3", "t_C4"), 3)
    assert Reaction.from_records(events, probes, None).false_trips == 5
    assert Reaction.from_records([], probes, 30) == Reaction(0, None, (), 0)


def test_trainings_are_paired_and_run_once(tmp_path: Path) -> None:
    words = [
        "--drift",
        "none",
        "shift:C14",
        "--at-step",
        str(AT_STEP),
        "--every",
        "2",
        "--probes",
        "1",
    ]
    words += ["--log-every", "2", "--out", str(tmp_path), "--runs", "fp32"]
    arguments, rest = lifespan._parser().parse_known_args([*words, *SMALL, "--steps", "6"])
    path = tmp_path / "lifespan.jsonl"
    lives = lifespan.run_all(arguments, rest, path)
    calm, drifting = (lives.of_drift(d, "fp32")[0].losses for d in ("none", "shift:C14"))
    assert calm[:AT_STEP] == drifting[:AT_STEP]
    assert calm[AT_STEP:] != drifting[AT_STEP:]
    assert list(lives.nbytes("shift:C14 fp32 0")[0]) == [2, 4, 6]
    arguments.drift, arguments.runs = ["shift:C14"], ["guard"]
    lives = lifespan.run_all(arguments, rest, path)
    assert [probe.step for probe in lives.probes["shift:C14 guard 0"]] == [2, 4, 6]
    assert not (tmp_path / "guard.jsonl").exists()
    lines = path.read_text()
    again = lifespan.run_all(arguments, rest, path)
    assert path.read_text() == lines
    assert table_of(again) == table_of(lives)
    assert "shift:C14" in table_of(lives)
    arguments.at_step += 1
    with pytest.raises(ValueError, match="trainings of another at_step"):
        lifespan.run_all(arguments, rest, path)
