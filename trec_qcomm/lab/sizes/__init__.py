"""Sizes of segments by table: measured on rows, kept as records, read by planner and simulation.

measured.py makes and reads them, __main__.py is the command line. control.traffic is the model.
"""

from trec_qcomm.lab.sizes.measured import Measured, load_measured, measure_sizes

__all__ = ["Measured", "load_measured", "measure_sizes"]
