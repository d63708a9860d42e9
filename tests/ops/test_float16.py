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


def test_directed_rounding():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2**18, generator=generator) * 10 ** (12 * torch.rand(2**18) - 8)
    x = torch.cat([x.clamp(-6e4, 6e4), torch.tensor([0.0, -0.0, 1e-45, -1e-45, 2.0**-24])])
    down = bits_of(float16.half_bits_down, x).view(torch.float16)
    assert bool((down.float() <= x).all())
    above = torch.nextafter(down, torch.full_like(down, torch.inf))
    assert bool((above.float() > x).all())
    positive = x.abs()
    up = bits_of(float16.half_bits_up, positive).view(torch.float16)
    assert bool((up.float() >= positive).all())
    below = torch.nextafter(up, torch.full_like(up, -torch.inf))
    assert bool((below.float() < positive).all())
