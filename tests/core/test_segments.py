"""Vectors with one number a segment."""

import pytest
import torch

from trec_qcomm.core.segments import int64_tensor


@pytest.mark.parametrize("numbers", [[], [5], [3, -1, 2**62], (1, 2)])
def test_a_tensor_of_ints_is_that_of_torch(numbers):
    assert torch.equal(int64_tensor(iter(numbers)), torch.tensor(numbers, dtype=torch.int64))
