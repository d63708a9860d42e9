"""GuardRule: how often a guard looks at the loss, what it accepts, and the codecs it may choose.

Knows: codecs, patterns, ladders. Does not know: YAML, TorchRec, process groups, the policy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from trec_qcomm.config.matching import Patterns
from trec_qcomm.config.section import Section
from trec_qcomm.config.tables import DIRECTIONS, Direction, TableRule
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.fields import Range, check_fields
from trec_qcomm.lab.guard.ladders import Ladder, check_order, ladder_of

Action = Literal["switch", "warn"]
Answer = Literal["error", "warn", "raise"]
_Count = Annotated[int, Range(1)]


@dataclass(frozen=True, kw_only=True)
class GuardRule(Section):
    """Settings of the guard, which watches the loss and moves tables to other codecs.

    A probe compares the loss on fixed batches with codecs on and off. A table gets a finer codec
    when codecs are shown to cost more than `limit_ne`. It gets a coarser codec when all was calm
    for long. A table's values may trigger three answers: `error`; `warn`, which changes nothing;
    and `raise`, a finer codec.

    An exact codec is finer than all others. Codecs of fixed size and `error_bounded` of mode `rel`
    compare by the bits of a value. For a bound these are log2(1 + 1 / (2 bound)), because `rowwise`
    of so many bits has the same largest error. Bounds of mode `abs` compare only with one another,
    and so do thresholds.

    Args:
        every: number of steps from one probe to the next.
        limit_ne: the most that codecs may add to the loss, in percent of the loss without them.
        action: `switch` moves tables to other codecs. `warn` only tells, once an episode, also
            where an answer below is `raise`.
        tables: one shell pattern on names of tables, or a sequence of patterns, kept as a tuple.
            Other tables keep the codecs of their rule. A pattern that matches none is an error.
        ladder: codecs of the rows, from the coarsest to the finest; another order is an error. A
            table whose own codec is on the ladder starts there. Another table starts below all
            codecs that are finer than its own. float32 is always the last rung. None derives each
            table's rungs: its own codec, then a quarter and a sixteenth of its error bound, or
            `rowwise` of 2, 4 and 8 bits and bf16, as far as they are finer.
        backward_ladder: codecs of the gradients, in the same order. A table's gradients never get
            coarser than its rule says.
        raise_after: number of probes in a row that must be above the limit before a table is moved
            to a finer codec. The mean must also be shown to be above the limit.
        lower_after: number of calm probes in a row after which one table is moved to a coarser
            codec, and after which an episode has ended.
        patience: number of probes for which a rung that a table had to leave is not tried again;
            twice as many after the second time, and so on.
        on_unencodable: answer for a table whose codec makes finite values NaN or infinite; `raise`
            gives it the next rung. A codec that raises UnencodableError ends the step, as without a
            guard.
        on_pointless: answer for a table whose coded bytes are more than float32's; `raise` gives it
            float32.
        on_nan: answer for a table whose values are NaN or infinite before they are coded; `raise`
            gives it float32.
        on_drift: answer for a table that drifts for `raise_after` probes; `raise` gives it as many
            rungs as it needs. A table drifts if its signal to noise falls by 10 dB within a few
            probes, or if another tenth of its values is lost beside values that grew fourfold.
    """

    every: _Count = 200
    limit_ne: Annotated[float, Range(0, is_open=True)] = 0.02
    action: Action = "switch"
    tables: Patterns = ("*",)
    ladder: Sequence[Codec] | None = None
    backward_ladder: Sequence[Codec] | None = None
    raise_after: _Count = 2
    lower_after: _Count = 10
    patience: _Count = 20
    on_unencodable: Answer = "raise"
    on_pointless: Answer = "raise"
    on_nan: Answer = "warn"
    on_drift: Answer = "raise"

    def __post_init__(self) -> None:
        check_fields(self)
        for name, ladder in (("ladder", self.ladder), ("backward_ladder", self.backward_ladder)):
            if ladder is not None:
                _check_ladder(name, ladder)

    def matches(self, table: str) -> bool:
        """Return whether the guard may move a table of that name."""
        return any(fnmatchcase(table, pattern) for pattern in self.tables)

    def ladders(self, rule: TableRule) -> dict[Direction, Ladder]:
        """Return the rungs, forward and backward, of a table for which `rule` holds."""
        given = {"forward": self.ladder, "backward": self.backward_ladder}
        return {name: ladder_of(rule, name, given[name]) for name in DIRECTIONS}

    def check(self, owner: Any) -> None:
        if not owner.embedding:
            raise ValueError("guard: has nothing to watch without rules of embedding; add one")

    def codecs_of_table(self, rule: TableRule) -> Iterator[tuple[str, Codec]]:
        for direction, ladder in self.ladders(rule).items():
            yield from ((direction, codec) for codec in ladder.codecs)

    def extension(self, session: Any) -> Any:
        from trec_qcomm.lab.guard.extension import GuardExtension  # which needs rules itself

        return GuardExtension(session, self)


def _check_ladder(name: str, ladder: Sequence[Codec]) -> None:
    if not ladder:
        raise ValueError(f"{name}: expected a list of one or more codecs, got {ladder!r}")
    for n, codec in enumerate(ladder):
        if codec.follows_forward:
            raise ValueError(f"{name}[{n}]: {codec.name} needs the mask of forward; omit it")
        if name == "ladder" and codec.only_for_gradients:
            raise ValueError(f"{name}[{n}]: {codec.name} is for gradients only; leave it out")
    check_order(name, ladder)
