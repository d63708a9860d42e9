"""Columns of the table of plans in Triton, [S, NUM_COLUMNS] int64: the fields of cpu.PLAN."""

# mypy: ignore-errors

import triton.language as tl

from trec_qcomm.ops.batch.packed_ids.cpu import PLAN

NUM_COLUMNS = tl.constexpr(len(PLAN.names))
BAGS, IDS, LENGTH_BITS, LENGTH_BASE, RUNS, KIND, BITS, BASE, UNARY_NBYTES, AT = (
    tl.constexpr(column) for column in range(len(PLAN.names))
)
