"""The rule of decisions.py: what holds, what does not, and what cannot be told."""

import math

import pytest

from examples.papers import decisions
from examples.papers.decisions import FAILS, HOLDS, OPEN, Decision
from trec_qcomm.lab.study.paired import Change


def spread(mean: float, half: float, n: int) -> Change:
    """Return n changes of that mean, half of them above and half below by `half`."""
    return Change.from_percents([mean + half * (-1) ** k for k in range(n)])


def verdict(*changes: Change) -> Decision:
    return decisions.no_loss({f"metric {k}": change for k, change in enumerate(changes)})


NOTHING = spread(0.0, 0.02, 50)


def test_holds_within_the_limits_of_every_metric():
    assert verdict(NOTHING, NOTHING) == Decision(HOLDS)
    assert verdict(spread(0.02, 0.01, 50), NOTHING).verdict == HOLDS
    assert verdict(spread(-1.0, 0.01, 16), spread(0, 0.01, 16)) == Decision(
        HOLDS, "34 seeds more, for the library's gate"
    )


def test_does_not_hold_where_a_loss_is_shown_and_above_the_limit():
    assert verdict(NOTHING, spread(0.021, 0.01, 16)).verdict == FAILS
    assert verdict(NOTHING, spread(1.0, 0.1, 6)).verdict == FAILS
    assert verdict(NOTHING, Change.from_percents([0.0] * 20 + [math.nan])).verdict == FAILS


@pytest.mark.parametrize(
    "change",
    [spread(0.0, 0.001, 14), spread(0.03, 0.2, 16), spread(0.01, 0.2, 16), spread(1.0, 0.0, 4)],
    ids=["too few seeds", "mean above, 0 inside", "upper above", "no interval"],
)
def test_anything_else_cannot_be_told(change):
    decision = verdict(NOTHING, change)
    assert decision.verdict == OPEN
    assert "seeds" in decision.to_tell


@pytest.mark.parametrize("mean", [0.01, 0.035])
def test_the_seeds_that_it_takes_decide(mean):
    decision = verdict(spread(mean, 0.2, 16))
    num_seeds = int(decision.to_tell.split()[1])
    assert num_seeds > 16
    close = {
        n: verdict(spread(mean, 0.2, n)).verdict for n in (num_seeds // 2, num_seeds * 11 // 10)
    }
    assert list(close.values()) == [OPEN, HOLDS if mean < 0.02 else FAILS]


def test_lower_needs_every_interval_below_zero():
    def compare(*means):
        changes = {f"m{k}": spread(mean, 0.01, 16) for k, mean in enumerate(means)}
        return decisions.lower(changes).verdict

    assert compare(-0.1, -0.1) == HOLDS
    assert compare(-0.1, 0.1) == FAILS
    assert compare(-0.1, 0.0) == OPEN


def test_the_worst_of_several_counts():
    holds, fails, open_ = Decision(HOLDS, "a"), Decision(FAILS), Decision(OPEN, "b")
    assert decisions.all_of([holds, fails, open_]) == fails
    assert decisions.all_of([open_, holds]) == Decision(OPEN, "b")
    assert decisions.all_of([holds, holds]) == holds
