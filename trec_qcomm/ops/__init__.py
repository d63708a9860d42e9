"""Kernels, one folder an op. `__init__` checks and dispatches; reference.py (torch) is the
definition; cpu.py (numba) and gpu.py (Triton) give the same bytes faster, on rows in the memory
of the one or the other. Kernels neither allocate what the caller owns nor raise.
"""
