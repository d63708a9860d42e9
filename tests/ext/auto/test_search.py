"""The search for the fastest choice, with planted seconds."""

from dataclasses import replace

import numpy as np
import pytest

from trec_qcomm.config import load_preset
from trec_qcomm.ext.auto.choice import Choice, choice_of
from trec_qcomm.ext.auto.rule import AutoRule
from trec_qcomm.ext.auto.search import search

AUTO = load_preset("auto")
RULE = AUTO.auto
WHOLE = RULE.whole_choices(AUTO, is_unpooled=False)
OPTIONS = RULE.options(WHOLE)


def searched(seconds_of, *, steps=4):
    """Return what a search ends with, and the choices that it tried in turn."""
    running, tried, seconds = search(WHOLE, OPTIONS), [], None
    try:
        while True:
            tried.append(running.send(seconds))
            seconds = [seconds_of(tried[-1]) for _ in range(steps)]
    except StopIteration as end:
        return end.value, tried


def additive(cost):
    """Return seconds that are the sum of what each part costs: {(part, setting): seconds}."""
    return lambda choice: 1.0 + sum(cost.get(item, 0.0) for item in vars(choice).items())


def test_candidates_are_the_presets_and_their_parts():
    names = {"int8": WHOLE[1], "fast": WHOLE[2], "best": WHOLE[3]}
    assert WHOLE[0] == Choice()
    assert names["int8"] == Choice(forward="int8", backward="int8")
    assert names["fast"] == Choice("fast", "fast", "fast", "exact", "distinct")
    assert names["best"] == Choice("best", "best", "best", "packed", "distinct")
    assert OPTIONS == {
        "forward": ["exact", "int8", "fast", "best"],
        "backward": ["exact", "int8", "fast", "best"],
        "dense": ["exact", "fast", "best"],
        "ids": ["exact", "packed"],
        "bags": ["all", "distinct"],
    }


def test_equal_settings_are_tried_once():
    rule = AutoRule(candidates=("int8", "fp32", "dense_float6"))
    whole = rule.whole_choices(AUTO, is_unpooled=False)
    # fast's dense rule is dense_float6's; its rows are exact, as those of fp32 by another name.
    assert rule.options(whole)["dense"] == ["exact", "dense_float6"]


def test_what_the_config_leaves_to_torchrec_is_no_option():
    without = replace(AUTO, dense=None, ids=None)
    best = choice_of("best", load_preset("best"), without)
    assert (best.dense, best.ids, best.forward) == ("exact", "exact", "best")


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ({}, Choice()),
        ({("forward", "exact"): 1, ("backward", "exact"): 1}, Choice("int8", "int8")),
        ({("dense", "exact"): 0.2, ("dense", "fast"): 0.1}, Choice(dense="best")),
        ({("dense", "exact"): 0.2, ("dense", "best"): 0.1}, Choice(dense="fast")),
        ({("ids", "exact"): 0.1, ("bags", "all"): 0.2}, Choice(ids="packed", bags="distinct")),
        (
            {("forward", "best"): 0.2, ("backward", "fast"): 0.1, ("backward", "exact"): 0.3},
            Choice(backward="int8"),
        ),
    ],
)
def test_the_fastest_parts_are_put_together_and_finer_ones_win_a_tie(cost, expected):
    tuned, _ = searched(additive(cost))
    assert tuned.choice == expected
    assert tuned.seconds[tuned.choice] == additive(cost)(expected)


def test_a_gain_below_two_percent_is_a_tie():
    tuned, _ = searched(additive({("dense", "exact"): 0.015}))
    assert tuned.choice == Choice()
    tuned, _ = searched(additive({("dense", "exact"): 0.03}))
    assert tuned.choice != Choice()


@pytest.mark.parametrize(("num_slow", "slow"), [(4, 1.25), (12, 1.25), (8, 1.9)])
def test_exact_torchrec_that_only_began_slowly_is_not_left(num_slow, slow):
    """The first steps do not count, and at the end both are timed apart from what was before."""
    left = [num_slow]

    def seconds_of(choice):
        left[0] -= choice == Choice()
        return 1.0 if choice != Choice() or left[0] < 0 else slow

    tuned, _ = searched(seconds_of)
    assert tuned.choice == Choice()


def test_parts_of_candidates_that_are_far_behind_are_not_tried():
    slow_network = {(part, "exact"): 10.0 for part in ("forward", "backward", "dense")}
    tuned, tried = searched(additive(slow_network | {("bags", "all"): 10.0}))
    # The rows of int8 are timed with the rest of int8 alone.
    assert all("int8" not in vars(c).values() for c in tried if c != WHOLE[1])
    assert tuned.choice.dense == tuned.choice.backward == "fast"


def test_noise_does_not_cost_more_than_a_few_percent():
    """Steps that vary by 10 % end within 5 % of the fastest choice in nine of ten searches."""
    cost = {("forward", "exact"): 0.2, ("dense", "exact"): 0.1, ("dense", "best"): 0.3}
    cost |= {("backward", "exact"): 0.2, ("backward", "best"): 0.1, ("bags", "all"): 0.2}
    seconds_of, losses = additive(cost), []
    for seed in range(40):
        noise = np.random.default_rng(seed)
        tuned, _ = searched(lambda c, n=noise: seconds_of(c) * float(n.lognormal(0, 0.1)))
        losses.append(seconds_of(tuned.choice) / 1.0 - 1)
    assert np.quantile(losses, 0.9) <= 0.05


def test_unpooled_rows_are_offered_what_passed_for_them():
    offered = RULE.whole_choices(AUTO, is_unpooled=True)
    coarser = [replace(choice, forward="int8", backward="int8") for choice in WHOLE[2:]]
    assert offered == [*WHOLE[:2], *coarser]
    assert offered[3] == Choice("int8", "int8", "best", "packed", "distinct")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"choice": Choice(dense="none")}, "choice.dense: 'none' is not one of exact, int8"),
        ({"steps": 0}, "steps"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AutoRule(**settings)
