"""ops.float16: binary16 and bfloat16 by integer arithmetic give what torch gives."""

import numpy as np
import pytest
import torch
from numba import njit

from trec_qcomm.ops import float16


def each(function):
    """Return a kernel that writes the function of each number."""

    @njit
    def kernel(numbers, out):
        for i in range(numbers.size):
            out[i] = function(numbers[i])

    return kernel


def bits_of(function, x: torch.Tensor) -> torch.Tensor:
    out = np.empty(x.numel(), np.uint16)
    each(function)(x.numpy(), out)
    return torch.from_numpy(out.view(np.int16))


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(float16.half_bits, torch.float16), (float16.bfloat_bits, torch.bfloat16)],
)
def test_random_bit_patterns(function, dtype):
    words = torch.randint(-(2**31), 2**31, (2**20,), generator=torch.Generator().manual_seed(0))
    x = words.to(torch.int32).view(torch.float32)
    x = x[~x.isnan()]
    assert torch.equal(bits_of(function, x), x.to(dtype).view(torch.int16))


def test_every_half_has_its_value():
    h = np.arange(65536, dtype=np.uint16)
    out = np.empty(65536, np.float32)
    each(float16.half_value)(h, out)
    expected = torch.from_numpy(h.view(np.int16)).view(torch.float16).float()
    torch.testing.assert_close(torch.from_numpy(out), expected, rtol=0, atol=0, equal_nan=True)
