"""Columns of text stand below one another, and cells of Markdown do not end it."""

from trec_qcomm.core.aligned import aligned, markdown_table


def test_columns_are_as_wide_as_their_widest_cell():
    assert aligned([("a", "10", "x"), ("long", "5", "")], right=[1]) == "a     10  x\nlong   5"


def test_a_table_of_markdown_is_aligned_and_escaped():
    table = markdown_table(("name", "n"), [("a|b", "1"), ("c", "1000")], right=[1])
    assert table.splitlines() == [
        "| name |    n |",
        "| ---- | ---: |",
        r"| a\|b |    1 |",
        "| c    | 1000 |",
    ]
