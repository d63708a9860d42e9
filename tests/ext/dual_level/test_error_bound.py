"""Classes follow thresholds; online bounds settle on the careful side and survive a checkpoint."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trec_qcomm.ext.dual_level.error_bound import (
    BoundClass,
    BoundClasses,
    OnlineClasses,
    OnlineErrorBounds,
)

TIGHT, BASE, LOOSE = BoundClass


def test_a_low_index_is_tight_and_a_high_one_loose() -> None:
    classes = BoundClasses(tight_below=0.5, loose_from=0.75)
    indices = [0.0, 0.49, 0.5, 0.74, 0.75, 1.0]
    assert [classes.of_index(i) for i in indices] == [TIGHT, TIGHT, BASE, BASE, LOOSE, LOOSE]
    assert [classes.bound(kind) for kind in BoundClass] == [0.01, 0.03, 0.05]


@pytest.mark.parametrize("index", [-0.1, 1.1, math.nan])
def test_an_index_is_a_share(index) -> None:
    with pytest.raises(ValueError, match=r"index: .* is not in 0\.\.1"):
        BoundClasses().of_index(index)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tight": 0.04}, "tight 0.04, base 0.03, loose 0.05: expected 0 < tight <= base"),
        ({"tight": 0}, "0 < tight"),
        ({"loose": 1.0}, "loose < 1"),
        ({"loose": math.nan}, "loose < 1"),
        ({"tight_below": 0.99}, "tight_below 0.99, loose_from 0.98: expected 0 <= tight_below"),
        ({"loose_from": 1.1}, "loose_from <= 1"),
        ({"base": "0.03"}, "base: '0.03' is not a number"),
        ({"base": True}, "base: True is not a number"),
    ],
)
def test_classes_are_in_order(fields, message) -> None:
    with pytest.raises(ValueError, match=message):
        BoundClasses(**fields)


def online(**options) -> OnlineErrorBounds:
    return OnlineErrorBounds(
        ["a", "b"],
        OnlineClasses(
            **{"every": 10, "margin": 0.1, "tight_below": 0.5, "loose_from": 0.75} | options
        ),
    )


def test_tables_are_tight_until_measured() -> None:
    bounds = online()
    assert bounds.bounds().tolist() == [0.01, 0.01]
    assert bounds.bounds().dtype == torch.float64
    bounds.observe("b", 0.76)  # the first one needs no margin: nothing to waver from
    assert bounds.bounds().tolist() == [0.01, 0.05]
    assert [step for step in range(31) if bounds.is_due(step)] == [0, 10, 20, 30]


def test_a_bound_is_tightened_at_once_and_loosened_with_a_margin() -> None:
    bounds = online()
    seen = []
    for index in [0.9, 0.74, 0.76, 0.84, 0.86, 0.4, 0.55, 0.65, 0.84, 0.4, 0.9, 0.4, 0.76]:
        bounds.observe("a", index)
        seen.append(bounds.class_of("a"))
    assert seen[:5] == [LOOSE, BASE, BASE, BASE, LOOSE]
    assert seen[5:9] == [TIGHT, TIGHT, BASE, BASE]
    assert seen[9:] == [TIGHT, LOOSE, TIGHT, BASE]  # 0.76 - margin asks for base only


@given(
    centre=st.sampled_from([0.5, 0.75]),
    noise=st.lists(st.floats(-0.049, 0.049), min_size=2, max_size=30),
)
def test_a_wavering_index_changes_the_bound_once_at_most(centre, noise) -> None:
    bounds = online()
    classes = []
    for step in noise:
        bounds.observe("a", centre + step)
        classes.append(bounds.class_of("a"))
    assert sum(a != b for a, b in pairwise(classes)) <= 1


def test_a_resumed_run_has_the_same_bounds() -> None:
    first, second = online(), online()
    first.observe("a", 0.6)
    state = first.state_dict()
    assert {table: (value.dtype, value.tolist()) for table, value in state.items()} == {
        "a": (torch.int64, 1),
        "b": (torch.int64, -1),
    }
    second.observe("b", 0.9)
    second.load_state_dict(state)
    for bounds in (first, second):
        assert bounds.bounds().tolist() == [0.03, 0.01]
        bounds.observe("a", 0.76)  # base, with a margin to loose: it has been measured
        bounds.observe("b", 0.76)  # never measured: no margin
        assert bounds.bounds().tolist() == [0.03, 0.05]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": 0}, "only on one side: b"),
        ({"a": 0, "c": 0}, "only on one side: b, c"),
        ({"a": 0, "b": 3}, "state of table 'b': 3 is no class"),
    ],
)
def test_a_state_of_another_model_is_refused(state, message) -> None:
    bounds = online()
    with pytest.raises(ValueError, match=message):
        bounds.load_state_dict({table: torch.tensor(value) for table, value in state.items()})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every: 0 is not an integer >= 1"),
        ({"every": True}, "every: True"),
        ({"margin": 0.3}, r"margin: 0.3 is not in 0\.\.0\.25"),
        ({"margin": -0.1}, "margin: -0.1"),
    ],
)
def test_bad_options_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        online(**options)


def test_names_of_tables_differ_and_are_known() -> None:
    with pytest.raises(ValueError, match="tables: expected one or more different names"):
        OnlineErrorBounds(["a", "a"], OnlineClasses(every=1))
    with pytest.raises(ValueError, match="table 'c' is not one of a, b"):
        online().observe("c", 0.5)
