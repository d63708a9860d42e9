"""Texts of a search: a config in YAML with the reasons for each rule, and a table.

Knows: plans. Does not know: how they were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log10
from typing import Any

import yaml

from trec_qcomm.config import Config, config_from_dict, config_to_dict, parse_yaml, write_yaml
from trec_qcomm.config.tables import DIRECTIONS, Direction
from trec_qcomm.core.aligned import aligned
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.search.candidates import EXACT, Item, label
from trec_qcomm.lab.search.choices import best, groups_of
from trec_qcomm.lab.search.losses import LossModel
from trec_qcomm.lab.search.plans import Plan, Planner


def config_text(plan: Plan, model: LossModel, config: Config) -> str:
    """Return a plan's config with comments: reasons for each rule, results of verification."""
    data = config_to_dict(config)
    lines = [*_head(plan, model), "embedding:"]
    for rule, (pair, tables) in zip(data.pop("embedding"), groups_of(plan.choice), strict=True):
        notes = [f"{len(tables)} tables"]
        notes += [f"{d}: {_note(pair[d], tables, d, model)}" for d in DIRECTIONS]
        lines += [*(f"  # {note}" for note in notes), *_rule_lines(rule)]
    text = "\n".join([*lines, write_yaml(data)])
    read = config_from_dict(parse_yaml(text, name="config"))
    assert (read.embedding, read.dense) == (config.embedding, config.dense)
    return text


def _rule_lines(rule: Mapping[str, Any]) -> list[str]:
    """Return a rule as an entry of a list, each field on one line."""
    text = yaml.safe_dump([rule], default_flow_style=None, sort_keys=False, width=1e9)
    return [f"  {line}" for line in text.splitlines()]


def _head(plan: Plan, model: LossModel) -> list[str]:
    exact = exact_nbytes(model)
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


def exact_nbytes(model: LossModel) -> float:
    """Return the bytes of a step in which every item is exact."""
    measured = model.measured
    return sum(measured.noise[*item, EXACT].nbytes for item in measured.items)


def _note(codec: Codec, tables: Sequence[str], direction: Direction, model: LossModel) -> str:
    """Return bytes, noise and expected loss of a codec on some tables."""
    noise = model.measured.noise
    nbytes, raw = (
        sum(noise[table, direction, each].nbytes for table in tables) for each in (codec, EXACT)
    )
    losses = sum(model.loss(table, direction, codec) or 0.0 for table in tables)
    worst = max(noise[table, direction, codec].relative for table in tables)
    snr = f"{-10 * log10(worst):.1f} dB or more" if worst else "exact"
    return f"{nbytes:.0f} of {raw:.0f} bytes, {snr}, expected {losses:+.4f} %"


def table_text(plans: Mapping[str, Plan], planner: Planner) -> str:
    """Return one line for each plan: budget, bytes, expected and measured change, verdict."""
    exact = exact_nbytes(planner.model)
    of_best = planner.all_with("best", best()).nbytes if planner.has(best()) else 0.0
    metrics = list(dict.fromkeys(m for plan in plans.values() for m in plan.verified))
    head = ["plan", "budget %", "bytes", "of float32", "of best", "expected %", "+-"]
    lines = [(*head, *metrics, "verdict")]
    for plan in plans.values():
        shown = [str(plan.verified[m]) if m in plan.verified else "-" for m in metrics]
        lines.append((
            plan.name, f"{plan.budget:g}", f"{plan.nbytes:.0f}", f"{plan.nbytes / exact:.1%}",
            f"{plan.nbytes / of_best:.1%}" if of_best else "-", f"{plan.expected:+.4f}",
            f"{plan.error:.4f}", *shown, plan.verdict or "-",
        ))  # fmt: skip
    return aligned(lines)


def codecs_text(plan: Plan, model: LossModel) -> str:
    """Return one line for each table: codecs, bytes, losses."""
    columns = ("bytes", "expected %")
    lines: list[Sequence[str]] = [("table", "rows", "forward", *columns, "backward", *columns)]
    for table in model.measured.tables:
        cells = [table, f"{model.measured.noise[table, 'forward', EXACT].rows:.0f}"]
        for direction in DIRECTIONS:
            cells += _cells(plan, (table, direction), model)
        lines.append(cells)
    return aligned(lines)


def _cells(plan: Plan, item: Item, model: LossModel) -> Iterable[str]:
    codec = plan.codecs[item]
    nbytes = model.measured.noise[*item, codec].nbytes
    return label(codec), f"{nbytes:.0f}", f"{model.loss(*item, codec) or 0.0:+.5f}"
