"""What a search says: a config in YAML with the reasons beside each rule, and a table.

Knows: plans. Does not know: how they were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log10
from typing import Any

import yaml

from trec_qcomm.config import Config, config_from_dict, config_to_dict, parse_yaml, write_yaml
from trec_qcomm.core.aligned import aligned
from trec_qcomm.lab.search.candidates import ROWS, Direction, Item, Option, is_low_rank, label
from trec_qcomm.lab.search.choices import best, dense_rules, groups_of
from trec_qcomm.lab.search.losses import LossModel
from trec_qcomm.lab.search.plans import Plan, Planner


def config_text(plan: Plan, model: LossModel, config: Config) -> str:
    """Return a plan's config with comments: why each rule, and what the plan was shown to do."""
    data = config_to_dict(config)
    lines = [*_head(plan, model), "embedding:"]
    for rule, (pair, tables) in zip(data.pop("embedding"), groups_of(plan.choice), strict=True):
        notes = [f"{len(tables)} tables"]
        notes += [f"{d}: {_note(pair[d], tables, d, model)}" for d in ROWS]
        lines += [*(f"  # {note}" for note in notes), *_rule_lines(rule)]
    if rules := dense_rules(plan.dense):
        lines.append("dense:")
        for rule, chosen in zip(data.pop("dense"), rules, strict=True):
            option = plan.dense[chosen.parameters[0]]
            lines.append(f"  # {_note(option, chosen.parameters, 'dense', model)}")
            lines += _rule_lines(rule)
    elif plan.dense:
        lines += [
            "# Dense gradients are exact: DDP reduces them itself.",
            f"# {_note(next(iter(plan.dense.values())), list(plan.dense), 'dense', model)}",
        ]
    text = "\n".join([*lines, write_yaml(data)])
    read = config_from_dict(parse_yaml(text, name="config"))
    assert (read.embedding, read.dense) == (config.embedding, config.dense)
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
    exact = exact_nbytes(model)
    what = "Rows, their gradients and dense gradients" if plan.dense else "Rows and gradients"
    lines = [
        f"# Made by trec_qcomm.search to keep the loss within {plan.budget:g} %.",
        f"# {what}: {plan.nbytes:.0f} bytes a rank and step, {exact / plan.nbytes:.1f} "
        f"times fewer than float32 ({exact:.0f}).",
        f"# Expected change {plan.expected:+.4f} %, standard error {plan.error:.4f}.",
    ]
    for metric, change in plan.verified.items():
        lines.append(f"# Verified over {change.n} seeds, {metric}: {change} %.")
    lines += [f"# {plan.verdict}."] * bool(plan.verdict)
    lines += [f"# Stepped back from {blame}." for blame in plan.blames]
    return lines


def exact_nbytes(model: LossModel) -> float:
    """Return the bytes of a step where every item is exact."""
    measured = model.measured
    return sum(measured.noise[*item, measured.exact(item)].nbytes for item in measured.items)


def _note(option: Option, names: Sequence[str], direction: Direction, model: LossModel) -> str:
    """Return bytes, noise and expected loss of an option on some tables or groups."""
    noise = model.measured.noise
    each = [noise[name, direction, option] for name in names]
    exact = [noise[name, direction, model.measured.exact((name, direction))] for name in names]
    nbytes, raw = (sum(n.nbytes for n in group) for group in (each, exact))
    losses = sum(model.loss(name, direction, option) or 0.0 for name in names)
    worst = max(n.relative for n in each)
    snr = f"{-10 * log10(worst):.1f} dB or more" if worst else "exact"
    if is_low_rank(option):
        snr = "feedback of what factors leave out"
    return f"{nbytes:.0f} of {raw:.0f} bytes, {snr}, expected {losses:+.4f} %"


def table_text(plans: Mapping[str, Plan], planner: Planner) -> str:
    """Return a line a plan: budget, bytes, expected and measured change, verdict."""
    exact = exact_nbytes(planner.model)
    pair = best()[0]
    of_best = planner.all_with("best", pair).nbytes if planner.has(pair) else 0.0
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
    """Return a line a table, and a line a group of dense parameters: codecs, bytes, losses."""
    columns = ("bytes", "expected %")
    lines: list[Sequence[str]] = [("table", "rows", "forward", *columns, "backward", *columns)]
    for table in model.measured.tables:
        exact = model.measured.exact((table, "forward"))
        cells = [table, f"{model.measured.noise[table, 'forward', exact].rows:.0f}"]
        for direction in ROWS:
            cells += _cells(plan, (table, direction), model)
        lines.append(cells)
    text = aligned(lines)
    if plan.dense:
        groups = [[group, *_cells(plan, (group, "dense"), model)] for group in plan.dense]
        text += "\n\n" + aligned([("dense parameters", "codec", *columns), *groups])
    return text


def _cells(plan: Plan, item: Item, model: LossModel) -> Iterable[str]:
    option = plan.options[item]
    nbytes = model.measured.noise[*item, option].nbytes
    return label(option), f"{nbytes:.0f}", f"{model.loss(*item, option) or 0.0:+.5f}"
