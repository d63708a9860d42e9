"""Rows <-> indices of one segment, for ops.error_bound, whose reference.py defines them."""
