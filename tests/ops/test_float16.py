"""ops.float16: binary16 and bfloat16 by integer arithmetic give what torch gives."""

import numpy as np
import pytest
import torch
from numba import njit

from trec_qcomm.ops import float16

half_bits, half_value, bfloat_bits = float16.half_bits, float16.half_value, float16.bfloat_bits
half_bits_down, half_bits_up = float16.half_bits_down, float16.half_bits_up


@njit
def each_half(x, out):
    for i in range(x.size):
        out[i] = half_bits(x[i])


@njit
def each_bfloat(x, out):
    for i in range(x.size):
        out[i] = bfloat_bits(x[i])


@njit
def each_value(h, out):
    for i in range(h.size):
        out[i] = half_value(h[i])


@njit
def each_down(x, out):
    for i in range(x.size):
        out[i] = half_bits_down(x[i])


@njit
def each_up(x, out):
    for i in range(x.size):
        out[i] = half_bits_up(x[i])


def bits_of(kernel, x: torch.Tensor) -> torch.Tensor:
    out = np.empty(x.numel(), np.uint16)
    kernel(x.numpy(), out)
    return torch.from_numpy(out.view(np.int16))


@pytest.mark.parametrize(
    ("kernel", "dtype"), [(each_half, torch.float16), (each_bfloat, torch.bfloat16)]
)
def test_random_bit_patterns(kernel, dtype):
    words = torch.randint(-(2**31), 2**31, (2**20,), generator=torch.Generator().manual_seed(0))
    x = words.to(torch.int32).view(torch.float32)
    x = x[~x.isnan()]
    assert torch.equal(bits_of(kernel, x), x.to(dtype).view(torch.int16))


def test_every_half_has_its_value():
    h = np.arange(65536, dtype=np.uint16)
    out = np.empty(65536, np.float32)
    each_value(h, out)
    expected = torch.from_numpy(h.view(np.int16)).view(torch.float16).float()
    torch.testing.assert_close(torch.from_numpy(out), expected, rtol=0, atol=0, equal_nan=True)


def test_directed_rounding():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2**18, generator=generator) * 10 ** (12 * torch.rand(2**18) - 8)
    x = torch.cat([x.clamp(-6e4, 6e4), torch.tensor([0.0, -0.0, 1e-45, -1e-45, 2.0**-24])])
    down = bits_of(each_down, x).view(torch.float16)
    assert bool((down.float() <= x).all())
    above = torch.nextafter(down, torch.full_like(down, torch.inf))
    assert bool((above.float() > x).all())
    positive = x.abs()
    up = bits_of(each_up, positive).view(torch.float16)
    assert bool((up.float() >= positive).all())
    below = torch.nextafter(up, torch.full_like(up, -torch.inf))
    assert bool((below.float() < positive).all())
