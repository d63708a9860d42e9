"""DebugRule: what the numeric debugger measures, how often, and where its records go.

Knows: codecs, patterns. Does not know: YAML, TorchRec, process groups, figures.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

from trec_qcomm.config.gradients import parameter_patterns
from trec_qcomm.config.matching import Patterns
from trec_qcomm.config.section import Section
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.fields import Range, check_fields


def check_patterns(where: str, patterns: Iterable[str], names: Collection[str], what: str) -> None:
    """Raise ValueError unless each pattern matches a name. Args: what: words for a name."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            there = ", ".join(sorted(names))
            raise ValueError(f"{where}: {pattern!r} matches no {what}; there are: {there}")


@dataclass(frozen=True, kw_only=True)
class DebugRule(Section):
    """Settings of the numeric debugger. It changes no value of the training.

    In one step of `every` it looks at values before they are coded and after they have come. It
    sends nothing and draws no noise. Dense gradients are measured if the config has `dense`,
    gradients of DATA_PARALLEL tables if it has `data_parallel`. Ranks, and runs of one checkpoint,
    may differ in these settings. `with qcomm.debug(...)` measures a part of a training.

    Args:
        every: number of steps from one measured step to the next; steps 0, `every`, twice `every`
            and so on are measured.
        tables: one shell pattern on names of tables and of dense parameters, or a sequence of
            patterns, kept as a tuple; only these are measured. A pattern that matches none is an
            error.
        shadow: codecs that are tried on the same values besides the codec in use; their results are
            thrown away. Not `forward_mask`.
        folder: folder of the records, `debug-rank0.jsonl` and so on, to which records are appended.
            None keeps the latest records in memory, for `qcomm.debug_summary()`.
    """

    every: Annotated[int, Range(1)] = 100
    tables: Patterns = ("*",)
    shadow: Sequence[Codec] = ()
    folder: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for n, codec in enumerate(self.shadow):
            if codec.follows_forward:
                raise ValueError(f"shadow[{n}]: {codec.name} needs the mask of forward; omit it")
        if self.folder == "":
            raise ValueError("folder: '' is not a path")

    def matches(self, name: str) -> bool:
        """Return whether one of the patterns matches the name of a table or parameter."""
        return any(fnmatchcase(name, pattern) for pattern in self.tables)

    def codecs(self) -> Iterator[Codec]:
        yield from self.shadow

    def extension(self, session: Any) -> Any:
        from trec_qcomm.lab.debug.debugger import Debugger  # which needs rules itself

        debugger = Debugger(self, session.config)
        debugger.start(session)
        return debugger

    def debugger_of_ddp(self, config: Any) -> Any:
        from trec_qcomm.lab.debug.debugger import Debugger  # which needs rules itself

        debugger = Debugger(self, config)
        for number, rule in enumerate(config.dense_rules):
            place = parameter_patterns(config.dense).place(number)
            debugger.check_dim(rule.block, f"{place}.block")
        return debugger
