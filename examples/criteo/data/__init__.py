"""Criteo's rows: read from its TSV or made from a seed, split, numbered, cut into batches."""
