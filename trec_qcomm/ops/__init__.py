"""Kernels, one folder for each op.

reference.py (plain torch) is the definition. cpu.py (numba) and gpu.py (Triton) give the same bytes
faster: cpu.py for rows in a CPU's memory, gpu.py for rows in a GPU's. The three modules have the
same functions. The caller checks the arguments and chooses the module: codecs.base for codecs,
`__init__.py` for the ops in `batch`. Kernels raise no errors, and allocate nothing that the caller
owns.

The functions of a codec's op, whose options are keywords:
    encode(values, segments, payload, at, ...) -> first segment that the codec may refuse, or -1;
        number of flushed values of each segment, [S] int64, or None
    decode(encoded, segments, out, ...) -> first bad segment, or -1 or None
    decode_sum(encoded, segments, out, ..., held_at) -> as decode; only of ops that add up parts
On a GPU the segment is [1] int32 on the device, for which nothing has waited. Kernels of a codec
that takes frames also see to `frames`, an option of encode and a field of Encoded.
"""
