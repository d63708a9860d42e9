"""What the server of test processes has done before it forks any: tests/fork_server.py.

A rank's first kernel makes numba fill its lists of types and functions, and Python's garbage
collector touches, and so copies, all memory that a rank has from the server. Together that was two
thirds of what a short rank takes. Here the lists are filled once, and what is there is frozen.
"""

import gc

import pytest  # noqa: F401
import torchrec.metrics.ne
import torchrec.models.dlrm  # noqa: F401
from numba.core.registry import cpu_target

import trec_qcomm.qcomm
import trec_qcomm.testing.ranks  # noqa: F401

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
gc.collect()
gc.freeze()
