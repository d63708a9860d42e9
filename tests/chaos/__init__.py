"""Faults in a training on emulated hosts, and a long training: python -m tests.chaos."""
