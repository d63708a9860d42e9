"""Row-wise quantization to 8, 4 or 2 bits. Wire: FORMAT.md, "rowwise".

Each row has a header of 32 bits: the exponent of its largest magnitude, and its scale and low as
fractions of that power of two. So rows need one pass, and none depends on another. Any dim >= 1 is
allowed. Rows of float16 and bfloat16 get the bytes of the same rows as float32. Decoded, they are
rounded to nearest even.

Numerics:
    Let 2^e be the smallest power of two above a row's largest finite magnitude, e >= -100.
    |x - decoded| <= scale / 2 (nearest) or < scale (stochastic, by the dither of the seed), plus
    float32 rounding. scale <= (max - min + 2^(e - 11)) / (2^bits - 1) * (1 + 2^-7), but at least
    2^(e - 14 - bits). So rows are coarser than their range alone would make them if they are narrow
    for their distance from 0, or below 2^-100, where some decode to 0.
    Stochastic rounding is UNBIASED, with two exceptions: rows with NaN or inf at 2 bits, where one
    code is left, and subnormal values.

FBGEMM's Float{8Bit,NBit}Rowwise operators are no backend on CPU. They round low to nearest, so
values clip. They need contiguous rows of even dims, have another layout of a row, and lose NaN.
Copying, scaling and placing rows for them makes a 4-bit round trip slower than the kernel here
(`make bench-codec` measures both).
Source: Yang et al. 2020 (row-wise min/max quantization); scaling, rounding and NaN are ours.
"""
