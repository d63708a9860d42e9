"""Kernels, one folder for each op.

`__init__.py` of an op checks the arguments and dispatches. reference.py (plain torch) is the
definition. cpu.py (numba) and gpu.py (Triton) give the same bytes faster: cpu.py for rows in the
memory of a CPU, gpu.py for rows in that of a GPU. Kernels neither raise nor allocate what the
caller owns.
"""
