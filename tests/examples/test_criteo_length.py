"""Rows without end, and gaps to float32 along a long training."""

import numpy as np
import pytest
from data.dataset import FEATURES
from data.endless import BLOCK_ROWS, PERIOD, RANKS, SHARES, endless, table_sizes
from data.synthetic import sigmoid
from studies import gaps, length

from trec_qcomm.lab.records import Environment, SeedTraining, StudyRecord, read

DATASET = endless(5 * BLOCK_ROWS, seed=3)


def test_rows_depend_on_the_seed_and_their_place_alone():
    across = DATASET.rows[BLOCK_ROWS - 5 : BLOCK_ROWS + 7].to_batch()
    again = endless(10**9, seed=3).rows[BLOCK_ROWS : BLOCK_ROWS + 7].to_batch()
    ids = across.sparse_features.values().view(26, -1)
    assert ids[:, 5:].equal(again.sparse_features.values().view(26, -1))
    assert across.labels[5:].equal(again.labels)
    assert across.dense_features[5:].equal(again.dense_features)
    other = endless(10**9, seed=4).rows[BLOCK_ROWS : BLOCK_ROWS + 7].to_batch()
    assert not again.dense_features.equal(other.dense_features)
    assert across.sparse_features.keys() == FEATURES
    assert len(DATASET.rows[:0].to_batch().labels) == 0


def test_categories_occur_as_often_as_measured():
    columns = DATASET.rows.gather()
    for (shares, _), ids, size in zip(SHARES, columns.ids, table_sizes(), strict=True):
        assert 0 <= ids.min() <= ids.max() < size
        often = np.sort(np.bincount(ids[:, 0]))[::-1].cumsum() / len(ids)
        for rank, share in list(zip(RANKS, shares, strict=False))[:4]:
            assert often[min(rank, len(often)) - 1] == pytest.approx(share, abs=0.012)
    assert columns.labels.mean() == pytest.approx(0.2568, abs=0.01)


def test_a_seventh_of_the_categories_is_new_after_a_period():
    rows = DATASET.rows.pieces
    rank = np.arange(10_000) % 3000
    before, after = (rows.keys_of(1, rank, np.full(10_000, at)) for at in (0, PERIOD))
    assert (before != after).mean() == pytest.approx(1 / 7, abs=0.02)


def test_clicks_follow_the_planted_logit():
    rows = DATASET.rows.pieces
    click, labels = sigmoid(rows.logit_of(2)), rows.make(2).labels
    certain = click > 0.8
    assert labels[certain].mean() == pytest.approx(click[certain].mean(), abs=0.03)
    assert certain.sum() > 200


def record(name, seed, loss_at):
    metrics = {f"loss_at_{step}": loss_at(step) for step in range(500, 10_001, 500)}
    metrics |= {f"auc_at_{step}": 0.7 for step in range(1000, 10_001, 1000)}
    metrics["logloss"] = loss_at(10_000)
    return StudyRecord(
        configuration=name, seed=seed, training=SeedTraining(metrics=metrics), setup={},
        environment=Environment.current(), time=0.0, num_ranks=2, seconds=1.0,
    )  # fmt: skip


def test_gaps_and_their_slope():
    """Gaps of .05 % that grow by .1 % in 10,000 steps, and noise that seeds do not share."""
    noise = np.random.default_rng(0).normal(0, 1e-9, 6)
    records = [record("fp32", seed, lambda step: 0.5 - step * 1e-6) for seed in range(6)]
    records += [
        record("ours", seed, lambda step, n=noise[seed]:
               (0.5 - step * 1e-6) * (1.0005 + step * (1e-7 + n)))
        for seed in range(6)
    ]  # fmt: skip
    ours = gaps.gaps_of(records)["ours"]
    assert ours.slope.mean == pytest.approx(0.1, rel=0.02)
    assert ours.at(5000).mean == pytest.approx(0.0975, abs=0.001)  # of 4500 and 5000
    assert ours.slope.low <= 0.1 <= ours.slope.high
    assert ours.trained.tolist() == pytest.approx([0.15] * 6, abs=0.004)
    shown = gaps.table(records)
    assert "| fp32 | 1000 steps | 2000 steps | 5000 steps | 10000 steps |" in shown
    assert "| ours | 6 | " in shown


def test_a_long_training_in_short(monkeypatch, tmp_path, capsys):
    for name, value in (("EVERY", 3), ("WARM", 3), ("AHEAD", 1), ("TEST_ROWS", 256)):
        for module in (length, gaps) if name in ("EVERY", "WARM") else (length,):
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("data.endless.TEST_ROWS", 256)
    words = ["length.py", "--configs", "int8", "--steps", "12", "--seeds", "1", "--out", tmp_path]
    words += ["--ranks", "2", "--batch-size", "16"]
    rates, step = [], length.Trainer.train_step
    rate = lambda trainer: rates.append(trainer.optimizer.param_groups[0]["lr"])  # noqa: E731
    monkeypatch.setattr(length.Trainer, "train_step", lambda t, rows: rate(t) or step(t, rows))
    monkeypatch.setattr("sys.argv", [str(word) for word in words])
    assert length.main() == 0
    assert "| int8 | 1 | " in capsys.readouterr().out
    counts = {round(rate / max(rates), 9): rates.count(rate) * 12 / len(rates) for rate in rates}
    assert counts == {1.0: 7} | {round(n / 6, 9): 1 for n in range(1, 6)}
    assert (tmp_path / "length.png").stat().st_size > 10_000
    monkeypatch.setattr("sys.argv", [str(word) for word in [*words, "--show"]])
    assert length.main() == 0


def test_passes_over_other_rows(monkeypatch, tmp_path, capsys):
    """Points are those of the test rows after each pass, and the trained model's is the last."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "day_0_dense.npy", rng.random((224, 13), np.float32))
    np.save(tmp_path / "day_0_labels.npy", rng.integers(0, 2, (224, 1), np.int32))
    np.save(tmp_path / "day_0_sparse.npy", rng.integers(0, 9, (224, 26), np.int32))
    words = ["length.py", "--configs", "int8", "--data", tmp_path, "--seeds", "1", "--out"]
    words += [tmp_path, "--ranks", "2", "--batch-size", "16"]
    monkeypatch.setattr("sys.argv", [*map(str, words), "--epochs", "4"])
    assert length.main() == 0
    shown = capsys.readouterr().out
    assert "| fp32 | 12 steps | 24 steps |" in shown
    (record,) = (r for r in read(tmp_path / "length.jsonl") if r.configuration == "int8")
    metrics = record.training.metrics
    assert [name for name in metrics if name.startswith("loss_at_")] == [
        f"loss_at_{step}" for step in (6, 12, 18, 24)
    ]
    assert metrics["loss_at_24"] == metrics["logloss"] == metrics["last_loss"]
    assert metrics["loss_at_24"] != metrics["loss_at_18"]
    assert metrics["auc_at_24"] == metrics["auc"]
    for wrong in (["--epochs", "2"], ["--epochs", "4", "--steps", "24"]):
        monkeypatch.setattr("sys.argv", [*map(str, words), *wrong])
        with pytest.raises(SystemExit):
            length.main()
        assert "--epochs of 3 or more, and no --steps" in capsys.readouterr().err
