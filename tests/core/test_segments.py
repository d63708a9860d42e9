"""Vectors with one number a segment."""

import pytest
import torch

from trec_qcomm.core.segments import Segments, int64_tensor


@pytest.mark.parametrize("numbers", [[], [5], [3, -1, 2**62], (1, 2)])
def test_a_tensor_of_ints_is_that_of_torch(numbers):
    assert torch.equal(int64_tensor(iter(numbers)), torch.tensor(numbers, dtype=torch.int64))


def test_what_is_derived_is_kept_for_the_same_places():
    segments, at, made = Segments.packed([2, 3], 4), torch.tensor([0, 32]), []

    def make():
        made.append(object())
        return made[-1]

    assert segments.kept("a", at, make) is segments.kept("a", at, make)
    assert segments.kept("b", at, make) is not segments.kept("a", at, make)
    first = segments.kept("a", at, make)
    assert segments.kept("a", at.clone(), make) is not first
    assert len(made) == 3
