"""Choices of codecs as a config: tables of equal codecs share a rule, and so do groups.

Knows: configs. Does not know: what codecs cost.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from trec_qcomm.config import Config, GradientRule, TableRule, UniqueBagsChoice, load_preset
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.search.candidates import EXACT, ROWS, Direction, Item, Option, is_exact


@dataclass(frozen=True)
class Pair:
    """Codecs of a table: of its rows and of their gradients."""

    forward: Codec = EXACT
    backward: Codec = EXACT

    def __getitem__(self, direction: Direction) -> Codec:
        return self.forward if direction == "forward" else self.backward


Choice = Mapping[str, Pair]  # by table
DenseChoice = Mapping[str, GradientRule]  # by group of parameters


@cache
def best() -> tuple[Pair, GradientRule]:
    """Return what configs/best.yaml has for all tables, and for dense gradients."""
    config = load_preset("best")
    rule, dense = config.embedding[0], config.dense_rules[0]
    return Pair(rule.forward, rule.backward), replace(dense, parameters=("*",))


def groups_of(choice: Choice) -> list[tuple[Pair, list[str]]]:
    """Return codecs with the tables that have them, those of most tables first."""
    tables: dict[Pair, list[str]] = {}
    for table in sorted(choice):
        tables.setdefault(choice[table], []).append(table)
    return sorted(tables.items(), key=lambda group: (-len(group[1]), repr(group[0])))


def dense_rules(dense: DenseChoice) -> tuple[GradientRule, ...] | None:
    """Return rules in the order of the groups, where neighbours of equal codecs share one; None
    if all are exact: DDP reduces these itself."""
    if all(map(is_exact, dense.values())):
        return None
    rules: list[GradientRule] = []
    for pattern, chosen in dense.items():
        rule = replace(chosen, parameters=(pattern,))
        if rules and replace(rules[-1], parameters=rule.parameters) == rule:
            rule = replace(rule, parameters=(*rules.pop().parameters, pattern))
        rules.append(rule)
    return tuple(rules)


def config_of(
    choice: Choice, base: Config, unique_bags: UniqueBagsChoice, dense: DenseChoice | None = None
) -> Config:
    """Return a config with these codecs; all else is from the base, and so is dense if None."""
    rules = [
        TableRule(
            tables=tuple(map(glob.escape, names)),
            forward=pair.forward,
            backward=pair.backward,
            unique_bags=unique_bags,
        )
        for pair, names in groups_of(choice)
    ]
    changed = base if not dense else replace(base, dense=dense_rules(dense))
    return replace(changed, embedding=tuple(rules), debug=None)


def config_of_all(pair: Pair, unique_bags: UniqueBagsChoice) -> Config:
    """Return a config with the same codecs for all tables, and nothing else."""
    rule = TableRule(
        tables="*", forward=pair.forward, backward=pair.backward, unique_bags=unique_bags
    )
    return Config(embedding=(rule,))


def config_of_some(
    option: Option,
    direction: Direction,
    names: Iterable[str],
    everything: Iterable[Item],
    unique_bags: UniqueBagsChoice,
) -> Config:
    """Return a config with one option for some tables or groups, and what is exact for the others.

    Args: everything: all tables and groups of the model, in their order.
    """
    chosen = set(names)
    if isinstance(option, GradientRule):
        exact = replace(option, codec=EXACT, low_rank=None, error_feedback=False, refresh=None)
        groups = [name for name, known in everything if known == "dense"]
        dense = {group: option if group in chosen else exact for group in groups}
        return replace(config_of_all(Pair(), unique_bags), dense=dense_rules(dense))
    tables = list(dict.fromkeys(name for name, known in everything if known in ROWS))
    pair = Pair(**{direction: option})
    if chosen >= set(tables):
        return config_of_all(pair, unique_bags)
    choice = {table: pair if table in chosen else Pair() for table in tables}
    return config_of(choice, EMPTY, unique_bags)


EMPTY = config_of_all(Pair(), unique_bags=False)  # of which only the embeddings are replaced
