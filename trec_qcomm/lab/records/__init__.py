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

from trec_qcomm.core.stats import TRAFFIC_GROUPS as TRAFFIC_GROUPS
from trec_qcomm.core.stats import TRAFFIC_KINDS as TRAFFIC_KINDS
from trec_qcomm.lab.records.debug import DebugRecord as DebugRecord
from trec_qcomm.lab.records.debug import Direction as Direction
from trec_qcomm.lab.records.json_lines import append as append
from trec_qcomm.lab.records.json_lines import read as read
from trec_qcomm.lab.records.json_lines import read_all as read_all
from trec_qcomm.lab.records.kinds import BenchRecord as BenchRecord
from trec_qcomm.lab.records.kinds import BreakEvenRecord as BreakEvenRecord
from trec_qcomm.lab.records.kinds import CodecRecord as CodecRecord
from trec_qcomm.lab.records.kinds import GuardProbeRecord as GuardProbeRecord
from trec_qcomm.lab.records.kinds import GuardRecord as GuardRecord
from trec_qcomm.lab.records.kinds import ScaleRecord as ScaleRecord
from trec_qcomm.lab.records.kinds import SearchRecord as SearchRecord
from trec_qcomm.lab.records.kinds import SegmentSizes as SegmentSizes
from trec_qcomm.lab.records.kinds import TableSizes as TableSizes
from trec_qcomm.lab.records.kinds import TableSizesRecord as TableSizesRecord
from trec_qcomm.lab.records.kinds import ValidationRecord as ValidationRecord
from trec_qcomm.lab.records.record import PACKAGES as PACKAGES
from trec_qcomm.lab.records.record import Environment as Environment
from trec_qcomm.lab.records.record import Origin as Origin
from trec_qcomm.lab.records.record import Percentiles as Percentiles
from trec_qcomm.lab.records.record import Record as Record
from trec_qcomm.lab.records.record import Scalar as Scalar
from trec_qcomm.lab.records.record import TrafficByKind as TrafficByKind
from trec_qcomm.lab.records.record import TrafficBytes as TrafficBytes
from trec_qcomm.lab.records.trainings import Limits as Limits
from trec_qcomm.lab.records.trainings import LimitsByMetric as LimitsByMetric
from trec_qcomm.lab.records.trainings import Metrics as Metrics
from trec_qcomm.lab.records.trainings import NetworkRecord as NetworkRecord
from trec_qcomm.lab.records.trainings import ProgressRecord as ProgressRecord
from trec_qcomm.lab.records.trainings import SeedEvaluation as SeedEvaluation
from trec_qcomm.lab.records.trainings import SeedTraining as SeedTraining
from trec_qcomm.lab.records.trainings import StudyRecord as StudyRecord
from trec_qcomm.lab.records.trainings import TableTraffic as TableTraffic
from trec_qcomm.lab.records.trainings import TrainingRecord as TrainingRecord
from trec_qcomm.lab.records.trainings import choice_of as choice_of
from trec_qcomm.lab.records.trainings import traffic_of as traffic_of
