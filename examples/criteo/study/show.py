"""What a study showed: a table in markdown, a sentence, a plot. Reads records, trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.records import StudyRecord
from trec_qcomm.report.figures.quality import intervals, studies
from trec_qcomm.report.statistics import (
    BASELINE,
    NULL,
    PASS,
    Change,
    eval_only_gate,
    training_gate,
)
from trec_qcomm.report.style import matplotlib, render

_HEAD = (
    "config", "seeds", "training: test logloss, %", "training: progressive logloss, %",
    "gate (b) training", "test AUC, % (+ is better)", "test logloss, codec off, %",
    "eval-only: NE, %", "gate (a) eval-only",
)  # fmt: skip


def changes(records: Sequence[StudyRecord], name: str) -> dict[str, Change]:
    """Return the paired changes of a configuration against float32, by what studies.changes has."""
    ours, fp32 = ([r for r in records if r.configuration == n] for n in (name, BASELINE))
    return studies.changes(ours, fp32)


def format_table(records: Sequence[StudyRecord], names: Sequence[str]) -> str:
    """Return markdown, a line a configuration, the null run first.

    Changes are mean [95 % interval], one-sided upper 95 % limit.
    """
    lines = [_HEAD, ("---",) * len(_HEAD)]
    lines += [_cells(name, changes(records, name)) for name in (NULL, *names)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def verdict(records: Sequence[StudyRecord], names: Sequence[str]) -> str:
    """Return one line: which configurations passed which gate."""
    passed: dict[str, list[str]] = {"training": [], "eval-only": []}
    for name in names:
        by_measure = changes(records, name)
        test, progressive, ne = map(by_measure.get, ("test", "progressive", "eval_only"))
        if test and progressive and training_gate(test, progressive) == PASS:
            passed["training"].append(name)
        if ne and eval_only_gate(ne) == PASS:
            passed["eval-only"].append(name)
    parts = [f"{gate} gate passed by {', '.join(of_gate) or 'none'}"
             for gate, of_gate in passed.items()]  # fmt: skip
    return f"{'; '.join(parts)} of {', '.join(names)}"


def write_plot(records: Sequence[StudyRecord], names: Sequence[str], folder: Path) -> bool:
    """Draw means and intervals in folder/accuracy.png; False where matplotlib is not installed."""
    try:
        matplotlib()
    except ValueError:
        return False
    chosen = [r for r in records if r.configuration in (BASELINE, NULL, *names)]
    setup = studies.StudySetup(chosen[0].num_ranks, chosen[0].setup_key)
    render(intervals.figure("accuracy", str(setup), intervals.lines_of(chosen)), folder)
    return True


def _cells(name: str, by_measure: dict[str, Change]) -> tuple[str, ...]:
    test, progressive, ne = map(by_measure.get, ("test", "progressive", "eval_only"))
    is_null = name == NULL
    gate_b = training_gate(test, progressive) if test and progressive and not is_null else "-"
    gate_a = eval_only_gate(ne) if ne and not is_null else "-"
    n = max((change.n for change in by_measure.values()), default=0)
    texts = {key: str(change) for key, change in by_measure.items()}
    losses = (texts.get(key, "-") for key in ("test", "progressive"))
    rest = (texts.get(key, "-") for key in ("auc", "test_off", "eval_only"))
    return (name, str(n), *losses, gate_b, *rest, gate_a)
