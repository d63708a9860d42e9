"""Bitpack: blocks of 32 indices, each as wide as its largest. Wire: FORMAT.md, "bitpack".

An encoder of quantization indices for ops.error_bound: q [N] int32, |q| <= 2^22, to bytes and back.
Indices are zigzagged to unsigned words; 32 words are a block, 32 blocks a group. A group stores the
smallest width of its blocks, and the other widths relative to it, so that 1024 zeros cost one byte.

`reference` is the definition. `cpu` has functions of one group, which ops.error_bound.cpu calls
right after it has quantized the group, and functions of a whole segment. `gpu` has functions that
the kernels of ops.error_bound call.

Source: frame of reference and bit packing by blocks (Lemire and Boytsov 2015); the folding of
bytes inside a machine word and the coding of widths are ours.
"""
