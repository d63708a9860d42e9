"""What a study found: a table in markdown, a line of it, a plot. Reads records, trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

Record = dict[str, Any]  # one (config, seed), see accuracy.py
_HEAD = (
    "config", "seeds", "training: test logloss, %", "training: progressive logloss, %",
    "gate (b) training", "test AUC, % (+ is better)", "test logloss, codec off, %",
    "eval-only: NE, %", "gate (a) eval-only",
)  # fmt: skip


def changes(records: Sequence[Record], config: str) -> dict[str, Change]:
    """Paired changes of one config against fp32; the keys are those of studies.changes."""
    own, fp32 = ([r for r in records if r["config"] == name] for name in (config, BASELINE))
    return studies.changes(own, fp32)


def format_table(records: Sequence[Record], configs: Sequence[str]) -> str:
    """Markdown, a line a config, the null run first. Changes: mean [95 % interval], upper limit."""
    lines = [_HEAD, ("---",) * len(_HEAD)]
    lines += [_cells(name, changes(records, name)) for name in (NULL, *configs)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def verdict(records: Sequence[Record], configs: Sequence[str]) -> str:
    """One line: which configs passed which gate."""
    passed: dict[str, list[str]] = {"training": [], "eval-only": []}
    for name in configs:
        found = changes(records, name)
        if "test" in found and training_gate(found["test"], found["progressive"]) == PASS:
            passed["training"].append(name)
        if "eval_only" in found and eval_only_gate(found["eval_only"]) == PASS:
            passed["eval-only"].append(name)
    parts = [
        f"{gate} gate passed by {', '.join(names) or 'none'}" for gate, names in passed.items()
    ]
    return f"{'; '.join(parts)} of {', '.join(configs)}"


def write_plot(records: Sequence[Record], configs: Sequence[str], folder: Path) -> bool:
    """Means and intervals in folder/accuracy.png; False where matplotlib is not installed."""
    try:
        matplotlib()
    except ValueError:
        return False
    chosen = [r for r in records if r["config"] in (BASELINE, NULL, *configs)]
    lines, options = intervals.lines_of(chosen), chosen[0]["options"]
    render(intervals.figure("accuracy", studies.title(options), lines), folder)
    return True


def _cells(name: str, found: dict[str, Change]) -> tuple[str, ...]:
    test, progressive, ne = (found.get(key) for key in ("test", "progressive", "eval_only"))
    is_null = name == NULL
    gate_b = training_gate(test, progressive) if test and progressive and not is_null else "-"
    gate_a = eval_only_gate(ne) if ne and not is_null else "-"
    n = max((change.n for change in found.values()), default=0)
    texts = [str(found[k]) if k in found else "-" for k in ("test", "progressive")]
    rest = (str(found[k]) if k in found else "-" for k in ("auc", "test_off", "eval_only"))
    return (name, str(n), *texts, gate_b, *rest, gate_a)
