"""Vector-LZ: a row of indices that equals one of the 255 rows before it is sent as its distance.

An encoder of quantization indices for ops.error_bound, which calls it for one segment at a time.
All other rows are literals, bit-packed (ops.bitpack). Copies are sent only where that is shorter,
so a segment without equal rows costs one byte more than bit-packing alone.

Wire: FORMAT.md, "vector_lz". `cpu` writes and reads it; tests have it in plain Python, too.
Source: Feng et al., SC 2024 (a row as LZ's symbol, a window of 32 to 255 rows); literals packed
per 32 indices and the layout are ours.
"""
