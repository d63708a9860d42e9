"""The order in which autograd runs the two nodes of an exchange and those of other layers."""

from unittest.mock import Mock

import torch

from trec_qcomm.comm.rows.autograd import Collect, Launch


def noted_exchange(noted):
    """Return a stand-in for a RowExchange that notes its steps and returns ones."""
    return Mock(
        gradient_divisor=1,
        launch=lambda rows, direction: noted.append(f"{direction} launch"),
        finish=lambda direction: noted.append(f"{direction} finish") or torch.ones(3),
    )


def steps():
    """Return the steps of a training step with two exchanges in a row, and an older layer."""
    noted, rows = [], torch.ones(3, requires_grad=True)
    dense = torch.ones(3, requires_grad=True) * 2
    dense.register_hook(lambda gradient: noted.append("dense"))
    for _ in range(2):
        call = noted_exchange(noted)
        rows = Collect.apply(call, Launch.apply(call, rows))
    (rows * dense).sum().backward()
    return noted


def test_gradients_are_waited_for_behind_the_backward_of_other_layers():
    steps()  # in a thread's first step the numbers of both are small
    hop = ["backward launch", "backward finish"]
    assert steps() == ["forward launch", "forward finish"] * 2 + [hop[0], "dense", hop[1], *hop]
