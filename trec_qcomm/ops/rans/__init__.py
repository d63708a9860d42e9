"""Entropy coding of a segment's quantization indices: interleaved rANS with a static table.

An encoder of quantization indices for ops.error_bound. A *class* is 2^shift neighbouring indices;
there are at most 256 classes. The class of an index is entropy coded. Its position in the class,
the *low bits*, is stored as it is. The few indices outside of all classes are *escaped*: stored
whole. `shift` grows if a finer table would cost more than it saves, so short segments have tables
of a few bytes. Long segments are *streams* of 2^16 indices, which share a table and can be coded
side by side.

Wire: FORMAT.md, "rans". `reference` is the definition. `cpu` writes and reads the same bytes, one
segment at a time: `classes` chooses the classes, `header` codes what is not entropy coded, `stream`
is the coder itself. `gpu` has the same parts for the kernels of ops.error_bound.

Size: within 3 % of the segment's empirical entropy from some thousand indices on. An all-equal
segment takes 4 to 7 bytes, an empty one none. The only upper limit is the buffer's: if the bytes do
not fit, the encoder says so and the caller sends something else.
Source: Duda 2013 (rANS); division by multiplication after Giesen, "rANS with static probability
distributions" (2014); classes, table and layout are ours.
"""
