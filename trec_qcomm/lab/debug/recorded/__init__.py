"""Recorded runs, read back: what is wrong in one, and where two differ.

run.py joins the ranks' records, figures.py and chance.py say what differs between two runs by more
than chance, compare.py finds the first step of it, text.py and show.py write for a terminal. Knows:
debug records and their findings. Does not know: how they were measured.
"""
