"""Recorded runs, read back: what is wrong in one, and where two differ.

run.py joins the ranks' records, compare.py finds the first step in which two runs differ, text.py
writes for a terminal. Knows: debug records and their findings. Does not know: how they were
measured.
"""
