"""Student's t distribution, accurate far out in its tail, where early looks of a study decide.

Numerics: the tail is half a regularized incomplete beta function, by its continued fraction
(Lentz's method), to about 12 digits; the quantile is a bisection of it.
Source: NIST Digital Library of Mathematical Functions, 8.17.22 and 8.17.5.
"""

from functools import lru_cache
from math import exp, inf, lgamma, log

_TINY, _PRECISION, _MOST_TERMS = 1e-300, 1e-14, 10_000


def t_tail(t: float, degrees: int) -> float:
    """Return the chance that Student's t exceeds a value.

    Args:
        t: the value; may be infinite.
        degrees: degrees of freedom, positive.
    """
    if t < 0:
        return 1 - t_tail(-t, degrees)
    return 0.0 if t == inf else _beta_share(degrees / (degrees + t * t), degrees / 2, 0.5) / 2


@lru_cache(maxsize=4096)
def t_quantile_of_tail(tail: float, degrees: int) -> float:
    """Return the value that Student's t exceeds with a chance of `tail`.

    Args:
        tail: chance from 0 to 1/2, which is not checked; 0 gives infinity.
        degrees: degrees of freedom, positive.
    """
    if tail == 0:
        return inf
    low, high = 0.0, 1.0
    while t_tail(high, degrees) > tail:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, degrees) > tail else (low, middle)
    return high


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)  # there the fraction converges quickly
    if x == 0:
        return 0.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x)) / a
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = _not_zero(1 + term / c), 1 / _not_zero(1 + term * d)
            fraction *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return front * fraction


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
