"""Choices of codecs by table as a config: tables of equal codecs share a rule.

Knows: configs. Does not know: what codecs cost.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from trec_qcomm.codecs import ErrorBounded, Identity, Rowwise
from trec_qcomm.config import Config, TableRule, UniqueBagsChoice
from trec_qcomm.core.codec import Codec
from trec_qcomm.search.candidates import Direction

EXACT = Identity()


@dataclass(frozen=True)
class Pair:
    """Codecs of a table: of its rows and of their gradients."""

    forward: Codec = EXACT
    backward: Codec = EXACT

    def __getitem__(self, direction: Direction) -> Codec:
        return self.forward if direction == "forward" else self.backward


Choice = Mapping[str, Pair]  # by table
BEST = Pair(ErrorBounded(0.01), Rowwise(4, "stochastic"))  # the codecs of configs/best.yaml


def groups_of(choice: Choice) -> list[tuple[Pair, list[str]]]:
    """Return pairs of codecs with the names of their tables, those of many tables first."""
    tables: dict[Pair, list[str]] = {}
    for table in sorted(choice):
        tables.setdefault(choice[table], []).append(table)
    return sorted(tables.items(), key=lambda group: (-len(group[1]), repr(group[0])))


def config_of(choice: Choice, base: Config, unique_bags: UniqueBagsChoice) -> Config:
    """Return a config with these codecs; all but the embeddings is from the base."""
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


def one_table(table: str, codec: Codec, tables: Iterable[str]) -> Choice:
    """Return a choice that codes the rows of one table, and sends the rest exactly."""
    return {name: Pair(forward=codec) if name == table else Pair() for name in tables}
