"""Records: one schema of all measurements, as typed JSON lines with a version.

Any training can write a record. `python -m trec_qcomm report runs/mine.jsonl` draws records:

    from trec_qcomm.lab import records

    record = records.TrainingRecord.from_qcomm(
        qcomm, name="int4", losses=losses, metrics={"ne": ne}
    )
    records.append("runs/mine.jsonl", record)

Two records are comparable if their `setup` is equal; the measuring program decides what belongs to
it. Another version, an unknown kind or an unknown field is an error that names the line. record.py
has the fields that all kinds share, trainings.py, debug.py and kinds.py have the kinds.
Knows: JSON, files. Does not know: configs, options of any program that measures.
"""

from trec_qcomm.core.stats import TRAFFIC_GROUPS, TRAFFIC_KINDS
from trec_qcomm.lab.records.debug import DebugRecord, Direction
from trec_qcomm.lab.records.json_lines import append, read, read_all
from trec_qcomm.lab.records.kinds import (
    BenchRecord,
    BreakEvenRecord,
    CodecRecord,
    GuardProbeRecord,
    GuardRecord,
    ScaleRecord,
    SearchRecord,
    SegmentSizes,
    TableSizes,
    TableSizesRecord,
    ValidationRecord,
)
from trec_qcomm.lab.records.record import (
    PACKAGES,
    Environment,
    Origin,
    Percentiles,
    Record,
    Scalar,
    TrafficByKind,
    TrafficBytes,
)
from trec_qcomm.lab.records.trainings import (
    Limits,
    LimitsByMetric,
    Metrics,
    NetworkRecord,
    ProgressRecord,
    SeedEvaluation,
    SeedTraining,
    StudyRecord,
    TableTraffic,
    TrainingRecord,
    choice_of,
    traffic_of,
)

__all__ = [
    "PACKAGES", "TRAFFIC_GROUPS", "TRAFFIC_KINDS", "BenchRecord",
    "BreakEvenRecord", "CodecRecord", "DebugRecord", "Direction", "Environment",
    "GuardProbeRecord", "GuardRecord", "Limits", "LimitsByMetric", "Metrics", "NetworkRecord",
    "Origin", "Percentiles", "ProgressRecord", "Record", "Scalar", "ScaleRecord", "SearchRecord",
    "SeedEvaluation", "SeedTraining", "SegmentSizes", "StudyRecord", "TableSizes",
    "TableSizesRecord", "TableTraffic", "TrafficByKind", "TrafficBytes", "TrainingRecord",
    "ValidationRecord", "append", "choice_of", "read", "read_all", "traffic_of",
]  # fmt: skip
