"""Faults in a training on emulated hosts: python -m tests.chaos."""
