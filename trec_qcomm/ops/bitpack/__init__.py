"""Bitpack: blocks of 32 indices, each at the width of its largest. Wire: FORMAT.md, "bitpack".

An encoder of quantization indices, called by ops.error_bound: q [N] int32, |q| <= 2^22, to bytes
and back. The widths of 32 blocks are coded together, relative to the smallest of them, so that a
group of 1024 zeros costs one byte.

Source: frame of reference and bit packing by blocks (Lemire and Boytsov 2015); the folding of
bytes inside a word and the coding of widths are ours.
"""
