"""EmbeddingCollectives: the collectives that send embedding rows, of all modules of a session.

A resharded module makes its collectives anew. They go on where those of the same names were: step,
traffic and tolerances belong to names, not to objects.

Knows: config, comm.rows. Does not know: TorchRec, gradients of replicated parameters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trec_qcomm.codecs import EncoderLink, ErrorBounded, ErrorBoundedByLink, Identity
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import Layout
from trec_qcomm.comm.slots.history import SlotOptions
from trec_qcomm.config import Config, TableRule
from trec_qcomm.config.tables import chooses_encoder
from trec_qcomm.core.codec import Codec
from trec_qcomm.integration.checkpoint import (
    by_rank_key,
    by_short_key,
    check_names,
    self_rank_key,
)
from trec_qcomm.integration.debugging.debugger import Debugger
from trec_qcomm.integration.guarding.held_bounds import HeldBounds, can_hold
from trec_qcomm.integration.guarding.rules_in_force import (
    CodecChanges,
    RulesInForce,
    every_rung,
)
from trec_qcomm.integration.guarding.signals import SignalSums
from trec_qcomm.integration.tolerances import ForwardTolerances

C = TypeVar("C", bound=RowCollective)


class EmbeddingCollectives:
    """Collectives of embedding rows, by module and by name, with the state that outlives a step."""

    def __init__(self, config: Config, signals: SignalSums | None = None) -> None:
        """Begin without modules.

        Args: signals: onlooker of all tables but inside nodes, and keeper of refused rows.
        """
        self._config, self._signals = config, signals
        self.rules = RulesInForce(config)
        self._by_module: dict[str, dict[str, RowCollective]] = {}  # then by name
        self._tolerances: dict[str, ForwardTolerances] = {}  # by module/name
        self._loaded_steps: dict[str, int] = {}
        self._loaded_tolerances: dict[str, dict[str, Any]] = {}
        self._loaded_residuals: dict[str, dict[str, Any]] = {}  # by module/name, then direction
        self._debugger: Debugger | None = None

    def __iter__(self) -> Iterator[RowCollective]:
        """Yield every collective."""
        return (c for by_name in self._by_module.values() for c in by_name.values())

    def add_module(self, module: str) -> None:
        """Add a module without collectives. Raises ValueError: it is there already."""
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
        rows_of_tables: Mapping[str, int] | None = None,
    ) -> C:
        """Make a collective with the codecs of the config.

        Args:
            module: the module it belongs to, which was added before
            name: key of its noise; a second collective of that name takes over step and traffic
            intra: whether it is the hop inside a node, which the rules' `intra` codes
            rows_of_tables: {table: rows}, where residuals can be kept by id
        Raises: ValueError: no pattern matches a table, error_feedback where it cannot be, or a
            guard of rows that are not float32.
        """
        self._check_guarded(tables := layout.tables(), layout.dtype)
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
            slots=SlotOptions() if self._config.sizes == "slots" else None,
            tolerances=None if intra else self._tolerances_of(module, name, tables),
            alternatives=self._alternatives(tables, intra),
            refusals=self._refusals,
            residual_slots=self._residual_slots(tables, name, rows_of_tables),
        )
        for direction, state in self._loaded_residuals.pop(f"{module}/{name}", {}).items():
            if direction in collective.residuals:
                collective.residuals[direction].load_state_dict(state)
        collective.step = self._steps_of(module)
        if before is not None:
            collective.take_over(before)
        elif self._signals is not None and not intra:
            collective.observers += (self._signals,)
        if self._debugger is not None:
            self._debugger.add(collective, module)
        self._by_module[module][name] = collective
        return collective

    def _check_guarded(self, tables: Sequence[str], dtype: torch.dtype) -> None:
        """Raise ValueError where the guard would have to look at rows that are not float32."""
        guard = self._config.guard
        guarded = [] if guard is None else list(filter(guard.matches, tables))
        if guarded and dtype != torch.float32:
            raise ValueError(
                f"guard: table {guarded[0]!r}: its rows are {dtype}; allowed: torch.float32 "
                "(output_dtype fp32)"
            )

    def _residual_slots(
        self, tables: Sequence[str], name: str, rows_of_tables: Mapping[str, int] | None
    ) -> dict[str, dict[str, int]]:
        """Return for each direction with residuals {table: slots}, at most a table's rows."""
        fed = {t: f for t in tables if (f := self._config.rule_for(t).error_feedback) is not None}
        if not fed:
            return {}
        if rows_of_tables is None:
            raise ValueError(
                f"error_feedback of table {next(iter(fed))!r}: {name} does not keep residuals by "
                "id; only table_wise, column_wise and table_column_wise tables of an "
                "EmbeddingBagCollection do"
            )
        slots = {
            direction: {t: min(f.num_rows(direction), rows_of_tables[t]) for t, f in fed.items()}
            for direction in ("forward", "backward")
        }
        return {
            direction: of_tables
            for direction, of_tables in slots.items()
            if any(of_tables.values())
        }

    @property
    def _refusals(self) -> SignalSums | None:
        guard = self._config.guard
        sends_exactly = guard is not None and guard.on_unencodable == "exact"
        return self._signals if sends_exactly else None

    def _alternatives(self, tables: Sequence[str], intra: bool) -> Sequence[DirectionCodecs]:
        """Return codecs that the guard may choose later, rung by rung."""
        guard, made = self._config.guard, []
        if guard is not None:
            for changes in every_rung(guard, {t: self._config.rule_for(t) for t in tables}):
                rules = RulesInForce(self._config)
                rules.change(changes)
                made.append(_codecs_of(rules, tables, intra))
        return made

    def use_codecs(self, changes: CodecChanges) -> None:
        """Change codecs of some tables for good. All ranks must call it between the same steps.

        The next step is the first that they code. Modules that are resharded keep them.

        Args: changes: {table: {"forward": codec, "backward": codec}}, or one of the two.
        Raises: ValueError: a table that is not exchanged here, or codecs that it may not have;
            then nothing is changed.
        """
        unknown = sorted(set(changes) - set(self.tables()))
        if unknown:
            raise ValueError(f"no collective sends table {', '.join(unknown)}")
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
                    tolerances = None if intra else self._tolerances_of(module, name, of_collective)
                    collective.use_codecs(_codecs_of(self.rules, of_collective, intra), tolerances)

    def tables(self) -> list[str]:
        """Return the tables that are sent, sorted."""
        return sorted({table for c in self for table in c.layout.tables()})

    def lossy_tables(self) -> list[str]:
        """Return the tables whose rows do not arrive exactly, sorted."""
        return sorted({table for c in self for table in c.lossy_tables()})

    @contextmanager
    def exact_tables(
        self, tables: Iterable[str], *, evaluation: int | None = None
    ) -> Iterator[None]:
        """Send the rows of some tables exactly inside the block; see RowCollective.replacing."""
        exact = set(tables)
        with ExitStack() as stack:
            for collective in self:
                of_collective = exact.intersection(collective.layout.tables())
                forward = dict.fromkeys(of_collective, Identity())
                stack.enter_context(collective.replacing(forward, evaluation=evaluation))
            yield

    def set_debugger(self, debugger: Debugger | None) -> None:
        """Let a debugger observe all collectives, also those made later; None: no debugger does.

        Raises: ValueError: a shadow does not take rows of a table; none observes then.
        """
        before, self._debugger = self._debugger, debugger
        for module, by_name in self._by_module.items():
            for collective in by_name.values():
                if before is not None:
                    before.remove(collective)
                if debugger is not None:
                    debugger.add(collective, module)

    def _tolerances_of(
        self, module: str, name: str, tables: Sequence[str]
    ) -> ForwardTolerances | None:
        """Return the tolerances of one collective; None where they never change."""
        rules = {table: self.rules.rule_for(table) for table in tables}
        key = f"{module}/{name}"
        tolerances = ForwardTolerances(rules, tables, self._held_bounds(rules))
        before = self._tolerances.pop(key, None)
        if not tolerances.changes:
            return None
        state = self._loaded_tolerances.pop(key, {}) if before is None else before.state_dict()
        tolerances.load_state_dict(state)
        self._tolerances[key] = tolerances
        return tolerances

    def _held_bounds(self, rules: Mapping[str, TableRule]) -> HeldBounds | None:
        """Return what holds the bounds of guarded tables; None where the config holds none."""
        guard = self._config.guard
        if guard is None or guard.hold is None or self._signals is None:
            return None
        tables = [t for t, r in rules.items() if guard.matches(t) and can_hold(r.forward)]
        return HeldBounds(list(rules), guard.hold, self._signals.held) if tables else None

    def follow_ranges(self, moved: Sequence[str]) -> None:
        """Let held bounds follow the ranges of their rows, once a probe has seen them.

        Args: moved: tables that have got another forward codec.
        """
        for tolerances in self._tolerances.values():
            if tolerances.held is not None:
                tolerances.held.follow(moved)

    def _steps_of(self, module: str) -> int:
        """Return the number of a module's calls with gradients, which each collective counts."""
        counted = (c.step for c in self._by_module[module].values())
        return max(counted, default=self._loaded_steps.get(module, 0))

    def forward_tolerances(self, tables: Iterable[str]) -> dict[str, float]:
        """Return the forward codec's tolerance in the next step, of the tables that have one."""
        given = {table: self.rules.rule_for(table).forward.tolerance for table in sorted(tables)}
        current = {table: tolerance for table, tolerance in given.items() if tolerance is not None}
        for key, tolerances in self._tolerances.items():
            current |= tolerances.by_table(self._steps_of(key.partition("/")[0]))
        return current

    def state_dict(self) -> dict[str, Any]:
        """Return {"steps": {module: number}, "params": {rank: {collective: {table: ...}}}}.

        Steps are calls with gradients so far. They seed stochastic rounding and drive schedules,
        and do not depend on the plan, so that a run may be resumed under another. "params" is there
        where error bounds or thresholds are found while training. These are each rank's own, so
        under another plan or world size they are found anew. So are "row_residuals", which are
        there where a rule has error_feedback: {rank: {collective: {direction: {table: ...}}}}.

        The counts are int64 tensors: torch.distributed.checkpoint 2.13 does not load plain
        numbers that are nested beside sharded tensors ("Missing key").
        Raises: CorruptFrameError: a frame in a GPU's memory was wrong. That is found late, and no
            state is returned that was trained with it.
        """
        for collective in self:
            collective.checks.raise_found(wait=True)
        state: dict[str, Any] = {
            "steps": {m: torch.tensor(self._steps_of(m)) for m in self._by_module}
        }
        measured = {key: tolerances.state_dict() for key, tolerances in self._tolerances.items()}
        if any(measured.values()):
            state["params"] = {self_rank_key(): measured}
        residuals = {
            key: {direction: r.state_dict() for direction, r in collective.residuals.items()}
            for key, collective in self._by_key()
            if collective.residuals
        }
        if residuals:
            state["row_residuals"] = {self_rank_key(): residuals}
        return state

    def _by_key(self) -> Iterator[tuple[str, RowCollective]]:
        for module, by_name in self._by_module.items():
            for name, collective in by_name.items():
                yield f"{module}/{name}", collective

    @property
    def num_steps(self) -> int:
        """Number of steps of the module with most of them, also where it is loaded and not made."""
        return max([*self._loaded_steps.values(), *(c.step for c in self)], default=0)

    def load_state_dict(self, state: Mapping[str, Any], codecs: CodecChanges) -> None:
        """Continue from `state`.

        Before the model is sharded its modules are unknown; then `check_loaded_names` raises that
        they differ.

        Args: codecs: codecs that tables had in place of the config's.
        Raises: ValueError: it names a module that the model does not have.
        """
        check_names(state["steps"], "state: steps")
        steps = {str(name): int(step) for name, step in state["steps"].items()}
        if self._by_module:
            self._check_names(steps)
        params = by_rank_key(by_short_key(state.get("params", {})))
        self.rules.change(codecs)
        self._follow_rules(codecs)
        self._loaded_steps = steps
        self._loaded_tolerances = dict(params.get(self_rank_key(), {}))
        for key, tolerances in self._tolerances.items():
            tolerances.load_state_dict(self._loaded_tolerances.pop(key, {}))
        residuals = by_rank_key(by_short_key(state.get("row_residuals", {}))).get(
            self_rank_key(), {}
        )
        self._loaded_residuals = dict(residuals)
        for key, collective in self._by_key():
            loaded = self._loaded_residuals.pop(key, {})
            for direction, kept in collective.residuals.items():
                kept.load_state_dict(loaded.get(direction, {}))
        for module, by_name in self._by_module.items():
            for collective in by_name.values():
                collective.step = steps.get(module, 0)

    def check_loaded_names(self) -> None:
        """Raise ValueError where loaded state names a module that the model does not have."""
        self._check_names(self._loaded_steps)

    def _check_names(self, steps: Iterable[str]) -> None:
        unknown = sorted(set(steps) - set(self._by_module))
        if unknown:
            raise ValueError(
                f"state names {', '.join(unknown)}; this model has {', '.join(self._by_module)}"
            )


def _codecs_of(rules: RulesInForce, tables: Iterable[str], intra: bool) -> DirectionCodecs:
    by_table = {table: rules.rule_for(table) for table in tables}
    pairs = {table: rule.intra if intra else rule for table, rule in by_table.items()}
    links = {table: rule.link for table, rule in by_table.items()}
    return DirectionCodecs(
        forward={table: _on_link(pair.forward, links[table]) for table, pair in pairs.items()},
        backward={table: _on_link(pair.backward, links[table]) for table, pair in pairs.items()},
    )


def _on_link(codec: Codec, link: EncoderLink | None) -> Codec:
    """Return the codec, which chooses its encoder for the link where it chooses one."""
    if link is None or not chooses_encoder(codec):
        return codec
    assert isinstance(codec, ErrorBounded)
    return ErrorBoundedByLink.for_link(codec, link)
