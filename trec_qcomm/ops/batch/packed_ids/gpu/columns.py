"""Columns of tables of int64 in Triton.

[S, NUM_COLUMNS], plans: the fields of cpu.PLAN, and sums that only the decoder in Triton needs.
[blocks, NUM_MEASURES], measures: what the encoder finds out about each block of bags or ids.
"""

# mypy: ignore-errors

import triton.language as tl

from trec_qcomm.ops.batch.packed_ids.cpu import PLAN

NUM_COLUMNS = tl.constexpr(len(PLAN.names) + 2)
BAGS, IDS, LENGTH_BITS, LENGTH_BASE, RUNS, KIND, BITS, BASE, UNARY_NBYTES, AT = (
    tl.constexpr(column) for column in range(len(PLAN.names))
)
# Sum of the lengths of packed bags: of their low 32 bits, and of the bits above. No sum overflows.
LOW_SUM, HIGH_SUM = (tl.constexpr(len(PLAN.names) + column) for column in range(2))

# The least and the largest of a block's lengths or ids; 2 if an id is less than the one before, 1
# if one is equal; the largest gap; sums of high parts, three for gaps and three for steps; and the
# sum of the chosen high parts of earlier blocks of the segment.
LEAST, MOST, DISORDER, WIDEST, SUMS = (tl.constexpr(column) for column in range(5))
BEFORE, NUM_MEASURES = tl.constexpr(10), tl.constexpr(11)
