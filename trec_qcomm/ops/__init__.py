"""Kernels, one folder an op: `__init__` checks and dispatches, reference.py (torch) is the
definition, cpu.py (numba) gives the same bytes faster. Kernels neither allocate results nor raise.
"""
