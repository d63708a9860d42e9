"""What a search says: a config in YAML with the reasons beside each rule, and a table.

Knows: plans. Does not know: how they were made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

import yaml

from trec_qcomm.config import (
    Config,
    UniqueBagsChoice,
    config_from_dict,
    config_to_dict,
    parse_yaml,
    write_yaml,
)
from trec_qcomm.core.aligned import aligned
from trec_qcomm.search.candidates import DIRECTIONS, Direction, label
from trec_qcomm.search.choices import BEST, EXACT, Pair, config_of, groups_of
from trec_qcomm.search.model import LossModel
from trec_qcomm.search.plans import Plan


def config_text(plan: Plan, model: LossModel, base: Config, unique_bags: UniqueBagsChoice) -> str:
    """Return a complete config with comments: why each rule, and what the plan was shown to do."""
    config = config_of(plan.choice, base, unique_bags)
    data = config_to_dict(config)
    rules = data.pop("embedding")
    lines = [*_head(plan, model), "embedding:"]
    for rule, (pair, tables) in zip(rules, groups_of(plan.choice), strict=True):
        lines += [f"  # {note}" for note in _notes(pair, tables, model)]
        lines += _rule_lines(rule)
    text = "\n".join([*lines, write_yaml(data)])
    read = config_from_dict(parse_yaml(text, name="config"))
    assert read.embedding == config.embedding
    return text


def _rule_lines(rule: Mapping[str, Any]) -> list[str]:
    """Return a rule as an entry of a list, each field on one line."""
    lines = [f"    {key}: {_flow(value)}" for key, value in rule.items()]
    return ["  - " + lines[0].lstrip(), *lines[1:]]


def _flow(value: Any) -> str:
    """Return {codec: rowwise, bits: 4, ...} on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1e9)
    return text.removesuffix("\n").removesuffix("\n...")


def _head(plan: Plan, model: LossModel) -> list[str]:
    exact = _nbytes(model, Pair()) or 0.0
    lines = [
        f"# Made by trec_qcomm.search to keep the loss within {plan.budget:g} %.",
        f"# Rows and gradients: {plan.nbytes:.0f} bytes a rank and step, {exact / plan.nbytes:.1f} "
        f"times fewer than float32 ({exact:.0f}).",
        f"# Expected change {plan.expected:+.4f} %, standard error {plan.error:.4f}.",
    ]
    for metric, change in plan.verified.items():
        lines.append(f"# Verified over {change.n} seeds, {metric}: {change} %.")
    lines += [f"# {plan.verdict}."] * bool(plan.verdict)
    lines += [f"# Stepped back from {blame}." for blame in plan.blames]
    return lines


def _nbytes(model: LossModel, pair: Pair) -> float | None:
    noise = model.measured.noise
    keys = [(t, d, pair[d]) for t in model.measured.tables for d in DIRECTIONS]
    return sum(noise[key].nbytes for key in keys) if all(k in noise for k in keys) else None


def _notes(pair: Pair, tables: Sequence[str], model: LossModel) -> list[str]:
    notes = [f"{len(tables)} tables"]
    for direction in DIRECTIONS:
        notes.append(f"{direction}: {_note(pair, tables, direction, model)}")
    return notes


def _note(pair: Pair, tables: Sequence[str], direction: Direction, model: LossModel) -> str:
    noise = model.measured.noise
    codec = pair[direction]
    each = [noise[table, direction, codec] for table in tables]
    exact = [noise[table, direction, EXACT] for table in tables]
    nbytes, raw = (sum(n.nbytes for n in group) for group in (each, exact))
    losses = sum(model.loss(table, direction, codec) or 0.0 for table in tables)
    worst = max(n.relative for n in each)
    snr = f"{-10 * log10(worst):.1f} dB or more" if worst else "exact"
    return f"{nbytes:.0f} of {raw:.0f} bytes, {snr}, expected {losses:+.4f} %"


def table_text(plans: Mapping[str, Plan], model: LossModel) -> str:
    """Return a line a plan: budget, bytes, expected and measured change, verdict."""
    exact = _nbytes(model, Pair()) or 0.0
    best = _nbytes(model, BEST)
    metrics = list(dict.fromkeys(m for plan in plans.values() for m in plan.verified))
    head = ["plan", "budget %", "bytes", "of float32", "of best", "expected %", "+-"]
    lines = [(*head, *metrics, "verdict")]
    for plan in plans.values():
        shown = [str(plan.verified[m]) if m in plan.verified else "-" for m in metrics]
        lines.append((
            plan.name, f"{plan.budget:g}", f"{plan.nbytes:.0f}", f"{plan.nbytes / exact:.1%}",
            f"{plan.nbytes / best:.1%}" if best else "-", f"{plan.expected:+.4f}",
            f"{plan.error:.4f}", *shown, plan.verdict or "-",
        ))  # fmt: skip
    return aligned(lines)


def codecs_text(plan: Plan, model: LossModel) -> str:
    """Return a line a table: its codecs, bytes and expected losses."""
    columns = ("bytes", "expected %")
    lines: list[Sequence[str]] = [("table", "rows", "forward", *columns, "backward", *columns)]
    for table in model.measured.tables:
        cells = [table, f"{model.measured.noise[table, 'forward', EXACT].rows:.0f}"]
        for direction in DIRECTIONS:
            codec = plan.choice[table][direction]
            nbytes = model.measured.noise[table, direction, codec].nbytes
            loss = model.loss(table, direction, codec) or 0.0
            cells += [label(codec), f"{nbytes:.0f}", f"{loss:+.5f}"]
        lines.append(cells)
    return aligned(lines)
