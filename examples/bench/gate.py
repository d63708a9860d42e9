"""Table of the quality gate: each configuration that was trained with the Criteo example's rows.

Knows: records of studies. Does not know: pages, trainings.
"""

from __future__ import annotations

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
    **_lines("dense", "null int8 int4 mixed_tables bf16 fp16_bf16"),
    "`unique_int4`": ("best/unique_int4", "served/unique_int4"),
    "`fast`": ("dense/best_dense_float6", "served/fast"),
    "`best`": ("best/best", "served/best"),
    **_lines("dense", "dense_float6"),
    "`dense_int8`": ("dense/two_shot_int8_stochastic",),
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
        shown = [cell.replace("upper ", "").replace("0.", ".") for cell in cells]
        rows.append([label, ", ".join(seeds), *shown, passed])
    commits = sorted({r.environment.commit for r in measured if r.environment} - {None})
    table = markdown(["", "seeds", *COLUMNS, "gate"], rows)
    note = "Percent of float32's value: mean [95 % interval], one-sided upper 95 % limit. Seeds: of"
    note += " trainings, of evaluations. `null` is float32 with weights that differ by a millionth."
    return f"{table}\n\n{note} Commits: {', '.join(commits)}.\n"
