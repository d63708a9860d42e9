"""GuardedTables: the tables whose codecs a guard may change, and their rungs as codecs.

Knows: configs, collectives. Does not know: decisions, losses.
"""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase

from trec_qcomm.config import Config
from trec_qcomm.core.codec import Codec
from trec_qcomm.integration.collectives import EmbeddingCollectives
from trec_qcomm.lab.guard.decisions import Direction, Key, Ladder
from trec_qcomm.lab.guard.ladders import CodecLadder
from trec_qcomm.lab.guard.rule import GuardRule


class GuardedTables:
    """Tables of a model that its config's guard watches.

    Args:
        config: settings with a `guard`.
        collectives: the model's exchanges of rows.
    Raises: ValueError: no table is exchanged, or a pattern of `guard.tables` matches none.
    """

    def __init__(self, config: Config, collectives: EmbeddingCollectives) -> None:
        rule = config.guard
        assert isinstance(rule, GuardRule)
        self._collectives = collectives
        tables = collectives.tables()
        if not tables:
            raise ValueError("guard: no table is sharded yet, or none is sent")
        for pattern in rule.tables:
            if not any(fnmatchcase(table, pattern) for table in tables):
                raise ValueError(
                    f"{config.source}: guard.tables: {pattern!r} matches no table that is sent; "
                    f"there are: {', '.join(tables)}"
                )
        self._ladders: dict[Key, CodecLadder] = {
            (table, direction): ladder
            for table in tables
            if rule.matches(table)
            for direction, ladder in rule.ladders(config.rule_for(table)).items()
        }

    @property
    def keys(self) -> list[Key]:
        """Tables and directions, in an order that is the same on all ranks."""
        return sorted(self._ladders)

    @property
    def ladders(self) -> dict[Key, Ladder]:
        """Rungs as names and sizes, for the policy."""
        return {key: ladder.rungs for key, ladder in self._ladders.items()}

    def codecs(self, rungs: Mapping[Key, int]) -> dict[str, dict[Direction, Codec]]:
        """Return rungs as codecs, {table: {direction: codec}}."""
        by_table: dict[str, dict[Direction, Codec]] = {}
        for (table, direction), rung in rungs.items():
            codec = self._ladders[table, direction].codecs[rung]
            by_table.setdefault(table, {})[direction] = codec
        return by_table

    def use(self, rungs: Mapping[Key, int]) -> None:
        """Let tables have these rungs from the next step on. On all ranks alike."""
        if rungs:
            self._collectives.use_codecs(self.codecs(rungs))


def codecs_of_state(text: str, config: Config) -> dict[str, dict[Direction, Codec]]:
    """Return the codecs that tables have in a guard's state, {table: {direction: codec}}.

    Rungs that the config's ladders do not have are left out. Args: text: see Guard.state_text.
    Raises: ValueError: no such text.
    """
    guard = config.guard
    if not text or not isinstance(guard, GuardRule):
        return {}
    try:
        saved = json.loads(text)["codecs"]
        names = {table: dict(of_table) for table, of_table in saved.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"state: guard: no state of a guard: {error!r}") from error
    codecs: dict[str, dict[Direction, Codec]] = {}
    for table in filter(guard.matches, names):
        for direction, ladder in guard.ladders(config.rule_for(table)).items():
            by_name = {repr(codec): codec for codec in ladder.codecs}
            name = names[table].get(direction)
            if name in by_name:
                codecs.setdefault(table, {})[direction] = by_name[name]
    return codecs
