"""Kernels, one folder for each op.

reference.py (plain torch) is the definition. cpu.py (numba) and gpu.py (Triton) give the same bytes
faster: cpu.py for rows in the memory of a CPU, gpu.py for rows in that of a GPU. The three modules
have the same functions. Who calls them checks the arguments and chooses the module: codecs.base for
codecs, `__init__.py` for the ops in `batch`. Kernels neither raise nor allocate what the caller
owns.

The functions of a codec's op, whose options are keywords:
    encode(values, segments, payload, at, ...) -> first segment that the codec may refuse, or -1;
        number of flushed values of each segment, [S] int64, or None
    decode(encoded, segments, out, ...) -> first bad segment, or -1 or None
    decode_sum(encoded, segments, out, ..., held_at) -> as decode, if it adds up parts
On a GPU a segment is [1] int32 on the device, which nothing has waited for.
"""
