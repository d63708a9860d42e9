"""Table of the quality gate: presets of the Criteo example, and what stands beside them.

Other configurations of the same records are those of the papers' claims (examples/papers).
Knows: records of studies. Does not know: pages, trainings.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from examples.bench.tables import markdown
from trec_qcomm.lab.records import StudyRecord
from trec_qcomm.lab.study.gates import BASELINE, NULL, PASS
from trec_qcomm.lab.study.verdicts import Rules, lines_of


def _lines(file: str, names: str, where: str = "") -> dict[str, tuple[str, ...]]:
    return {f"{where}`{name}`": (f"{file}/{name}",) for name in names.split()}


# A line -> its records, FILE/CONFIGURATION of examples/criteo/results. Some configurations had
# other names when they were trained. A line begins with its setting where that is not the gate's.
JUDGED = {
    **_lines("presets", "null int8 int4 float8 fast dense_int8"),
    "`mixed_tables`": ("dense/mixed_tables", "presets/mixed_tables"),
    "`unique_int4`": ("presets/unique_int4", "served/unique_int4"),
    **_lines("dense", "null", "beside the next: "),
    **_lines("dense", "bf16 fp16_bf16"),
    **_lines("best", "null", "beside `best`: "),
    "`best`": ("best/best", "served/best"),
    **_lines("dense", "dense_float6"),
    "`fast`, dense with 8 bits, stochastic": ("dense/best_dense_int8_stochastic",),
    "`fast`, dense in bf16": ("dense/best_dense_bf16",),
    "factors of rank 16 in BF16 alone": ("low_rank/dense_low_rank",),
    "`papers/int2`": ("dense/int2",),
    "`papers/dct`": ("dense/dct",),
    "`papers/dense_int4_ring`": ("dense/ring_int4",),
    "`papers/dense_int4_recursive_doubling`": ("dense/recursive_doubling_int4",),
    "`papers/dense_dct`": ("dense/threshold_0.01",),
    **_lines("best_dim64", "null best", "dim 64: "),
    "dim 64: its factors alone": ("best_dim64/dense_low_rank",),
    **_lines("data_parallel", "null", "plan `mixed`: "),
    "plan `mixed`: `data_parallel` of `best` alone": ("data_parallel/data_parallel_8",),
    **_lines("dcn", "null int8 int4 fast best", "DLRM-DCNv2: "),
    **_lines("replicas", "null", "2D: "),
    "2D: sync in 8 bits, stochastic, with feedback": ("replicas/sync0",),
}
COLUMNS = {  # of the table -> mode and metric
    "training: test logloss": ("training", "logloss"),
    "progressive logloss": ("training", "progressive_logloss"),
    "eval-only: NE": ("eval-only", "ne"),
}


def gate(measured: Sequence[StudyRecord]) -> str:
    """Return each line of JUDGED: its changes in percent, and the verdict of the quality gate.

    A change is a mean, its 95 % interval and its one-sided upper 95 % limit.
    """
    files: dict[str, dict[str, list[StudyRecord]]] = defaultdict(lambda: defaultdict(list))
    for record in measured:
        assert record.origin is not None
        files[Path(record.origin.file).stem][record.configuration].append(record)
    judged = {
        f"{file}/{name}": by_mode
        for file, groups in files.items()
        for name, by_mode in lines_of(groups, Rules.from_record(groups[BASELINE][-1])).items()
    }
    rows = []
    for label, sources in JUDGED.items():
        verdicts = {mode: v for source in sources for mode, v in judged[source].items()}
        cells = [
            str(verdicts[mode].changes[metric]) if mode in verdicts else ""
            for mode, metric in COLUMNS.values()
        ]
        seeds = [str(verdict.num_seeds) for verdict in verdicts.values()]
        texts = dict.fromkeys(verdict.text for verdict in verdicts.values())
        passed = "" if NULL in label else "; ".join(sorted(texts, key=PASS.__eq__))
        shown = [re.sub(r"(?<!\d)0\.", ".", cell.replace("upper ", "")) for cell in cells]
        rows.append([label, ", ".join(seeds), *shown, passed])
    shown = {source.partition("/")[::2] for sources in JUDGED.values() for source in sources}
    commits = {
        str(r.environment.commit)
        for file, name in shown | {(file, BASELINE) for file, _ in shown}
        for r in files[file][name]
        if r.environment and r.environment.commit
    }
    table = markdown(["", "seeds", *COLUMNS, "gate"], rows)
    note = "Percent of float32's value: mean [95 % interval], one-sided upper 95 % limit. Seeds: of"
    note += " trainings, of evaluations. `null` is float32 with weights that differ by a millionth."
    note += " `best`, the factors, and evaluations of `mixed_tables` and `unique_int4` have another"
    note += " float32 than those above."
    note += " Without a command here: scripts of a63d3dd, and one configuration at a time. Commits:"
    return f"{table}\n\n{note} {', '.join(sorted(commits))}, and some records without one.\n"
