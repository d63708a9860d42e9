"""Signals: what the guard is told of a table's values."""

import torch

from trec_qcomm.lab.debug.tally import Tally
from trec_qcomm.lab.guard.rule import GuardRule
from trec_qcomm.lab.guard.signals import SignalSums, signals_of


def test_values_that_arrive_no_better_than_0_are_lost() -> None:
    sums, key = SignalSums(GuardRule()), ("t", "forward")
    sums._tallies[key], sums._nbytes[key] = Tally(), 5
    before = torch.tensor([[100.0, 0.1, 0.2, 0.0], [50.0, 0.1, 0.2, 0.0]])
    after = torch.tensor([[99.0, 0.0, 0.0, 0.0], [50.0, 0.2, 0.2, 0.0]])
    sums._tallies[key].add(before, after)
    (signal,) = signals_of([key], sums.take([key])).values()
    assert signal.lost_share == 3 / 6  # of those that are not 0
    assert (signal.num_values, signal.bits) == (8, 5)
    assert signals_of([key], sums.take([key])) == {}
