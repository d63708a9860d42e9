"""Config: all settings of compressed communication for one model.

Knows: rules. Does not know: YAML, TorchRec, process groups.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from trec_qcomm.config.gradients import GradientRule, TableGradientRule
from trec_qcomm.config.tables import TableRule


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of compressed communication for one model.

    Args:
        embedding: rules of the embedding exchanges, kept as a tuple. For each table the first rule
            with a pattern that matches holds.
        dense: rule of the gradients of the replicated part; None leaves them to DDP.
        data_parallel: rule of the gradients of DATA_PARALLEL tables; None leaves them to DDP.
        seed: seed of stochastic rounding, 0..2^63 - 1.
        measure_error: whether stats() has the largest error of every table; slow.
        source: name of the file or preset, for errors.
    """

    embedding: Sequence[TableRule] = ()
    dense: GradientRule | None = None
    data_parallel: TableGradientRule | None = None
    seed: int = 0
    measure_error: bool = False
    source: str = "config"

    def __post_init__(self) -> None:
        rules: object = self.embedding
        if not isinstance(rules, Sequence) or not all(isinstance(r, TableRule) for r in rules):
            raise ValueError("embedding: expected a list of rules")
        object.__setattr__(self, "embedding", tuple(rules))
        for name, kind in (("dense", GradientRule), ("data_parallel", TableGradientRule)):
            rule = getattr(self, name)
            if rule is not None and type(rule) is not kind:
                raise ValueError(f"{name}: expected a {kind.__name__}, got {rule!r}")
        if not self.embedding and self.dense is None and self.data_parallel is None:
            raise ValueError("embedding: missing, and neither dense nor data_parallel given")
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: {self.seed!r} is not an integer in 0..2^63 - 1")
        if type(self.measure_error) is not bool:
            raise ValueError(f"measure_error: {self.measure_error!r} is not true or false")

    def rule_for(self, table: str) -> TableRule:
        """Return the rule that holds for a table. Raises ValueError where none matches."""
        for rule in self.embedding:
            if rule.matches(table):
                return rule
        known = ", ".join(pattern for rule in self.embedding for pattern in rule.tables)
        raise ValueError(
            f"{self.source}: embedding: no pattern matches table {table!r}; patterns: {known}"
        )

    def check_patterns(self, tables: Iterable[str]) -> None:
        """Raise ValueError at the first pattern that matches none of the model's tables."""
        names = sorted(tables)
        for number, rule in enumerate(self.embedding):
            for pattern in rule.tables:
                if not any(fnmatchcase(name, pattern) for name in names):
                    raise ValueError(
                        f"{self.source}: embedding[{number}].tables: {pattern!r} matches no "
                        f"table; the model has: {', '.join(names) or 'no tables'}"
                    )
