"""What a study found: a table in markdown, a line of it, a plot. Reads records, trains nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from trec_qcomm.report.statistics import (
    BASELINE,
    MAX_UPPER,
    NULL,
    Change,
    eval_only_gate,
    paired_changes,
    training_gate,
)

Record = dict[str, Any]  # one (config, seed), see accuracy.py
_TRAINED = {
    "test": ("test", "on", "logloss"),
    "test_off": ("test", "off", "logloss"),
    "auc": ("test", "on", "auc"),
    "progressive": ("progressive_logloss",),
}

_HEAD = (
    "config", "seeds", "training: test logloss, %", "training: progressive logloss, %",
    "gate (b) training", "test AUC, % (+ is better)", "test logloss, codec off, %",
    "eval-only: NE, %", "gate (a) eval-only",
)  # fmt: skip


def changes(records: Sequence[Record], config: str) -> dict[str, Change]:
    """Paired changes of one config against fp32, of the seeds that both have.

    Keys, where there are records of them: test, progressive, auc, test_off, eval_only.
    """
    base, own = (
        {r["seed"]: r["training"] for r in records if r["config"] == name and r.get("training")}
        for name in (BASELINE, config)
    )
    pairs = {
        key: {config: _each(own, path), BASELINE: _each(base, path)}
        for key, path in _TRAINED.items()
    }
    both = {
        r["seed"]: r["eval_only"]
        for r in records if r["config"] == config and r["seed"] in base and r.get("eval_only")
    }  # fmt: skip
    pairs["eval_only"] = {config: _each(both, ("on", "ne")), BASELINE: _each(both, ("off", "ne"))}
    found = {key: paired_changes(pair, BASELINE).get(config) for key, pair in pairs.items()}
    return {key: change for key, change in found.items() if change is not None}


def _each(by_seed: Mapping[int, Any], path: Sequence[str]) -> dict[int, float]:
    """The number that lies there, of every seed."""
    return {seed: reduce(getitem, path, fields) for seed, fields in by_seed.items()}


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
        if "test" in found and training_gate(found["test"], found["progressive"]) == "PASS":
            passed["training"].append(name)
        if "eval_only" in found and eval_only_gate(found["eval_only"]) == "PASS":
            passed["eval-only"].append(name)
    parts = [
        f"{gate} gate passed by {', '.join(names) or 'none'}" for gate, names in passed.items()
    ]
    return f"{'; '.join(parts)} of {', '.join(configs)}"


def write_plot(records: Sequence[Record], configs: Sequence[str], path: Path) -> bool:
    """Means and 95 % intervals of every config; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [NULL, *configs]
    figure, axes = pyplot.subplots(figsize=(8, 1.5 + 0.5 * len(names)))
    for offset, key in ((-0.2, "test"), (0.0, "progressive"), (0.2, "eval_only")):
        points = [(k, c[key]) for k, n in enumerate(names) if key in (c := changes(records, n))]
        if not points:
            continue
        half = [0.0 if c.high is None else c.high - c.mean for _, c in points]
        places = [k + offset for k, _ in points]
        axes.errorbar([c.mean for _, c in points], places, xerr=half, fmt="o", label=key)
    axes.axvline(0, color="grey", linewidth=1)
    for gate, limit in MAX_UPPER.items():
        label = f"limit of {gate} (one-sided, 95 %)"
        axes.axvline(
            limit, linestyle=":" if gate == "training" else "--", color="grey", label=label
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("change against fp32, % (mean and 95 % interval; right is worse)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
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
