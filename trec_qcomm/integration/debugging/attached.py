"""The debugger that is attached to the collectives of a session: at most one at a time.

Knows: collectives of rows, all-reduces of gradients and their names. Does not know: what a debugger
measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from fnmatch import fnmatchcase
from typing import Any

from trec_qcomm.config import Config, DebugRule
from trec_qcomm.integration.collectives import EmbeddingCollectives
from trec_qcomm.integration.debugging.debugger import Debugger
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce
from trec_qcomm.records import Direction


class AttachedDebugger:
    """The latest debugger of a session, and whether it is at work.

    Args:
        config: the session's config.
        collectives: the session's collectives of rows.
        tables: names of the sharded tables; may grow later.
        gradients: all-reduces by name, "dense" and others; may grow later, see `watch`.
    Derived:
        latest: the debugger, which may have stopped; None before the first.
    """

    def __init__(
        self,
        config: Config,
        collectives: EmbeddingCollectives,
        tables: Set[str],
        gradients: Mapping[str, GradientAllReduce],
    ) -> None:
        self._config = config
        self._collectives = collectives
        self._tables = tables
        self._gradients = gradients
        self.latest: Debugger | None = None
        self._is_at_work = False

    def start(self, rule: DebugRule, *, check_names: bool, **options: Any) -> Debugger:
        """Measure from the next call on what codecs do; see config.debugging.

        Args:
            check_names: whether all tables and all-reduces are there, and patterns must match.
            options: setup and from_first_step of Debugger.
        Raises: ValueError: a debugger is at work, a pattern without a table or parameter, or a
            shadow that does not take rows of their length.
        """
        if self._is_at_work:
            raise ValueError("debug: a debugger is at work already")
        before = self.latest
        self.latest = Debugger(
            rule, configuration=self._config.source, seed=self._config.seed, **options
        )
        self._is_at_work = True
        try:
            self._collectives.set_debugger(self.latest)
            for name, gradients in self._gradients.items():
                self.watch(name, gradients)
            if check_names:
                self.check_names()
        except ValueError:
            self.stop()
            self.latest = before
            raise
        return self.latest

    def watch(self, name: str, gradients: GradientAllReduce) -> None:
        """Measure an all-reduce, too, while a debugger is at work. Raises ValueError: see start."""
        if self._is_at_work and self.latest is not None:
            direction: Direction = "dense" if name == "dense" else "data_parallel"
            self.latest.watch(gradients, direction)

    def check_names(self) -> None:
        """Raise ValueError at a pattern of the rule without a table or dense parameter.

        Call it once the wrapper has taken over the dense gradients, whose names come with them.
        """
        if self.latest is None or not self._is_at_work:
            return
        names = self._tables | {s.name for g in self._gradients.values() for s in g.shapes}
        for pattern in self.latest.rule.tables:
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"debug.tables: {pattern!r} matches no table and no dense parameter; there "
                    f"are: {', '.join(sorted(names))}"
                )

    def stop(self) -> None:
        """End what `start` began; `latest` keeps its records."""
        self._collectives.set_debugger(None)
        for gradients in self._gradients.values():
            gradients.set_observer(None)
        if self.latest is not None:
            self.latest.close()
        self._is_at_work = False
