"""Search for the largest error of error_bounded, in units of its bound, on values that are hard to
code."""

import torch
from torch import Tensor

from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.core.segments import Segments
from trec_qcomm.testing import max_error_in_bounds, round_trip

FAMILIES = ("normal", "mean far above the range", "far scales", "subnormal", "huge", "ties", "bits")
RELATIVE = (0.1, 0.01, 1e-3, 1e-5, 3e-7)  # the last bound is about an ulp of the data
ABSOLUTE = (0.5, 0.1, 2e38, 1e-40, 2**-20)
NUM_ROWS, DIM = 4096, 64


def rows_of(family: str, seed: int) -> Tensor:
    """Return [NUM_ROWS, DIM] float32 rows of one of FAMILIES."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(NUM_ROWS, DIM, generator=generator)
    if family == "normal":
        return noise
    if family == "mean far above the range":
        return 1e6 + 1e-3 * noise
    if family == "far scales":
        return noise * 10.0 ** torch.randint(-30, 31, (NUM_ROWS, 1), generator=generator)
    if family == "subnormal":
        return noise * 1e-40
    if family == "huge":
        return (noise * 1e38).clamp(-3.4e38, 3.4e38)
    if family == "ties":
        largest = 10 ** int(torch.randint(1, 7, (1,), generator=generator))
        halves = torch.randint(-largest, largest, noise.shape, generator=generator) + 0.5
        step = torch.randint(-1, 2, noise.shape, generator=generator).float()
        return torch.nextafter(halves, halves + step)
    bits = torch.randint(-(2**31), 2**31 - 1, noise.shape, generator=generator)
    return bits.to(torch.int32).view(torch.float32)


def worst_error(num_values: int, encoder: str) -> float:
    """Return max |error| / bound over at least `num_values` values, in float64.

    Args: encoder: the `encoder` of ErrorBounded.
    Raises: AssertionError: a NaN or infinity did not arrive bit by bit.
    """
    codecs = [ErrorBounded(b, encoder=encoder) for b in RELATIVE]
    codecs += [ErrorBounded(b, mode="abs", encoder=encoder) for b in ABSOLUTE]
    segments = Segments.packed([NUM_ROWS // 2, 5, NUM_ROWS // 2 - 5], DIM)
    worst, seed = 0.0, 0
    while seed * NUM_ROWS * DIM < num_values:
        rows = rows_of(FAMILIES[seed % len(FAMILIES)], seed)
        codec = codecs[seed // len(FAMILIES) % len(codecs)]
        decoded = round_trip(codec, rows, segments)
        worst = max(worst, max_error_in_bounds(codec, rows, decoded, segments))
        special = ~rows.isfinite()
        assert torch.equal(rows[special].view(torch.int32), decoded[special].view(torch.int32))
        seed += 1
    return worst
