"""Floats of 6 or 8 bits under an exponent a row. Wire: FORMAT.md, "float6, float8".

Rounding is relative to each value, not to the row's range. So small values beside large ones keep
their size. An optimizer that divides by a gradient's own magnitude (Adam) needs that.
Numerics:
    Let 2^e be the smallest power of two above the row's largest finite magnitude, e >= -126, and
    F = 2^exponent_bits - 1; the mantissa has M = bits - 1 - exponent_bits bits.
    Nearest (halves away from 0): |x - decoded| <= h max(|x|, 2^(e + 1 - F)), with h = 2^-(M + 1).
    Stochastic, by the dither of the seed: below twice that bound, and UNBIASED.
    Multiply both bounds by 1 + 2^-23, as the number of steps is rounded to float32. For e5m2 add
    2^-150: some of its codes lie between subnormals. 2^128 decodes to the largest float32. NaN and
    inf arrive as such. The sign of 0 is lost.
OCP: apart from ties and -0, e4m3 has OCP's codes for x 2^(8 - e), and e5m2 has OCP's codes for
    x 2^(16 - e). OCP reads e5m2's code of 2^e as inf. The codes of inf and NaN are our own.
Source: block floating point; Rouhani et al. 2023 (microscaling formats: e3m2, e4m3 and e5m2 under a
shared power of two). Ours: e4m1, rows of any length, stochastic rounding, NaN and inf.
"""
