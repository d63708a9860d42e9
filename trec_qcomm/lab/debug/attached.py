"""The debugger that is attached to the collectives of a session: at most one at a time.

Knows: sessions. Does not know: what a debugger measures.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.integration.extension import Extension
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce
from trec_qcomm.integration.session import Session
from trec_qcomm.lab.debug.debugger import Debugger
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.lab.records import Direction

NAME = "debug"  # of the extension


class AttachedDebugger(Extension):
    """The latest debugger of a session, and whether it is at work.

    Args: session: the session of a QComm.
    Derived: latest: the debugger, which may have stopped; None before the first.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.latest: Debugger | None = None
        self._is_at_work = False

    def start(self, rule: DebugRule, **options: Any) -> Debugger:
        """Measure from the next call on what codecs do.

        Args:
            rule: what to measure.
            options: setup and from_first_step of Debugger.
        Raises: ValueError: a debugger is at work, a pattern without a table or parameter, or a
            shadow that does not take rows of their length.
        """
        if self._is_at_work:
            raise ValueError("debug: a debugger is at work already")
        before, session = self.latest, self._session
        self.latest = Debugger(
            rule, configuration=session.config.source, seed=session.config.seed, **options
        )
        self._is_at_work = True
        try:
            for module, collective in session.collectives.by_module():
                self.add_collective(collective, module)
            for name, gradients in session.gradients.items():
                self.add_gradients(name, gradients)
            if session.is_whole:
                self.check_names()
        except ValueError:
            self.stop()
            self.latest = before
            raise
        return self.latest

    def add_collective(self, collective: RowCollective, module: str) -> None:
        if self._is_at_work and self.latest is not None:
            self.latest.add(collective, module)

    def add_gradients(self, name: str, gradients: GradientAllReduce) -> None:
        if self._is_at_work and self.latest is not None:
            direction: Direction = "dense" if name == "dense" else "data_parallel"
            self.latest.watch(gradients, direction)

    def check_names(self) -> None:
        if self.latest is None or not self._is_at_work:
            return
        session = self._session
        names = session.tables | {s.name for g in session.gradients.values() for s in g.shapes}
        for pattern in self.latest.rule.tables:
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"debug.tables: {pattern!r} matches no table and no dense parameter; there "
                    f"are: {', '.join(sorted(names))}"
                )

    def stop(self) -> None:
        """End what `start` began; `latest` keeps its records."""
        if self.latest is not None:
            for collective in self._session.collectives:
                self.latest.remove(collective)
            self.latest.close()
        for gradients in self._session.gradients.values():
            gradients.set_observer(None)
        self._is_at_work = False


def debugger_of(session: Session) -> AttachedDebugger:
    """Return the debugger of a session, which gets one here if it has none."""
    attached = session.extensions.setdefault(NAME, AttachedDebugger(session))
    assert isinstance(attached, AttachedDebugger)
    return attached
