"""Columns of text stand below one another."""

from trec_qcomm.core.aligned import aligned


def test_columns_are_as_wide_as_their_widest_cell():
    assert aligned([("a", "10", "x"), ("long", "5", "")], right=[1]) == "a     10  x\nlong   5"
