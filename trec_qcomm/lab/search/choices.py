"""Choices of codecs as a config, in which tables of equal codecs share a rule.

Knows: configs. Does not know: what codecs cost.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from trec_qcomm.config import Config, TableRule, UniqueBagsChoice, load_preset
from trec_qcomm.config.tables import Direction
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.search.candidates import EXACT


@dataclass(frozen=True)
class Pair:
    """Codecs of a table: of its rows and of their gradients."""

    forward: Codec = EXACT
    backward: Codec = EXACT

    def __getitem__(self, direction: Direction) -> Codec:
        return self.forward if direction == "forward" else self.backward


Choice = Mapping[str, Pair]  # by table


@cache
def best() -> Pair:
    """Return the codecs that configs/best.yaml has for all tables."""
    rule = load_preset("best").embedding[0]
    return Pair(rule.forward, rule.backward)


def groups_of(choice: Choice) -> list[tuple[Pair, list[str]]]:
    """Return codecs with the tables that have them, in order of the number of tables."""
    tables: dict[Pair, list[str]] = {}
    for table in sorted(choice):
        tables.setdefault(choice[table], []).append(table)
    return sorted(tables.items(), key=lambda group: (-len(group[1]), repr(group[0])))


def config_of(choice: Choice, base: Config, unique_bags: UniqueBagsChoice) -> Config:
    """Return a config with these codecs and all other settings of the base."""
    rules = [
        TableRule(
            tables=tuple(map(glob.escape, names)),
            forward=pair.forward,
            backward=pair.backward,
            unique_bags=unique_bags,
        )
        for pair, names in groups_of(choice)
    ]
    return replace(base, embedding=tuple(rules), debug=None)


def config_of_all(pair: Pair, unique_bags: UniqueBagsChoice) -> Config:
    """Return a config with the same codecs for all tables, and nothing else."""
    rule = TableRule(
        tables="*", forward=pair.forward, backward=pair.backward, unique_bags=unique_bags
    )
    return Config(embedding=(rule,))


def config_of_some(
    pair: Pair, names: Iterable[str], tables: Iterable[str], unique_bags: UniqueBagsChoice
) -> Config:
    """Return a config with the same codecs for some tables, and exact codecs for all others.

    Args: tables: all tables of the model.
    """
    chosen = set(names)
    if chosen >= set(tables):
        return config_of_all(pair, unique_bags)
    choice = {table: pair if table in chosen else Pair() for table in tables}
    return config_of(choice, config_of_all(Pair(), unique_bags), unique_bags)
