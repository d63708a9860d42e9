"""Entropy coding of a segment's quantization indices: interleaved rANS with a static table.

A class is 2^shift neighbouring indices; classes are entropy coded, the position within a class is
stored as it is, and the few indices outside 255 classes are stored whole. `shift` grows where a
finer table would cost more than it saves, so short segments pay for tables of a few bytes only.
Long segments are streams of 2^16 indices that share a table and can be coded at the same time.
Wire: FORMAT.md, "rans". `reference` is the definition, `cpu` writes and reads the same bytes, one
segment at a time; `gpu` is what the kernels of `error_bounded` know of them, and takes all at once.

Size: within 3 % of the segment's empirical entropy from some thousand indices on; an all-equal
segment takes 4 to 7 bytes, an empty one none. There is no upper limit but the buffer's: where the
bytes would not fit, the encoder says so and the caller sends something else.
Source: Duda 2013 (rANS); division by multiplication after Giesen, "rANS with static probability
distributions" (2014); classes, table and layout are ours.
"""
