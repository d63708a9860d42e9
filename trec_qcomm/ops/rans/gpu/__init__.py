"""rANS in Triton: functions for the kernels of ops.error_bound, in programs of one warp.

One program a segment chooses the classes and their frequencies, or reads them. Then one program a
stream codes the stream. Its 32 lanes are the states, and a step takes one index of each. The words
that leave or enter in a step are in the order of the lanes. A lane finds its place by counting the
votes of the lanes before it. The rest (low bits, escaped indices) is handled in groups of 1024.

arithmetic.py: constants and integer functions of the format, and counting within a warp.
initial_classes.py, merged_classes.py: how an encoder chooses its classes.
coding_tables.py: from weights to frequencies to tables.
header.py: the bytes before the low bits.
stream.py: states and words.
remainders.py: low bits and escaped indices.

Shapes: N indices, A classes, K states of a stream, M = 2^log slots.
"""
