"""EmbeddingCollectives: the collectives that send embedding rows, of all modules of a session.

A resharded module makes its collectives anew. A new collective goes on where the old one of the
same name was: step, traffic and tolerances belong to names, not to objects.

Knows: config, comm.rows. Does not know: TorchRec, gradients of replicated parameters.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trec_qcomm.codecs import Identity
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import Layout
from trec_qcomm.config import Config
from trec_qcomm.integration.checkpoint import check_names
from trec_qcomm.integration.current_rules import CodecChanges, CurrentRules
from trec_qcomm.integration.extension import Extension
from trec_qcomm.integration.states import NamedStates, Stateful
from trec_qcomm.integration.tolerances import ForwardTolerances

C = TypeVar("C", bound=RowCollective)
TransformOf = Callable[[Any], Any]  # of a collective: a RowTransform that is Stateful


class EmbeddingCollectives:
    """Collectives of embedding rows, by module and by name, with the state that outlives a step."""

    def __init__(self, config: Config, extensions: Mapping[str, Extension]) -> None:
        """Begin without modules. Args: extensions: the session's list, which may grow later."""
        self._config, self._extensions = config, extensions
        self.rules = CurrentRules(config)
        self._by_module: dict[str, dict[str, RowCollective]] = {}  # then by name
        self._loaded_steps: dict[str, int] = {}
        # Objects by module/name, each rank's own: under another plan they begin anew.
        self._tolerances = NamedStates[ForwardTolerances]("params", of_rank=True)
        self._transforms = NamedStates[Stateful]("row_residuals", of_rank=True)

    def __iter__(self) -> Iterator[RowCollective]:
        """Yield every collective."""
        return (c for by_name in self._by_module.values() for c in by_name.values())

    def by_module(self) -> Iterator[tuple[str, RowCollective]]:
        """Yield (path of its module, collective) for every collective."""
        for module, by_name in self._by_module.items():
            for collective in by_name.values():
                yield module, collective

    def add_module(self, module: str) -> None:
        """Add a module without collectives. Raises ValueError if the module is there already."""
        if module in self._by_module:
            raise ValueError(
                f"{module!r} is sharded already; one QComm serves one model, "
                "and modules sharded by hand need a module_fqn each"
            )
        self._by_module[module] = {}

    def make(
        self,
        kind: type[C],
        pg: dist.ProcessGroup,
        layout: Layout,
        *,
        module: str,
        name: str,
        intra: bool = False,
        transform_of: TransformOf | None = None,
    ) -> C:
        """Make a collective with the codecs of the config.

        Args:
            module: path of its module, which was added before
            name: key of its noise; a second collective of that name takes over step and traffic
            intra: whether it is the hop inside a node, which has the codecs of the rules' `intra`
            transform_of: function that makes the transform of the collective's rows, if this kind
                of collective can have one
        Raises: ValueError: a table that no pattern matches, error_feedback where it is impossible,
            or rows that an extension does not take.
        """
        tables = layout.tables()
        for extension in self._extensions.values():
            extension.check_tables(tables, layout.dtype)
        self._check_transforms(tables, name, transform_of)
        before = self._by_module[module].get(name)
        exact = dict.fromkeys(tables, Identity())
        collective = kind(
            pg,
            layout,
            codecs=_codecs_of(self.rules, tables, intra),
            exact=DirectionCodecs(exact, exact),
            name=name,
            intra=intra,
            seed=self._config.seed,
            measure_error=self._config.measure_error,
        )
        for codecs in self._alternatives(tables, intra):
            collective.prepare_codecs(codecs)
        if not intra:
            collective.tolerances = self._tolerances_of(module, name, tables)
        if transform_of is not None:
            collective.transform = transform_of(collective)
        collective.step = self._steps_of(module)
        if before is not None:
            collective.take_over(before)
        if transform_of is not None:
            transform: Any = collective.transform  # that of `before` where rows lie as before
            self._transforms[f"{module}/{name}"] = transform
        for extension in self._extensions.values():
            extension.add_collective(collective, module)
        self._by_module[module][name] = collective
        return collective

    def _check_transforms(self, tables: Sequence[str], name: str, make: TransformOf | None) -> None:
        """Raise ValueError where a rule has error_feedback and the collective cannot."""
        fed = [t for t in tables if self._config.rule_for(t).error_feedback is not None]
        if fed and make is None:
            raise ValueError(
                f"error_feedback of table {fed[0]!r}: {name} does not keep residuals by "
                "id; only table_wise, column_wise and table_column_wise tables of an "
                "EmbeddingBagCollection do"
            )

    def _alternatives(self, tables: Sequence[str], intra: bool) -> Sequence[DirectionCodecs]:
        """Return codecs that extensions may choose later."""
        rules, made = {t: self._config.rule_for(t) for t in tables}, []
        for extension in self._extensions.values():
            for changes in extension.changes_of(rules):
                changed = CurrentRules(self._config)
                changed.change(changes)
                made.append(_codecs_of(changed, tables, intra))
        return made

    def use_codecs(self, changes: CodecChanges) -> None:
        """Change codecs of some tables for good. All ranks must call it between the same steps.

        The new codecs are used from the next step on. Modules that are resharded keep them.

        Args: changes: {table: {"forward": codec, "backward": codec}}, or one of the two.
        Raises: ValueError: a table that is not exchanged here, or codecs that a table may not have.
            Then nothing is changed.
        """
        unknown = sorted(set(changes) - set(self.tables()))
        if unknown:
            raise ValueError(f"no collective sends {', '.join(unknown)}; tables: {self.tables()}")
        before = self.rules.changes
        self.rules.change(changes)
        try:
            self._follow_rules(changes)
        except ValueError:
            self.rules.changes = before
            self._follow_rules(changes)
            raise

    def _follow_rules(self, changed: Iterable[str]) -> None:
        """Let all collectives of some tables code them by the rules that are in force."""
        tables = set(changed)
        for module, by_name in self._by_module.items():
            for name, collective in by_name.items():
                of_collective = collective.layout.tables()
                if not tables.isdisjoint(of_collective):
                    intra = collective.intra
                    collective.use_codecs(_codecs_of(self.rules, of_collective, intra))
                    tolerances = None if intra else self._tolerances_of(module, name, of_collective)
                    if isinstance(collective.tolerances, ForwardTolerances | None):
                        collective.tolerances = tolerances  # else they are an extension's

    def load_codecs(self, changes: CodecChanges) -> None:
        """Use the codecs that tables had when state was saved. The model may be sharded later.

        Args: changes: {table: {direction: codec}} in place of the config's.
        """
        self.rules.change(changes)
        self._follow_rules(changes)

    def tables(self) -> list[str]:
        """Return the names of the tables whose rows are sent, sorted."""
        return sorted({table for c in self for table in c.layout.tables()})

    @contextmanager
    def exact_tables(
        self, tables: Iterable[str], *, evaluation: int | None = None
    ) -> Iterator[None]:
        """Send the rows of some tables exactly inside the block, by RowCollective.replacing."""
        exact = set(tables)
        with ExitStack() as stack:
            for collective in self:
                of_collective = exact.intersection(collective.layout.tables())
                forward = dict.fromkeys(of_collective, Identity())
                stack.enter_context(collective.replacing(forward, evaluation=evaluation))
            yield

    def _tolerances_of(
        self, module: str, name: str, tables: Sequence[str]
    ) -> ForwardTolerances | None:
        """Return the tolerances of one collective; None where they never change."""
        rules = {table: self.rules.rule_for(table) for table in tables}
        key = f"{module}/{name}"
        tolerances = ForwardTolerances(rules, tables)
        before = self._tolerances.objects.pop(key, None)
        if not tolerances.changes:
            return None
        if before is not None:
            tolerances.load_state_dict(before.state_dict())
        self._tolerances[key] = tolerances
        return tolerances

    def _steps_of(self, module: str) -> int:
        """Return the number of a module's calls with gradients, which each collective counts."""
        counted = (c.step for c in self._by_module[module].values())
        return max(counted, default=self._loaded_steps.get(module, 0))

    def forward_tolerances(self, tables: Iterable[str]) -> dict[str, float]:
        """Return each table's forward tolerance in the next step, where its codec has one."""
        given = {table: self.rules.rule_for(table).forward.tolerance for table in sorted(tables)}
        current = {table: tolerance for table, tolerance in given.items() if tolerance is not None}
        for key, tolerances in self._tolerances.objects.items():
            current |= tolerances.by_table(self._steps_of(key.partition("/")[0]))
        return current

    def state_dict(self) -> dict[str, Any]:
        """Return {"steps": {module: number}, "params": {rank: {collective: {table: ...}}}}.

        Steps are calls with gradients so far. They seed stochastic rounding and drive schedules.
        They do not depend on the plan, so a run may be resumed under another plan.

        "params" is there if error bounds or thresholds are found while training. "row_residuals" is
        there if a rule has error_feedback: {rank: {collective: {direction: {table: ...}}}}. Both
        are each rank's own, so they begin anew under another plan or world size.

        The counts are int64 tensors: torch.distributed.checkpoint 2.13 does not load plain
        numbers that are nested beside sharded tensors ("Missing key").
        Raises: CorruptFrameError: a frame in a GPU's memory was wrong. This is found late, and no
            state is returned that was trained with such a frame.
        """
        for collective in self:
            collective.checks.raise_found(wait=True)
        steps = {module: torch.tensor(self._steps_of(module)) for module in self._by_module}
        return {"steps": steps} | self._tolerances.state_dict() | self._transforms.state_dict()

    @property
    def num_steps(self) -> int:
        """Number of steps of the module that has most, among modules that were made or loaded."""
        return max([*self._loaded_steps.values(), *(c.step for c in self)], default=0)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Before the model is sharded its modules are unknown. Then `check_loaded_names` later raises
        the error.

        Raises: ValueError: `state` names a module that the model does not have.
        """
        check_names(state["steps"], "state: steps")
        steps = {str(name): int(step) for name, step in state["steps"].items()}
        if self._by_module:
            self._check_names(steps)
        self._loaded_steps = steps
        self._tolerances.load_state_dict(state)
        self._transforms.load_state_dict(state)
        for module, by_name in self._by_module.items():
            for collective in by_name.values():
                collective.step = steps.get(module, 0)

    def check_loaded_names(self) -> None:
        """Raise ValueError if loaded state names a module that the model does not have."""
        self._check_names(self._loaded_steps)

    def _check_names(self, steps: Iterable[str]) -> None:
        unknown = sorted(set(steps) - set(self._by_module))
        if unknown:
            raise ValueError(
                f"state names {', '.join(unknown)}; this model has {', '.join(self._by_module)}"
            )


def _codecs_of(rules: CurrentRules, tables: Iterable[str], intra: bool) -> DirectionCodecs:
    by_table = {table: rules.rule_for(table) for table in tables}
    pairs = {table: rule.intra if intra else rule for table, rule in by_table.items()}
    return DirectionCodecs(
        forward={table: pair.forward for table, pair in pairs.items()},
        backward={table: pair.backward for table, pair in pairs.items()},
    )
