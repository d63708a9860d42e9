"""GuardRule: how often a guard looks at the loss, what it accepts, and which codecs it may choose.

Knows: codecs, patterns, ladders. Does not know: YAML, TorchRec, process groups, the policy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf
from typing import Any

import torch

from trec_qcomm.config.matching import patterns_of
from trec_qcomm.config.section import Section
from trec_qcomm.config.tables import DIRECTIONS, Direction, TableRule
from trec_qcomm.core.codec import Codec, MaskUse
from trec_qcomm.core.segments import Segments
from trec_qcomm.jit.once import Job
from trec_qcomm.lab.guard.decisions.ladder import GuardLimits
from trec_qcomm.lab.guard.ladders import CodecLadder, check_order, ladder_of
from trec_qcomm.ops.error_bound.ranges import segment_ranges


@dataclass(frozen=True, kw_only=True)
class GuardRule(GuardLimits, Section):
    """Settings of the guard, which watches the loss and moves tables to other codecs.

    Args:
        every: number of steps from one probe to the next.
        tables: one shell pattern on names of tables, or a sequence of them; others keep the codecs
            of their rule. It is kept as a tuple.
        ladder: codecs of the rows, from the coarsest to the finest. A table whose own codec is on
            it starts there; another one starts below all that are finer. float32 is always the
            last rung. None derives each table's rungs from its own codec, which is then the
            coarsest.
        backward_ladder: codecs of the gradients, likewise. A table's gradients never get coarser
            than its rule says.
        hold: how many times as wide as before the last probe the error bound of a table's rows may
            get where it follows their range (`error_bounded` of mode `rel`). Beyond that it stays
            as it was, in the same step, and the table is moved at the next probe, as `on_drift`
            says. None holds none. CPU only.
    """

    every: int = 200
    tables: Sequence[str] = ("*",)
    ladder: Sequence[Codec] | None = None
    backward_ladder: Sequence[Codec] | None = None
    hold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.every) is not int or self.every < 1:
            raise ValueError(f"every: {self.every!r} is not an integer >= 1")
        hold = self.hold
        if hold is not None and (type(hold) not in (int, float) or not 1 <= hold < inf):
            raise ValueError(f"hold: {hold!r} is not a number >= 1")
        object.__setattr__(self, "tables", patterns_of(self.tables))
        for name in ("ladder", "backward_ladder"):
            self._check_ladder(name)

    def _check_ladder(self, name: str) -> None:
        ladder: object = getattr(self, name)
        if ladder is None:
            return
        if not isinstance(ladder, Sequence) or isinstance(ladder, str) or not ladder:
            raise ValueError(f"{name}: expected a list of one or more codecs, got {ladder!r}")
        object.__setattr__(self, name, tuple(ladder))
        for n, codec in enumerate(ladder):
            if not isinstance(codec, Codec):
                raise ValueError(f"{name}[{n}]: expected a codec, got {codec!r}")
            if codec.mask_use is MaskUse.READS:
                raise ValueError(f"{name}[{n}]: {codec.name} needs the columns that forward kept")
            if name == "ladder" and codec.only_for_gradients:
                raise ValueError(f"{name}[{n}]: {codec.name} is for gradients only")
        check_order(name, ladder)

    def matches(self, table: str) -> bool:
        """Return whether the guard may move a table of that name."""
        return any(fnmatchcase(table, pattern) for pattern in self.tables)

    def ladders(self, rule: TableRule) -> dict[Direction, CodecLadder]:
        """Return the rungs, forward and backward, of a table for which `rule` holds."""
        given = {"forward": self.ladder, "backward": self.backward_ladder}
        return {name: ladder_of(rule, name, given[name]) for name in DIRECTIONS}

    def check(self, owner: Any) -> None:
        if not owner.embedding:
            raise ValueError("guard: has nothing to watch without rules of embedding")

    def codecs_of_table(self, rule: TableRule) -> Iterator[tuple[str, Codec]]:
        for direction, ladder in self.ladders(rule).items():
            yield from ((direction, codec) for codec in ladder.codecs)

    def jobs(self) -> Iterator[Job]:
        if self.hold is not None:
            yield Job("ranges", _use_ranges, 0.8)

    def extension(self, session: Any) -> Any:
        from trec_qcomm.lab.guard.extension import GuardExtension  # which needs rules itself

        return GuardExtension(session, self)


def _use_ranges() -> None:
    segment_ranges(torch.zeros(1, 4), Segments.packed([1], 4))
