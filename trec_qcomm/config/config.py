"""Config: all settings of compressed communication for one model.

Knows: rules. Does not know: YAML, TorchRec, process groups.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

from trec_qcomm.config.gradients import GradientRule, TableGradientRule, check_dense_rules, rules_of
from trec_qcomm.config.matching import PatternRules
from trec_qcomm.config.section import At, Section, check_sections
from trec_qcomm.config.tables import EXACT_RULE, TableRule
from trec_qcomm.core.fields import Range, check_fields


@dataclass(frozen=True, kw_only=True)
class IdRule:
    """Settings of the exchange of ids, which arrive bit by bit as they were sent.

    Ids of all shardings are packed: table-, column-, row-, table-row-, table-column-wise and grid.
    They may be pooled or unpooled, weighted, with a variable batch per feature (VBE), or
    deduplicated by `use_index_dedup`. Ids that managed collisions send are packed, too. Sent as
    they are: weights, and ids that managed collisions return remapped. DATA_PARALLEL tables send no
    ids.

    Bags of one id that `unique_bags` merges are sorted first. An id then takes as many bits as the
    distance to the next one. On two ranks with Criteo's rows 84 KB of a step become 4.8 KB
    (table-wise), and 112 KB become 5.0 KB (row-wise). Measured by
    examples/criteo/studies/in_turn.py with `--batch-size 2048 --embedding-dim 64 --min-count 1
    --rows 131072`, for `fast` with `ids`.

    On CUDA the host waits for the sizes of messages where TorchRec waits for the numbers of ids. It
    waits three more times for what has come (TorchRec: never, or twice with VBE). The kernels for
    CUDA are written, but not yet run.

    Args: codec: `packed`: ids and lengths in few bits each (wire/FORMAT.md, "Messages of ids").
    """

    codec: Literal["packed"]

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of compressed communication for one model.

    At least one of embedding, dense, data_parallel, ids and sync is given.

    Args:
        embedding: rules of the exchanges of embedding rows and of their gradients, kept as a tuple.
            The first rule with a pattern that matches a table holds for it, and each table must
            match one. Without any rule all tables are sent as float32.
        dense: rule of the gradients of the replicated part, or rules for parameters by name, kept
            as a tuple. The first rule with a pattern that matches a parameter holds for it, and
            each parameter must match one. None leaves the gradients to DDP.
        data_parallel: rule of the gradients of DATA_PARALLEL tables; None leaves them to DDP.
        ids: rule of the exchange of ids; None leaves it to TorchRec.
        sync: rule of the averages over replicas of tables, in 2D parallelism; it needs
            `qcomm.sync(...)` in the training. None leaves them to TorchRec.
        seed: seed of stochastic rounding.
        debug: settings of the numeric debugger, which measures in some steps how the codecs change
            each table's rows and each dense gradient; None leaves it off.
        guard: settings of the guard, which watches the loss and moves tables to finer or coarser
            codecs; it needs `qcomm.guard(...)` in the training. None leaves it off.
        auto: settings of `auto`, which times candidates in the first steps and takes the fastest;
            None leaves it off.
        check_replicas_every: number of steps between comparisons of replicas; 0: never. Ranks
            compare weights and results of all-reduces, at 8 bytes a parameter, and raise an error
            where bits differ. They also compare after a load.
        measure_error: whether stats() has the largest error of every table; slow.
        source: name of the file or preset, for errors.
    """

    embedding: Sequence[TableRule] = ()
    dense: GradientRule | Sequence[GradientRule] | None = None
    data_parallel: TableGradientRule | None = None
    ids: IdRule | None = None
    sync: Annotated[Section, At("trec_qcomm.ext.replicas.rule:SyncRule")] | None = None
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    debug: Annotated[Section, At("trec_qcomm.lab.debug.rule:DebugRule")] | None = None
    guard: Annotated[Section, At("trec_qcomm.lab.guard.rule:GuardRule")] | None = None
    auto: Annotated[Section, At("trec_qcomm.ext.auto.rule:AutoRule")] | None = None
    check_replicas_every: Annotated[int, Range(0)] = 1000
    measure_error: bool = False
    source: str = field(default="config", metadata={"stored": False})

    def __post_init__(self) -> None:
        check_fields(self)
        if self.dense == ():
            raise ValueError("dense: expected a rule, or a list of one or more rules")
        if not any((self.embedding, self.dense, self.data_parallel, self.ids, self.sync)):
            raise ValueError("no rules; give one of embedding, dense, data_parallel, ids and sync")
        if self.dense is not None:
            check_dense_rules(self.dense_rules)
        check_sections(self)

    @property
    def dense_rules(self) -> tuple[GradientRule, ...]:
        """Rules of the gradients of the replicated part; none where DDP reduces them."""
        return rules_of(self.dense)

    def rule_for(self, table: str) -> TableRule:
        """Return the rule that holds for a table. Raises ValueError if no rule matches.

        In a config without any rule the codecs are `identity`.
        """
        if not self.embedding:
            return EXACT_RULE
        return self.embedding[self._tables.holder(table, self.source)]

    def check_patterns(self, tables: Iterable[str]) -> None:
        """Raise ValueError at a pattern that matches no table, or a rule that holds for none.

        Args: tables: names of all tables of the model.
        """
        self._tables.check_names(tables, self.source)

    @cached_property
    def _tables(self) -> PatternRules:
        patterns = [rule.tables for rule in self.embedding]
        return PatternRules("embedding", "tables", "table", patterns)
