"""Benches: run each with `python -m examples.bench.NAME` from the root of the repository."""
