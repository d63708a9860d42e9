"""rANS in Triton: what ops.error_bound's kernels know of the format. For programs of one warp.

Of a segment, a program finds the classes and their frequencies, or reads them. Then each stream has
a program whose 32 lanes are its states: a step takes an index of each, and the words that leave or
enter in it are put in the order of the lanes by counting the votes of those before. Everything
else, such as low bits and escaped indices, goes in groups of 1024.

numbers.py: integers of the format.  window.py, classes.py: how an encoder chooses classes.
table.py: from weights to frequencies.  header.py: what comes before low bits.  words.py: states
and words.  rest.py: low bits, escaped indices.
Shapes: N indices, A classes, K states of a stream, M = 2^log slots.
"""
