"""Thresholds of gradients: exact density where they are found, by layer and global, resumable."""

import math

import pytest
import torch

from trec_qcomm import GradientRule, Identity, Rowwise, Threshold
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.core.counters import Traffic
from trec_qcomm.ext.dct.refresh import ThresholdRefresh
from trec_qcomm.integration.gradients.reduction import make_reduction
from trec_qcomm.lab.ranks.rounds import play

WORLD_SIZE, DENSITY = 2, 0.05
PARAMETERS = tuple(ParameterShape(name, n, 1) for name, n in (("a", 4000), ("b", 6000), ("c", 100)))
SCALES = {"a": 1.0, "b": 100.0, "c": 1.0}


def rule(*, error_feedback=False, **options):
    looks = {"every": options.pop("every", 3), "schedule": options.pop("schedule", None)}
    refresh = ThresholdRefresh(**looks, density=DENSITY, sample="all")
    usual = {"codec": Threshold(1.0, values="fp32"), "algorithm": "two_shot", "block": 1}
    usual |= {"error_feedback": error_feedback, "refresh": refresh}
    return GradientRule(**usual | options)


def ranks(gradient_rule, **options):
    return [
        make_reduction(
            gradient_rule, PARAMETERS, rank, WORLD_SIZE, Traffic("dense", ["all"]), **options
        )
        for rank in range(WORLD_SIZE)
    ]


def gradients(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return {p.name: SCALES[p.name] * torch.randn(p.numel, generator=generator) for p in PARAMETERS}


def reduced(reductions, step, *, buckets=(("a", "b", "c"),), scale=1.0):
    """Return {parameter: its mean}, from buckets of these parameters."""
    means = {}
    for names in buckets:
        parts = [p for name in names for p in PARAMETERS if p.name == name]
        buckets_by_rank = [
            torch.cat([scale * gradients(step, rank)[name] for name in names])
            for rank in range(WORLD_SIZE)
        ]
        play(
            [r.start(parts, values) for r, values in zip(reductions, buckets_by_rank, strict=True)]
        )
        split = buckets_by_rank[0].split([p.numel for p in parts])
        means |= dict(zip(names, split, strict=True))
    return means


def share(values):
    return float((values != 0).float().mean())


def test_a_layer_has_its_density_in_the_steps_that_look():
    reductions = ranks(rule())
    for step in range(7):
        # A contribution is what is above its rank's own threshold.
        means = reduced(reductions, step, scale=1.0 if step % 3 == 0 else 0.1)
        for name in ("a", "b"):
            # The owner keeps that share of its half of the sum.
            exact = math.ceil(DENSITY * PARAMETERS["ab".index(name)].numel / 2) * 2
            kept = int((means[name] != 0).sum())
            assert kept == exact if step % 3 == 0 else kept < exact / 4
        assert share(means["c"]) == 1.0  # below min_numel


def test_global_density_goes_to_the_layer_with_the_large_values():
    for buckets in ((("a", "b", "c"),), (("c", "b"), ("a",))):
        reductions = ranks(rule(scope="global"))
        for step in range(4):
            means = reduced(reductions, step, buckets=buckets)
        if len(buckets) == 1:
            total = sum(int((means[name] != 0).sum()) for name in ("a", "b"))
            assert total <= 2 * math.ceil(DENSITY * 5000)
        assert share(means["a"]) == 0.0
        assert share(means["b"]) > DENSITY


def test_a_step_without_gradients_is_not_looked_at():
    for scope in ("layer", "global"):
        reductions = ranks(rule(scope=scope))
        reduced(reductions, 0, scale=0.0)
        means = reduced(reductions, 1)
        assert 0 < share(means["b"]) <= 0.1


def test_what_has_no_threshold_cannot_refresh_it():
    for codec in (Rowwise(4), Identity(), Threshold(0.0)):
        with pytest.raises(ValueError, match="refresh: only for codecs threshold and topk"):
            rule(codec=codec, block=64)
    with pytest.raises(ValueError, match="scope: global: only where refresh"):
        rule(refresh=None, scope="global")
