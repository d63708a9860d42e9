"""Sizes of segments by table: measured on rows, kept as records, read by planner and simulation.

rows.py reads the rows, measured.py makes and reads the records, command.py is the command line, and
prices.py has the user's method. ext.planner.traffic is the model.
"""

from trec_qcomm.lab.sizes.measured import Measured, load_measured, measure_sizes

__all__ = ["Measured", "load_measured", "measure_sizes"]
