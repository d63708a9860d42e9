"""Row-wise quantization to 8, 4 or 2 bits. Wire: FORMAT.md, "rowwise".

Each row has a scale and a low, both float16. Each segment is first multiplied by an exact power of
two, so that float16 can hold them whatever the segment's magnitude. Any dim >= 1 is allowed. Rows
of float16 and bfloat16 get the bytes of the same rows as float32. Decoded, they are rounded to
nearest even.

Numerics:
    |x - decoded| <= scale / 2 (nearest) or < scale (stochastic, by the dither of the seed), plus
    float32 rounding. For a row, scale <= (max - min + 2^-10 |min|) / (2^bits - 1) * (1 + 2^-10).
    A scale that is not 0 is at least 2^-37 of the segment's largest magnitude. So two kinds of rows
    are coarser than their range alone would make them: rows that are narrow for their distance
    from 0, and rows 2^20 times smaller than the segment's largest row. A row 2^120 times smaller
    decodes to 0.
    Stochastic rounding is UNBIASED, with two exceptions: rows with NaN or inf at 2 bits, where one
    code is left, and subnormal values.

FBGEMM's Float{8Bit,NBit}Rowwise operators are no backend on CPU. They round low to nearest, so
values clip. They need contiguous rows of even dims, have another layout of a row, and lose NaN.
Copying, scaling and placing rows for them makes a 4-bit round trip slower than the kernel here
(`make bench-codec` measures both).
Source: Yang et al. 2020 (row-wise min/max quantization); scaling, rounding and NaN are ours.
"""
