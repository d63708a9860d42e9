"""Session: what all parts of one user's QComm share. Configuration, collectives, counters, state.

Knows: config, comm. Does not know: TorchRec (sharder.py and the dists do).
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm.codecs import Identity
from trec_qcomm.comm.rows.collective import DirectionCodecs, RowCollective
from trec_qcomm.comm.rows.layout import Layout
from trec_qcomm.config import Config, TableRule, config_to_dict
from trec_qcomm.core.counters import BagCounts, Traffic, summary
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce
from trec_qcomm.integration.gradients.dense import DenseGradients
from trec_qcomm.integration.gradients.tables import TableGradients
from trec_qcomm.integration.tolerances import ForwardTolerances

C = TypeVar("C", bound=RowCollective)
ROW_KINDS = (
    "embedding_forward",
    "embedding_backward",
    "intra_embedding_forward",
    "intra_embedding_backward",
)


class Session:
    """One per QComm. `exact` is what `bypass` sets: collectives send float32 while it is True."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.exact = False
        self.tables: set[str] = set()
        self.counters = {
            "dense": Traffic("dense", ["all"]),
            "data_parallel": Traffic("data_parallel", ["all"]),
            "input": Traffic("input", ["all"]),
        }
        self.bags = BagCounts()
        self._collectives: dict[str, dict[str, RowCollective]] = {}  # by module, then by name
        self._tolerances: dict[str, ForwardTolerances] = {}  # by module/name
        self._gradients: dict[str, GradientAllReduce] = {}  # "dense", and "tables" of each lookup
        self._loaded_gradients: dict[str, Any] = {}
        self._loaded_steps: dict[str, int] = {}
        self._loaded_tolerances: dict[str, dict[str, Any]] = {}
        self._patterns_checked = False

    def add_module(self, pg: dist.ProcessGroup, module: str, names: Iterable[str]) -> None:
        """Note a module and its tables. Collective, so call it in the same order on all ranks.

        Raises: ValueError: ranks whose configs differ, a table that no pattern matches, or a
            module of that name that is there already.
        """
        names = sorted(names)
        ours = repr((config_to_dict(self.config), names))
        theirs: list[str] = [""] * pg.size()
        dist.all_gather_object(theirs, ours, group=pg)
        for rank, other in enumerate(theirs):
            if other != ours:
                raise ValueError(
                    f"{self.config.source}: rank {pg.rank()} and rank {rank} of the group have "
                    f"different configs or tables:\n{ours}\n{other}"
                )
        for name in names:  # after the gather, so that all ranks say the same
            self.config.rule_for(name)
        if module in self._collectives:
            raise ValueError(
                f"{module!r} is sharded already; one QComm serves one model, "
                "and modules sharded by hand need a module_fqn each"
            )
        self._collectives[module] = {}
        self.tables.update(names)
        self._patterns_checked = False

    def check_patterns(self) -> None:
        """Raise ValueError at a pattern that matches no table, or at state that was loaded for a
        module that does not exist. Call it once the whole model is sharded."""
        if not self._patterns_checked:
            self.config.check_patterns(self.tables)
            self._check_names(self._loaded_steps)
            self._patterns_checked = True

    def collective(
        self,
        kind: type[C],
        pg: dist.ProcessGroup,
        layout: Layout,
        *,
        module: str,
        name: str,
        intra: bool = False,
    ) -> C:
        """Make the collective that goes by that name, with the codecs of the config.

        Args: module: it is of; `add_module` came before.  name: keys its noise. A second one of
            that name (the module was resharded) takes over step and traffic.  intra: it is the
            hop inside a node.
        Raises: ValueError: no pattern matches a table.
        """
        before = self._collectives[module].get(name)
        rules = {table: self.config.rule_for(table) for table in layout.tables()}
        pairs = {table: rule.intra if intra else rule for table, rule in rules.items()}
        exact = dict.fromkeys(rules, Identity())
        collective = kind(
            pg,
            layout,
            codecs=DirectionCodecs(
                forward={table: pair.forward for table, pair in pairs.items()},
                backward={table: pair.backward for table, pair in pairs.items()},
            ),
            exact=DirectionCodecs(exact, exact),
            name=name,
            intra=intra,
            seed=self.config.seed,
            measure_error=self.config.measure_error,
            tolerances=None if intra else self._tolerances_of(module, name, rules),
        )
        collective.step = self._steps_of(module)
        if before is not None:
            collective.take_over(before)
        self._collectives[module][name] = collective
        return collective

    def _tolerances_of(
        self, module: str, name: str, rules: Mapping[str, TableRule]
    ) -> ForwardTolerances | None:
        """One for each collective, which a second one of that name goes on with."""
        key, tolerances = f"{module}/{name}", ForwardTolerances(rules, sorted(rules))
        if not tolerances.changes:
            return None
        before = self._tolerances.get(key)
        state = self._loaded_tolerances.get(key, {}) if before is None else before.state_dict()
        tolerances.load_state_dict(state)
        self._tolerances[key] = tolerances
        return tolerances

    def add_dense(self, ddp: DistributedDataParallel) -> bool:
        """Take over the all-reduce of the replicated part, where the config says so. Collective."""
        rule, traffic = self.config.dense, self.counters["dense"]
        if rule is not None:
            self._register("dense", DenseGradients(rule, **self._options(traffic)), ddp)
        return rule is not None

    def add_lookup(self, ddp: DistributedDataParallel) -> bool:
        """Likewise of a lookup of DATA_PARALLEL tables. Collective."""
        rule, traffic = self.config.data_parallel, self.counters["data_parallel"]
        if rule is not None:
            gradients = TableGradients(rule, **self._options(traffic))
            self._register(f"tables{len(self._gradients)}", gradients, ddp)
        return rule is not None

    def _options(self, traffic: Traffic) -> dict[str, Any]:
        config = self.config
        return {
            "traffic": traffic,
            "seed": config.seed,
            "measure_error": config.measure_error,
            "is_exact": lambda: self.exact,
        }

    def _register(
        self, name: str, gradients: GradientAllReduce, ddp: DistributedDataParallel
    ) -> None:
        gradients.load_state_dict(self._loaded_gradients.get(name, {}))
        gradients.register(ddp)
        self._gradients[name] = gradients

    def _all(self) -> list[RowCollective]:
        return [c for by_name in self._collectives.values() for c in by_name.values()]

    def _steps_of(self, module: str) -> int:
        """Calls with gradients so far: each collective of a module counts them."""
        counted = (c.step for c in self._collectives[module].values())
        return max(counted, default=self._loaded_steps.get(module, 0))

    def stats(self) -> dict[str, Any]:
        """Plain dict by kind of traffic; see core.stats.summary."""
        kinds: dict[str, list[Traffic]] = {kind: [] for kind in ROW_KINDS}
        for collective in self._all():
            for traffic in (collective.forward_traffic, collective.backward_traffic):
                kinds[traffic.kind].append(traffic)
        kinds |= {kind: [traffic] for kind, traffic in self.counters.items()}
        found = {kind: summary(traffics) for kind, traffics in kinds.items()}
        found["input"]["bags"] = self.bags.summary()
        return found

    def forward_params(self) -> dict[str, float]:
        """By table, see QComm.forward_params."""
        given = {
            table: self.config.rule_for(table).forward.tolerance for table in sorted(self.tables)
        }
        found = {table: tolerance for table, tolerance in given.items() if tolerance is not None}
        for key, tolerances in self._tolerances.items():
            found |= tolerances.by_table(self._steps_of(key.partition("/")[0]))
        return found

    def reset_stats(self) -> None:
        """All counters back to zero."""
        for collective in self._all():
            collective.forward_traffic.reset()
            collective.backward_traffic.reset()
        for traffic in self.counters.values():
            traffic.reset()
        self.bags.reset()

    def state_dict(self) -> dict[str, Any]:
        """{"steps": {module: calls with gradients so far}}: what seeds stochastic rounding and
        drives schedules. It does not depend on the plan, so a run may be resumed under another.
        And {"params": {rank: {collective: {table: ...}}}} where error bounds or thresholds are
        found while training: each rank's own, so under another plan or world size they are found
        anew. And {"gradients": {"dense": ...}}: see integration.gradients.all_reduce.

        The counts are int64 tensors: torch.distributed.checkpoint 2.13 does not load plain
        numbers that are nested beside sharded tensors ("Missing key").
        Raises: CorruptFrameError: what frames in a GPU's memory held was wrong; it is noticed
            late there, and no state is given out that was trained with it.
        """
        for collective in self._all():
            collective.checks.raise_found(wait=True)
        state: dict[str, Any] = {
            "steps": {m: torch.tensor(self._steps_of(m)) for m in self._collectives}
        }
        if self._gradients:
            state["gradients"] = {name: g.state_dict() for name, g in self._gradients.items()}
        found = {key: tolerances.state_dict() for key, tolerances in self._tolerances.items()}
        if any(found.values()):
            state["params"] = {self._rank_key(): found}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. Raises ValueError: a module that this model does not have
        (before the model is sharded, the first forward raises it)."""
        steps = {str(name): int(step) for name, step in state["steps"].items()}
        if self._collectives:
            self._check_names(steps)
        self._loaded_steps = steps
        self._loaded_gradients = dict(state.get("gradients", {}))
        for name, gradients in self._gradients.items():
            gradients.load_state_dict(self._loaded_gradients.get(name, {}))
        self._loaded_tolerances = dict(state.get("params", {}).get(self._rank_key(), {}))
        for key, tolerances in self._tolerances.items():
            tolerances.load_state_dict(self._loaded_tolerances.get(key, {}))
        for module, by_name in self._collectives.items():
            for collective in by_name.values():
                collective.step = steps.get(module, 0)

    def _rank_key(self) -> str:
        """Names of state that is this rank's own: DCP stores equal names of all ranks once."""
        return f"rank{dist.get_rank()}of{dist.get_world_size()}"

    def _check_names(self, steps: dict[str, int]) -> None:
        unknown = sorted(set(steps) - set(self._collectives))
        if unknown:
            raise ValueError(
                f"state names {', '.join(unknown)}; this model has {', '.join(self._collectives)}"
            )
