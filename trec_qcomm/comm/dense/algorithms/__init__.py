"""Algorithms of the all-reduce: who sends which chunks to whom, in which rounds."""
