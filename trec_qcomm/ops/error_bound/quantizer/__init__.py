"""Rows <-> indices of one segment: the quantizer that ops.error_bound.reference defines."""
