"""Quantizer, rows of a segment <-> indices, as ops.error_bound.reference defines it."""
