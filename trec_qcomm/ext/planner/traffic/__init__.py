"""The one model of bytes that the planner's estimator and the simulation share.

sizes.py: what a codec makes of a segment of n rows, measured on real rows or known. shardings.py:
which segments a table's shards send in each hop. tables.py: both together, the expected bytes of a
table in a step. ids.py: bytes of ids and lengths. data_parallel.py: bytes of the all-reduce of
tables that every rank has.
Knows: codecs, shardings by name. Does not know: TorchRec, records, links, seconds.
"""

from trec_qcomm.ext.planner.traffic.data_parallel import TouchedRows, TouchedTable, reduced_nbytes
from trec_qcomm.ext.planner.traffic.shardings import SHARDINGS, Hop, Place, hops_of
from trec_qcomm.ext.planner.traffic.sizes import (
    FixedSizes,
    RecordedSizes,
    SampledSizes,
    SizeCurve,
    Sizes,
)
from trec_qcomm.ext.planner.traffic.tables import (
    MeasuredTable,
    Sharded,
    TableBytes,
    sent_nbytes,
)

__all__ = [
    "SHARDINGS",
    "FixedSizes",
    "Hop",
    "MeasuredTable",
    "Place",
    "RecordedSizes",
    "SampledSizes",
    "Sharded",
    "SizeCurve",
    "Sizes",
    "TableBytes",
    "TouchedRows",
    "TouchedTable",
    "hops_of",
    "reduced_nbytes",
    "sent_nbytes",
]
