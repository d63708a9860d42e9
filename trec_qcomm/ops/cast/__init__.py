"""Rows as fp32 (a copy of the bits), fp16 or bf16. Wire: FORMAT.md, "fp32, fp16, bf16".

The rows are float32. For messages of fp16 and bf16 they may also be float16 or bfloat16. Rows of
the message's own dtype are copied bit for bit, other rows converted without a float32 copy.

Numerics: rounding to nearest even. Finite values beyond the format become inf. NaN keeps its sign,
and its payload where bits are copied.
"""
