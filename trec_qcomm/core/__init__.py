"""Nouns of the package: segments, codecs, contracts, errors, counters. Torch and stdlib only."""
