"""Session: what all parts of one user's QComm share: config, collectives, counters and state.

Knows: config, collectives of rows, all-reduces of gradients. Does not know: TorchRec, which is the
business of embedding/ (sharders, shardings, dists) and of ddp.py.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm.config import Config, DebugRule
from trec_qcomm.config.differences import flat_config
from trec_qcomm.core.counters import BagCounts, Traffic, kind_stats
from trec_qcomm.core.stats import TRAFFIC_KINDS, KindStats, Stats
from trec_qcomm.integration.agreement import check_equal
from trec_qcomm.integration.checkpoint import (
    by_rank_key,
    by_short_key,
    check_names,
    self_rank_key,
    with_config,
    without_config,
)
from trec_qcomm.integration.collectives import EmbeddingCollectives
from trec_qcomm.integration.debugging.attached import AttachedDebugger
from trec_qcomm.integration.debugging.attribution import LossFunction
from trec_qcomm.integration.debugging.debugger import Debugger
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce
from trec_qcomm.integration.gradients.dense import DenseGradients
from trec_qcomm.integration.gradients.tables import TableGradients
from trec_qcomm.integration.guarding.guard import Guard
from trec_qcomm.integration.guarding.rungs import codecs_of_state
from trec_qcomm.integration.guarding.signals import SignalSums
from trec_qcomm.integration.ids.merge_pause import MergePause
from trec_qcomm.integration.missed_calls import MissedCalls
from trec_qcomm.integration.replicas.sync import ReplicaSync
from trec_qcomm.integration.replicas.tables import warn_of_ddp
from trec_qcomm.integration.row_capture import RowCapture
from trec_qcomm.integration.warm_up import warm_up

_log = logging.getLogger(__name__)


class Session:
    """Shared state of one QComm.

    `exact` is what `QComm.bypass` sets: while it is True, collectives send float32. `is_wrapped`
    tells whether a wrapper of this QComm has wrapped the model, `is_training` whether the latest
    batch of ids came with gradients on.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.exact = False
        self.is_wrapped = False
        self.is_training = False
        self.tables: set[str] = set()
        self.table_rows: dict[str, int] = {}  # of sharded tables of bags
        self.counters = {
            kind: Traffic(kind, ["all"])
            for kind in ("dense", "intra_dense", "data_parallel", "input")
        }
        self.bags = BagCounts()
        self.signals = None if config.guard is None else SignalSums(config.guard)
        self.guard: Guard | None = None
        self._loaded_guard, self._loaded_signals = "", None
        self._missed = MissedCalls(config)
        self.collectives = EmbeddingCollectives(config, self.signals)
        self._gradients: dict[str, GradientAllReduce] = {}  # "dense", and "tables" of each lookup
        self._loaded_gradients: dict[str, Any] = {}
        self.sync: ReplicaSync | None = None
        self._loaded_sync: dict[str, Any] = {}
        self._pauses: dict[str, MergePause] = {}  # by module and sharding
        self._loaded_pauses: dict[str, Any] = {}
        self._patterns_checked = False
        self._warmed_up: set[torch.dtype] = set()
        self.debugger = AttachedDebugger(config, self.collectives, self.tables, self._gradients)
        if config.debug is not None:
            self.start_debugger(config.debug)

    def warm_up_once(self, rows_dtype: torch.dtype = torch.float32) -> None:
        """Compile the CPU kernels that the config uses, the first time. No collective.

        Args: rows_dtype: dtype of the lookups' rows.
        """
        if rows_dtype not in self._warmed_up:
            warm_up(self.config, rows_dtype=rows_dtype)
            self._warmed_up |= {torch.float32, rows_dtype}

    def add_module(self, pg: dist.ProcessGroup, module: str, names: Iterable[str]) -> None:
        """Add a module and its tables. Collective, so call it in the same order on all ranks.

        Raises: ValueError: ranks whose configs differ, a table that no pattern matches, or a
            module of that name that is there already.
        """
        names = sorted(names)
        ours = flat_config(self.config) | {f"table {name!r}": "sharded" for name in names}
        what = f"{self.config.source}: ranks of the group have different configs or tables"
        check_equal(pg, ours, what)
        for name in names:  # after the gather, so that all ranks say the same
            self.config.rule_for(name)
        self.collectives.add_module(module)
        self.tables.update(names)
        self._patterns_checked = False

    def merge_pause(self, name: str, pg: dist.ProcessGroup) -> MergePause:
        """Return the pause of a sharding's search for equal bags; the same for the same name."""
        if name not in self._pauses:
            self._pauses[name] = pause = MergePause(pg, lambda: self.is_training)
            if name in self._loaded_pauses:
                pause.load_state_dict(self._loaded_pauses[name])
        return self._pauses[name]

    def check_patterns(self) -> None:
        """Raise ValueError at a pattern without a table, or at loaded state without its module.

        Call it once the whole model is sharded. In a model without sharded tables, `*` alone may
        match none.
        """
        if not self._patterns_checked:
            patterns = {pattern for rule in self.config.embedding for pattern in rule.tables}
            if self.tables or patterns != {"*"}:
                self.config.check_patterns(self.tables)
            self.collectives.check_loaded_names()
            self._patterns_checked = True

    def check_wrapped(self) -> None:
        """Raise ValueError in a training step without the wrapper that the config needs."""
        if self.is_wrapped or not torch.is_grad_enabled():
            return
        config = self.config
        needed = [key for key in ("dense", "data_parallel") if getattr(config, key) is not None]
        if needed:
            raise ValueError(
                f"{config.source}: {', '.join(needed)}: no wrapper of this QComm is in the model; "
                "pass data_parallel_wrapper=qcomm.data_parallel_wrapper() to "
                "DistributedModelParallel (qcomm.dmp_arguments() has both), or leave out "
                f"{' and '.join(needed)}"
            )

    def add_dense(self, ddp: DistributedDataParallel) -> bool:
        """Take over the all-reduce of the replicated part, where the config says so. Collective."""
        rule, traffic = self.config.dense, self.counters["dense"]
        if rule is not None:
            options = self._options(traffic) | {"source": self.config.source}
            options["intra_traffic"] = self.counters["intra_dense"]
            self._register("dense", DenseGradients(rule, **options), ddp)
        return rule is not None

    def add_lookup(self, ddp: DistributedDataParallel) -> bool:
        """Take over the all-reduce of a lookup of DATA_PARALLEL tables, where the config says so.

        Collective.
        """
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
            "sizes": config.sizes,
            "is_exact": lambda: self.exact,
        }

    def _register(
        self, name: str, gradients: GradientAllReduce, ddp: DistributedDataParallel
    ) -> None:
        gradients.load_state_dict(self._loaded_gradients.get(name, {}))
        gradients.register(ddp)
        self._gradients[name] = gradients
        self.debugger.watch(name, gradients)

    def start_debugger(self, rule: DebugRule, **options: Any) -> Debugger:
        """Measure from the next call on what codecs do; see AttachedDebugger.start."""
        return self.debugger.start(rule, check_names=self._patterns_checked, **options)

    def start_guard(
        self, loss_fn: LossFunction, probe_batches: Sequence[Any], **options: Any
    ) -> Guard:
        """Make the guard; the arguments are those of QComm.guard. Collective."""
        guard = Guard(self, loss_fn, probe_batches, **options)
        if self._loaded_guard:
            guard.load(self._loaded_guard)
        self.guard = guard
        return guard

    def note_guarded_step(self) -> None:
        """Remember that the guard has counted all steps so far."""
        self._missed.note_guarded(max((c.step for c in self.collectives), default=0))

    def check_step(self, step: int) -> None:
        """Raise ValueError in training that goes on without the guard or sync of the config.

        Args: step: number of the collective's step that begins.
        """
        if torch.is_grad_enabled():
            num_syncs = None if self.sync is None else self.sync.num_calls
            self._missed.check(step, has_guard=self.guard is not None, num_syncs=num_syncs)

    def start_sync(self, model: nn.Module, pg: dist.ProcessGroup | None) -> ReplicaSync:
        """Begin to average the replicas of a model's tables; see QComm.sync. Collective."""
        if self.sync is not None:
            raise ValueError("sync: this QComm has one already; one QComm serves one model")
        if pg is None:
            mesh = getattr(model, "device_mesh", None)
            if mesh is None:
                raise ValueError("sync: replica_group: missing; only a DMPCollection has its own")
            pg = mesh.get_group("replicate")
        else:
            warn_of_ddp(model, pg)
        if any(parameter.device.type == "cpu" for parameter in model.parameters()):
            self.warm_up_once()
        self.sync = ReplicaSync(model, pg, self.config, is_exact=lambda: self.exact)
        if self._loaded_sync:
            self._load_sync()
        return self.sync

    def _load_sync(self) -> None:
        if self.sync is not None:
            of_ranks = by_rank_key(by_short_key(self._loaded_sync))
            if of_ranks and self_rank_key() not in of_ranks:
                _log.warning(
                    "sync: the state that was loaded is of another number of ranks, so the next "
                    "average is of whole tables"
                )
            self.sync.load_state_dict(of_ranks.get(self_rank_key(), {}))

    def stats(self) -> Stats:
        """Return what this rank sent since construction or `reset_stats`."""
        traffics: dict[str, list[Traffic]] = {kind: [] for kind in TRAFFIC_KINDS}
        for collective in self.collectives:
            for traffic in (collective.forward_traffic, collective.backward_traffic):
                traffics[traffic.kind].append(traffic)
        for kind, traffic in self.counters.items():
            traffics[kind].append(traffic)
        return Stats(
            **{kind: kind_stats(group) for kind, group in traffics.items()},
            bags=self.bags.stats(),
            sync=KindStats() if self.sync is None else self.sync.stats(),
            num_steps=max((c.backward_traffic.num_calls for c in self.collectives), default=0),
        )

    def forward_params(self) -> dict[str, float]:
        """Return the tolerance of each table's forward codec in the next step."""
        return self.collectives.forward_tolerances(self.tables)

    def capture_rows(self, steps: int, *, gradients: bool, max_nbytes: int) -> RowCapture:
        """Begin to keep the rows that are sent; see QComm.capture_rows."""
        return RowCapture(
            self.collectives,
            self.tables,
            steps=steps,
            gradients=gradients,
            max_nbytes=max_nbytes,
            source=self.config.source,
            bags=self.bags,
            num_rows=self.table_rows,
        )

    def reset_stats(self) -> None:
        """Set all counters to zero."""
        for collective in self.collectives:
            collective.forward_traffic.reset()
            collective.backward_traffic.reset()
        for traffic in self.counters.values():
            traffic.reset()
        self.bags.reset()
        if self.sync is not None:
            self.sync.reset_stats()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the embedding collectives and, in "gradients", of each all-reduce.

        "config" is the config as text, "guard" the guard's state as text, equal on all ranks, and
        "guard_signals" what each rank has counted for the next probe, [K, F] float64.

        Raises: CorruptFrameError: a frame in a GPU's memory was wrong. That is found late, and no
            state is returned that was trained with it.
        """
        state = self.collectives.state_dict()
        if self.signals is not None:
            state["guard"] = self._loaded_guard if self.guard is None else self.guard.state_text()
            sums = self.signals.tensor(self.signals.keys(self.tables))
            state["guard_signals"] = {self_rank_key(): sums}
        if self._gradients:
            state["gradients"] = {name: g.state_dict() for name, g in self._gradients.items()}
        if self._pauses:
            pauses = {name: pause.state_dict() for name, pause in self._pauses.items()}
            state["merge_pauses"] = pauses  # equal on all ranks
        if self.sync is not None:
            state["sync"] = {self_rank_key(): self.sync.state_dict()}
        return with_config(state, self.config)

    def load_state_dict(self, state: dict[str, Any], *, allow_changed_config: bool = False) -> None:
        """Continue from `state`.

        Args: allow_changed_config: whether it may be of another config.
        Raises: ValueError: it is no such state, of another config, or names a module that the model
            does not have; before the model is sharded, the first forward raises the last.
        """
        state = without_config(state, self.config, allow_changed_config=allow_changed_config)
        mappings = ("params", "gradients", "guard_signals", "row_residuals", "merge_pauses", "sync")
        check_names(state, "state", ("steps", *mappings, "guard"), needed="steps")
        for name in mappings:
            check_names(state.get(name, {}), f"state: {name}")
        guard = state.get("guard", "") if self.signals is not None else ""
        self.collectives.load_state_dict(state, codecs_of_state(guard, self.config))
        self._load_guard(guard, state.get("guard_signals", {}))
        self._loaded_pauses = dict(state.get("merge_pauses", {}))
        for name in self._pauses.keys() & self._loaded_pauses.keys():
            self._pauses[name].load_state_dict(self._loaded_pauses[name])
        self._loaded_sync = dict(state.get("sync", {}))
        self._load_sync()
        self._loaded_gradients = dict(state.get("gradients", {}))
        for name, gradients in self._gradients.items():
            gradients.load_state_dict(self._loaded_gradients.get(name, {}))

    def _load_guard(self, text: str, sums: Mapping[str, Any]) -> None:
        self._missed.begin_at(self.collectives.num_steps)
        self._loaded_guard = text
        if self.guard is not None and text:
            self.guard.load(text)
        ours = by_rank_key(by_short_key(sums)).get(self_rank_key())
        if self.signals is not None and ours is not None:
            self.signals.load(self.signals.keys(self.tables), ours)
