"""Session: what all parts of one user's QComm share: config, collectives, counters and state.

Knows: config, collectives of rows, all-reduces of gradients. Does not know: TorchRec, which only
embedding/ (sharders, shardings, dists) and ddp.py know.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm.config import Config
from trec_qcomm.config.differences import flat_config
from trec_qcomm.config.section import sections_of
from trec_qcomm.core.codec import check_choice
from trec_qcomm.core.counters import BagCounts, Traffic, kind_stats
from trec_qcomm.core.stats import TRAFFIC_KINDS, Stats
from trec_qcomm.integration.agreement import check_equal
from trec_qcomm.integration.checkpoint import check_names, with_config, without_config
from trec_qcomm.integration.collectives import EmbeddingCollectives
from trec_qcomm.integration.current_rules import CodecChanges
from trec_qcomm.integration.extension import Extension
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce, scale_of
from trec_qcomm.integration.gradients.dense import DenseGradients, Rules
from trec_qcomm.integration.gradients.tables import TableGradients
from trec_qcomm.integration.ids.merge_pause import MergePause
from trec_qcomm.integration.states import NamedStates, Stateful
from trec_qcomm.integration.warm_up import warm_up

_log = logging.getLogger(__name__)


class Session:
    """Shared state of one QComm.

    Attributes:
        exact: whether collectives send float32; `QComm.bypass` sets it.
        packs_ids: whether ids are sent packed.
        merges_bags: whether equal bags are sent once, and empty rows of row-wise tables left out.
        is_wrapped: whether a wrapper of this QComm has wrapped the model.
        is_training: whether the latest batch of ids came with gradients on.
        pg: the ranks of the modules; None before a module is sharded.
        scaler: QComm.scaler.
        state: objects whose state checkpoints keep for extensions, by name.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.exact = self.is_wrapped = self.is_training = False
        self.pg: dist.ProcessGroup | None = None
        self.scaler: Any = None
        self.packs_ids, self.merges_bags = config.ids is not None, True
        self.tables: set[str] = set()
        self.table_rows: dict[str, int] = {}  # of sharded tables of bags
        self.counters = {
            kind: Traffic(kind, ["all"])
            for kind in ("dense", "intra_dense", "data_parallel", "input")
        }
        self.bags = BagCounts()
        self.extensions: dict[str, Extension] = {}
        self.collectives = EmbeddingCollectives(config, self.extensions)
        self.state = NamedStates[Stateful]("state")
        self._gradients = NamedStates[GradientAllReduce]("gradients")  # "dense", "tables0", ...
        self._pauses = NamedStates[MergePause]("merge_pauses")  # by module and sharding
        self._patterns_checked = False
        self._warmed_up: set[tuple[torch.dtype, bool]] = set()
        for name, part in sections_of(config).items():
            extension = part.extension(self)
            if extension is not None:
                self.extend(name, extension)

    @property
    def gradients(self) -> Mapping[str, GradientAllReduce]:
        """All-reduces by name, "dense" and others."""
        return self._gradients.objects

    @property
    def is_whole(self) -> bool:
        """Whether the names of all tables are known."""
        return self._patterns_checked

    def extend(self, name: str, extension: Extension) -> None:
        """Add an extension, which learns of all collectives and all-reduces, now and later.

        Raises: ValueError: there is an extension of that name already.
        """
        if self.extensions.get(name, extension) is not extension:
            raise ValueError(f"extension {name!r}: there is one of that name already; rename it")
        self.extensions[name] = extension
        for module, collective in self.collectives.by_module():
            extension.add_collective(collective, module)
        for of_ddp, gradients in self.gradients.items():
            extension.add_gradients(of_ddp, gradients)

    def use_codecs(
        self,
        tables: CodecChanges,
        *,
        dense: Rules | Literal["exact"] | None,
        ids: str | None,
        bags: str | None,
    ) -> None:
        """Change codecs from the next step on, as QComm.use_codecs says."""
        check_choice("ids", ids, (None, "packed", "exact"))
        check_choice("bags", bags, (None, "distinct", "all"))
        self.collectives.use_codecs(tables)
        if dense is not None:
            gradients = self.gradients.get("dense")
            if not isinstance(gradients, DenseGradients):
                raise ValueError(f"{self.config.source}: dense: missing, or nothing is sharded yet")
            gradients.use_rules(None if dense == "exact" else dense)
        if ids is not None:
            self.packs_ids = ids == "packed"
        if bags is not None:
            self.merges_bags = bags == "distinct"

    def warm_up_once(
        self, rows_dtype: torch.dtype = torch.float32, *, data_parallel: bool = False
    ) -> None:
        """Compile the CPU kernels that the config uses, the first time. No collective.

        Args: rows_dtype: dtype of the lookups' rows.  data_parallel: whether there are such tables.
        """
        key = rows_dtype, data_parallel
        if key not in self._warmed_up:
            warm_up(self.config, rows_dtype=rows_dtype, data_parallel=data_parallel)
            self._warmed_up.add(key)

    def add_module(self, pg: dist.ProcessGroup, module: str, names: Iterable[str]) -> None:
        """Add a module and its tables. Collective, so call it in the same order on all ranks.

        Raises: ValueError: ranks whose configs differ, a table that no pattern matches, or a second
            module of that name.
        """
        names = sorted(names)
        ours = flat_config(self.config) | {f"table {name!r}": "sharded" for name in names}
        what = f"{self.config.source}: ranks of the group have different configs or tables"
        check_equal(pg, ours, what)
        for name in names:  # after the gather, so that all ranks say the same
            self.config.rule_for(name)
        self.collectives.add_module(module)
        self.pg = pg
        self.tables.update(names)
        self._patterns_checked = False

    def merge_pause(self, name: str, pg: dist.ProcessGroup) -> MergePause:
        """Return the pause of a sharding's search for equal bags; equal names share a pause."""
        if name not in self._pauses.objects:
            self._pauses[name] = MergePause(pg, lambda: self.is_training)
        return self._pauses.objects[name]

    def check_patterns(self) -> None:
        """Raise ValueError at a pattern without a table, or at loaded state without its module.

        Call this once the whole model is sharded. Without sharded tables, only the pattern `*` may
        match no table.
        """
        if not self._patterns_checked:
            patterns = {pattern for rule in self.config.embedding for pattern in rule.tables}
            if self.tables or patterns != {"*"}:
                self.config.check_patterns(self.tables)
            self.collectives.check_loaded_names()
            if self.state.loaded:
                raise ValueError(
                    f"state: {', '.join(self.state.loaded)}: nothing of that name keeps state; "
                    "set qcomm.state[name] before training"
                )
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
            self._register(f"tables{len(self.gradients)}", gradients, ddp)
        return rule is not None

    def _options(self, traffic: Traffic) -> dict[str, Any]:
        config = self.config
        return {
            "traffic": traffic,
            "seed": config.seed,
            "measure_error": config.measure_error,
            "is_exact": lambda: self.exact,
            "check_replicas_every": config.check_replicas_every,
            "loss_scale": lambda: scale_of(self.scaler),
        }

    def _register(
        self, name: str, gradients: GradientAllReduce, ddp: DistributedDataParallel
    ) -> None:
        self._gradients[name] = gradients
        gradients.register(ddp)
        for extension in self.extensions.values():
            extension.add_gradients(name, gradients)

    def check_names(self) -> None:
        """Raise ValueError at a name in an extension's settings that the model does not have."""
        for extension in self.extensions.values():
            extension.check_names()

    def check_step(self, step: int) -> None:
        """Raise ValueError in a training that lacks a call that an extension needs.

        Args: step: number of the collective's step that begins.
        """
        if torch.is_grad_enabled():
            for extension in self.extensions.values():
                extension.check_step(step)

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
            sync=kind_stats([e.traffic for e in self.extensions.values() if e.traffic is not None]),
            num_steps=max((c.backward_traffic.num_calls for c in self.collectives), default=0),
        )

    def forward_params(self) -> dict[str, float]:
        """Return the tolerance of each table's forward codec in the next step."""
        return self.collectives.forward_tolerances(self.tables)

    def reset_stats(self) -> None:
        """Set all counters to zero."""
        for collective in self.collectives:
            collective.forward_traffic.reset()
            collective.backward_traffic.reset()
        for traffic in self.counters.values():
            traffic.reset()
        self.bags.reset()
        for extension in self.extensions.values():
            if extension.traffic is not None:
                extension.traffic.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the embedding collectives and of the other parts of the session.

        "gradients" is the state of the all-reduces, "merge_pauses" that of searches for equal bags,
        "state" that of extensions by name. "config" is the config as text.

        Raises: CorruptFrameError: a frame in a GPU's memory was wrong. This is found late, and no
            state is returned that was trained with such a frame.
        """
        state = self.collectives.state_dict()
        for states in (self._gradients, self._pauses, self.state):
            state |= states.state_dict()
        return with_config(state, self.config)

    def load_state_dict(self, state: dict[str, Any], *, allow_changed_config: bool = False) -> None:
        """Continue from `state`.

        Args: allow_changed_config: whether the state may be of another config.
        Raises: ValueError: no such state, the state of another config, or a module that the model
            does not have. If the model is not sharded yet, the first forward raises the last error.
        """
        state = without_config(state, self.config, allow_changed_config=allow_changed_config)
        names = ("steps", "params", "gradients", "row_residuals", "merge_pauses", "state")
        check_names(state, "state", names, needed="steps")
        self.state.load_state_dict(state)  # before the collectives: it may change codecs
        self.collectives.load_state_dict(state)
        self._gradients.load_state_dict(state)
        self._pauses.load_state_dict(state)
