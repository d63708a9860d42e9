"""Classes follow thresholds; online bounds settle on the careful side and survive a checkpoint."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trec_qcomm.ext.dual_level.error_bound import BoundClass, OnlineClasses, OnlineErrorBound

TIGHT, BASE, LOOSE = BoundClass


def test_a_low_index_is_tight_and_a_high_one_loose() -> None:
    classes = OnlineClasses(every=1, tight_below=0.5, loose_from=0.75)
    indices = [0.0, 0.49, 0.5, 0.74, 0.75, 1.0]
    assert [classes.of_index(i) for i in indices] == [TIGHT, TIGHT, BASE, BASE, LOOSE, LOOSE]
    assert [classes.bound(kind) for kind in BoundClass] == [0.01, 0.03, 0.05]


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
        OnlineClasses(every=1, **fields)


def online(**options) -> OnlineErrorBound:
    return OnlineErrorBound(
        OnlineClasses(
            **{"every": 10, "margin": 0.1, "tight_below": 0.5, "loose_from": 0.75} | options
        )
    )


def test_a_table_is_tight_until_it_is_measured() -> None:
    bound = online()
    assert bound.tolerance(0.02, 0) == 0.01
    bound.note(0.76)  # the first one needs no margin: nothing to waver from
    assert bound.tolerance(0.02, 0) == 0.05
    assert [step for step in range(31) if bound.is_due(step)] == [0, 10, 20, 30]


def test_rows_of_16_bits_are_measured() -> None:
    rows = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16):
        table, expected = online(), online()
        table.observe(rows.to(dtype), 0)
        expected.observe(rows.to(dtype).float(), 0)
        assert table.bound_class == expected.bound_class != BoundClass.TIGHT


def test_a_bound_is_tightened_at_once_and_loosened_with_a_margin() -> None:
    bound = online()
    seen = []
    for index in [0.9, 0.74, 0.76, 0.84, 0.86, 0.4, 0.55, 0.65, 0.84, 0.4, 0.9, 0.4, 0.76]:
        bound.note(index)
        seen.append(bound.bound_class)
    assert seen[:5] == [LOOSE, BASE, BASE, BASE, LOOSE]
    assert seen[5:9] == [TIGHT, TIGHT, BASE, BASE]
    assert seen[9:] == [TIGHT, LOOSE, TIGHT, BASE]  # 0.76 - margin asks for base only


@given(
    centre=st.sampled_from([0.5, 0.75]),
    noise=st.lists(st.floats(-0.049, 0.049), min_size=2, max_size=30),
)
def test_a_wavering_index_changes_the_bound_once_at_most(centre, noise) -> None:
    bound = online()
    classes = []
    for step in noise:
        bound.note(centre + step)
        classes.append(bound.bound_class)
    assert sum(a != b for a, b in pairwise(classes)) <= 1


@pytest.mark.parametrize(
    ("index", "number", "then"),
    [
        (0.6, 1, 0.03),  # base, with a margin to loose: it has been measured
        (None, -1, 0.05),  # never measured: no margin
    ],
)
def test_a_resumed_run_has_the_same_bound(index, number, then) -> None:
    first, second = online(), online()
    if index is not None:
        first.note(index)
    second.note(0.9)
    state = first.state_dict()
    assert state["class"].dtype == torch.int64
    assert {name: value.tolist() for name, value in state.items()} == {"class": number}
    second.load_state_dict(state)
    for bound in (first, second):
        bound.note(0.76)
        assert bound.tolerance(0.02, 0) == then


@pytest.mark.parametrize("number", [3, -2])
def test_a_state_of_no_class_is_refused(number) -> None:
    with pytest.raises(ValueError, match=f"state: {number} is no class"):
        online().load_state_dict({"class": torch.tensor(number)})


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
