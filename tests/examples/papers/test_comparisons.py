"""Configs of the papers' comparisons are what their names say; claims count all of their pairs."""

from types import SimpleNamespace

import pytest
from model import ModelConfig, build_model

from examples.papers.claims import HOLDS, OPEN
from examples.papers.collectives import configs as collectives
from examples.papers.comparisons import lower_losses
from examples.papers.thresholds import configs as thresholds
from trec_qcomm.lab.study.paired import Change

SIZES = {"embedding_dim": 16, "dense_arch": (512, 256), "over_arch": (512, 512, 256)}  # train.py's


def test_blocks_are_the_rows_or_all_of_each_parameter_that_is_coded():
    learning = {"embedding_optimizer": "sgd", "dense_optimizer": "sgd", "lr": 1.0, "dense_lr": 1.0}
    model = build_model(ModelConfig(**SIZES, **learning, init_scale=0.1, seed=0), [8] * 26)
    shapes = {
        name: tuple(parameter.shape)
        for name, parameter in model.named_parameters() if "embedding_bag" not in name
    }  # fmt: skip
    for grain in ("row", "tensor"):
        config = collectives.by_grain()[f"grain_{grain}"]
        patterns = config.dense_rules
        for name, shape in shapes.items():
            rule = next(r for r in patterns if any(fits(name, p) for p in r.parameters))
            numel = shape[0] * (shape[1] if len(shape) == 2 else 1)
            if numel >= rule.min_numel:
                assert rule.block == (shape[-1] if grain == "row" else numel), name
            else:
                assert rule.parameters == ("*",)


def fits(name, pattern):
    return name.endswith(pattern.removeprefix("*"))


def test_the_even_density_is_the_mean_of_the_falling_one():
    """229 steps: five with the density of each tenth step, the rest with 1 %."""
    falling, even = (thresholds.warm_up()[name].dense.refresh for name in ("warm_up_57", "even_57"))
    shares = [falling.density_at(step) for step in range(0, 60, 10)]
    assert shares[0] == 0.25
    assert even.density == pytest.approx((10 * sum(shares) + 169 * 0.01) / 229, abs=5e-5)
    assert even.schedule is None


def test_a_pair_without_records_leaves_a_comparison_open():
    changes = {("a", "b"): {"logloss": Change.from_percents([-1.0, -1.1, -0.9] * 3)}}
    judged = SimpleNamespace(
        verdicts={"a": None, "c": None}, changes=lambda *pair: changes.get(pair, {})
    )

    def claims(*pairs):
        return lower_losses(judged, "Less", source="ours", setting="a toy", pairs=pairs)

    (claim,) = claims(("a", "b"))
    assert claim.verdict == HOLDS
    assert claim.setting == "a toy; 9 seeds"
    assert claim.result.startswith("`a` against `b`: test -1.000 [")
    (claim,) = claims(("a", "b"), ("c", "b"))
    assert (claim.verdict, claim.to_tell) == (OPEN, "trainings of c and b")
    assert claims(("c", "b")) == []
