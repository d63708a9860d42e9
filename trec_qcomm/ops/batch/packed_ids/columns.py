"""Numbers that describe a segment's bytes, as columns of a table that the CPU's kernels share.

Shapes: S segments; the table is [S, NUM_COLUMNS] int64.
"""

BAGS = 0  # number of bags
IDS = 1  # number of ids
LENGTH_BITS = 2  # bits of a packed length; 0: lengths are runs
LENGTH_BASE = 3  # what is added to a packed length
RUNS = 4  # encoder: number of runs; decoder: where they begin
KIND = 5  # words of ids: see reference.py
BITS = 6  # low bits of a word
BASE = 7  # the smallest or the first id
UNARY_NBYTES = 8  # bytes of high parts
AT = 9  # where the segment's streams begin
NUM_COLUMNS = 10
