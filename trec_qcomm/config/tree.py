"""Config: all settings of compressed communication for one model.

Knows: rules. Does not know: YAML, TorchRec, process groups.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from trec_qcomm.config.debugging import DebugRule
from trec_qcomm.config.gradients import GradientRule, TableGradientRule
from trec_qcomm.config.guarding import GuardRule
from trec_qcomm.config.patterns import covers, is_glob
from trec_qcomm.config.tables import EXACT_RULE, TableRule
from trec_qcomm.core.codec import check_choice

Sizes = Literal["announced", "slots"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of compressed communication for one model.

    Args:
        embedding: rules of the embedding exchanges, kept as a tuple. For each table the first rule
            with a pattern that matches holds. A rule that earlier ones hide is an error. Without
            any rule all tables are sent as float32.
        dense: rule of the gradients of the replicated part; None leaves them to DDP.
        data_parallel: rule of the gradients of DATA_PARALLEL tables; None leaves them to DDP.
        seed: seed of stochastic rounding, 0..2^63 - 1.
        sizes: how both ends learn the sizes of frames, where these depend on the data: `announced`
            in a message before, or `slots`, which need none (comm.slots).
        debug: settings of the numeric debugger; None leaves it off.
        guard: settings of the guard over codecs while training; None leaves it off.
        measure_error: whether stats() has the largest error of every table; slow.
        source: name of the file or preset, for errors.
    """

    embedding: Sequence[TableRule] = ()
    dense: GradientRule | None = None
    data_parallel: TableGradientRule | None = None
    seed: int = 0
    sizes: Sizes = "announced"
    debug: DebugRule | None = None
    guard: GuardRule | None = None
    measure_error: bool = False
    source: str = "config"

    def __post_init__(self) -> None:
        rules: object = self.embedding
        if not isinstance(rules, Sequence) or not all(isinstance(r, TableRule) for r in rules):
            raise ValueError("embedding: expected a list of rules")
        object.__setattr__(self, "embedding", tuple(rules))
        _check_reached(self.embedding)
        for name, kind in (("dense", GradientRule), ("data_parallel", TableGradientRule)):
            rule = getattr(self, name)
            if rule is not None and type(rule) is not kind:
                raise ValueError(f"{name}: expected a {kind.__name__}, got {rule!r}")
        if not self.embedding and self.dense is None and self.data_parallel is None:
            raise ValueError("embedding: missing, and neither dense nor data_parallel given")
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: {self.seed!r} is not an integer in 0..2^63 - 1")
        if self.debug is not None and type(self.debug) is not DebugRule:
            raise ValueError(f"debug: expected a DebugRule, got {self.debug!r}")
        if self.guard is not None and type(self.guard) is not GuardRule:
            raise ValueError(f"guard: expected a GuardRule, got {self.guard!r}")
        if self.guard is not None and not self.embedding:
            raise ValueError("guard: has nothing to watch without rules of embedding")
        check_choice("sizes", self.sizes, get_args(Sizes))
        if type(self.measure_error) is not bool:
            raise ValueError(f"measure_error: {self.measure_error!r} is not true or false")

    def rule_for(self, table: str) -> TableRule:
        """Return the rule that holds for a table. Raises ValueError where none matches.

        Where there are no rules at all, the codecs are `identity`.
        """
        if not self.embedding:
            return EXACT_RULE
        for rule in self.embedding:
            if rule.matches(table):
                return rule
        known = ", ".join(pattern for rule in self.embedding for pattern in rule.tables)
        raise ValueError(
            f"{self.source}: embedding: no pattern matches table {table!r}; patterns: {known}"
        )

    def check_patterns(self, tables: Iterable[str]) -> None:
        """Raise ValueError at a pattern without a table, or a rule whose tables others take.

        Args: tables: names of all tables of the model.
        """
        names = sorted(tables)
        for number, rule in enumerate(self.embedding):
            for pattern in rule.tables:
                if not any(fnmatchcase(name, pattern) for name in names):
                    raise ValueError(
                        f"{self.source}: embedding[{number}].tables: {pattern!r} matches no "
                        f"table; the model has: {', '.join(names) or 'no tables'}"
                    )
        holders = {name: self._number_for(name) for name in names}
        for number, rule in enumerate(self.embedding):
            if number not in holders.values():
                taken = [name for name in names if rule.matches(name)]
                by = " and ".join(f"embedding[{n}]" for n in sorted({holders[t] for t in taken}))
                raise ValueError(
                    f"{self.source}: embedding[{number}].tables: {by} before it takes all its "
                    f"tables: {', '.join(taken)}"
                )

    def _number_for(self, table: str) -> int:
        return next((n for n, rule in enumerate(self.embedding) if rule.matches(table)), -1)


def _check_reached(rules: Sequence[TableRule]) -> None:
    """Raise ValueError at a rule whose patterns match only what earlier ones match.

    That is as much as can be said before the names of tables are known (`check_patterns`).
    """
    number_of: dict[str, int] = {}  # of each pattern, the first rule that has it
    globs: list[str] = []
    for number, rule in enumerate(rules):
        by = {pattern: _covering(pattern, number_of, globs) for pattern in rule.tables}
        if None not in by.values():
            reasons = (f"{p!r} by embedding[{number_of[str(c)]}] {c!r}" for p, c in by.items())
            raise ValueError(
                f"embedding[{number}].tables: hidden by rules before it: {', '.join(reasons)}; "
                "the first rule that matches a table holds"
            )
        for pattern in rule.tables:
            number_of.setdefault(pattern, number)
        globs += filter(is_glob, rule.tables)


def _covering(pattern: str, earlier: Container[str], globs: Sequence[str]) -> str | None:
    if pattern in earlier:
        return pattern
    return next((glob for glob in globs if covers(glob, pattern)), None)
