"""Products of matrices that add in another order than torch does here, as another machine would."""

from unittest import mock

import torch

real_bmm, real_mm = torch.bmm, torch.mm


def _other_order(left, right):
    """Multiply with the summands backwards and in two heaps."""
    left, right = left.flip(-1), right.flip(-2)
    half = left.shape[-1] // 3
    heaps = [(left[..., :half], right[..., :half, :]), (left[..., half:], right[..., half:, :])]
    return sum(torch.matmul(*pair) for pair in heaps)


def other_bmm(left, right):
    return _other_order(left, right)


def other_mm(left, right, *, out):
    return out.copy_(_other_order(left, right))


def on_another_machine(rounds):
    """Run a rank's rounds with other products than those of the ranks beside it."""
    received = None
    while True:
        with mock.patch.multiple(torch, bmm=other_bmm, mm=other_mm):
            try:
                wanted = rounds.send(received)
            except StopIteration:
                return
        received = yield wanted
