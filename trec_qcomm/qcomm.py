"""QComm, the object that a user of TorchRec holds: sharders, wrapper, statistics and state."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import torch

from trec_qcomm.config import (
    Config,
    config_from_dict,
    config_to_dict,
    load_config,
    load_preset,
    write_yaml,
)
from trec_qcomm.config.section import sections_of
from trec_qcomm.config.tables import EXACT_RULE
from trec_qcomm.core.stats import Stats
from trec_qcomm.integration.checkpoint import Resumable
from trec_qcomm.integration.compat import (
    DefaultDataParallelWrapper,
    ModuleSharder,
)
from trec_qcomm.integration.current_rules import CodecChanges
from trec_qcomm.integration.ddp import CountedDataParallelWrapper
from trec_qcomm.integration.embedding.sharders import all_sharders
from trec_qcomm.integration.extension import Extension
from trec_qcomm.integration.gradients.dense import Rules
from trec_qcomm.integration.session import Session
from trec_qcomm.integration.states import NamedStates, Stateful
from trec_qcomm.integration.warm_up import warm_up

TOOLS = {
    "attribute": "trec_qcomm.lab.debug.inspection",
    "capture_rows": "trec_qcomm.lab.debug.inspection",
    "debug": "trec_qcomm.lab.debug.inspection",
    "debug_summary": "trec_qcomm.lab.debug.inspection",
    "estimator": "trec_qcomm.lab.sizes.prices",
    "guard": "trec_qcomm.lab.guard.extension",
    "preview": "trec_qcomm.lab.preview.live",
    "sync": "trec_qcomm.ext.replicas.extension",
}
"""Methods of QComm that extensions and tools bring, and the modules that have them as functions."""


class QComm(Resumable):
    """Compressed communication for one model of TorchRec.

        qcomm = QComm.from_preset("best")  # or from_yaml(path), from_dict(mapping), QComm(config)
        model = DistributedModelParallel(
            module=dlrm, device=device, plan=plan,
            **qcomm.dmp_arguments(),
        )

    Make one on each rank, from the same config, and use it for one model. Train as before;
    `stats()` tells what was sent, `with qcomm.bypass():` evaluates with exact communication. It is
    a Stateful of torch.distributed.checkpoint: save {"model": ..., "trec_qcomm": qcomm}.
    """

    def __init__(self, config: Config) -> None:
        """Make a QComm for one model, on this rank.

        Args: config: settings of the codecs.
        Raises: ValueError: it is no Config.
        """
        if not isinstance(config, Config):
            raise ValueError(
                f"QComm: expected a Config, got {config!r}; "
                "see QComm.from_preset, QComm.from_yaml and QComm.from_dict"
            )
        self.config = config
        self._session = Session(config)

    @property
    def session(self) -> Session:
        """What all parts of this object share, for extensions and tools."""
        return self._session

    @property
    def scaler(self) -> Any:
        """Scaler of the loss (torch.amp.GradScaler); None, the default: there is none.

            qcomm.scaler = scaler

        What codecs of dense gradients keep back then follows its scale. Error bounds of mode `abs`
        and thresholds of dense gradients are in units of the scaled gradients.
        """
        return self._session.scaler

    @scaler.setter
    def scaler(self, scaler: Any) -> None:
        self._session.scaler = scaler

    @property
    def state(self) -> NamedStates[Stateful]:
        """What checkpoints keep besides QComm's own state, by name.

            qcomm.state["mine"] = stateful      # with state_dict() and load_state_dict(state)

        The state of an object under a name may have been loaded before. With a changed config it
        begins anew: load_state_dict({}). A state is a mapping with at least one tensor, as
        torch.distributed.checkpoint does not always load plain numbers alone.
        """
        return self._session.state

    def extend(self, name: str, extension: Extension) -> None:
        """Add an extension, which may stand at the doors of all collectives (docs/EXTENDING.md).

        Raises: ValueError: there is one of that name already.
        """
        self._session.extend(name, extension)

    def use_codecs(
        self,
        tables: CodecChanges | None = None,
        *,
        dense: Rules | Literal["exact"] | None = None,
        ids: Literal["packed", "exact"] | None = None,
        bags: Literal["distinct", "all"] | None = None,
    ) -> None:
        """Change codecs from the next step on. Call it on all ranks alike.

            qcomm.use_codecs({"t_cat_0": {"forward": Rowwise(4), "backward": Cast("bf16")}})
            qcomm.use_codecs(dense=GradientRule(codec=Float6()), ids="exact")

        Modules that are resharded keep them. A step that has begun ends with the codecs that it
        began with.

        Args:
            tables: {table: {"forward": codec, "backward": codec}}, or one of the two.
            dense: rules in place of the config's `dense`; `exact`: DDP's own all-reduce.
            ids: whether ids are sent `packed`, or as TorchRec does.
            bags: `distinct`: equal bags are sent once where the config merges them, and empty rows
                of row-wise tables not at all; `all`: a row for each bag. None, here and above: no
                change.
        Raises: ValueError: a table that is not exchanged here, or codecs that it may not have;
            rules that do not fit, or a config without `dense`. Then the argument changes nothing.
        """
        self._session.use_codecs(tables or {}, dense=dense, ids=ids, bags=bags)

    def __getattr__(self, name: str) -> Any:
        """Return a method of an extension or tool, whose module is imported when it is first used.

        See TOOLS for their names.
        """
        if name not in TOOLS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return MethodType(getattr(import_module(TOOLS[name]), name), self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *TOOLS})

    @classmethod
    def from_yaml(cls, path: str | Path) -> "QComm":
        """Make a QComm from a YAML file.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: naming file, field and allowed values.
        """
        return cls(load_config(path))

    @classmethod
    def from_preset(cls, name: str) -> "QComm":
        """Make a QComm from a preset, such as "best"; `trec_qcomm.presets()` lists them.

        Raises: ValueError: no config ships under that name.
        """
        return cls(load_preset(name))

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "QComm":
        """Make a QComm from a mapping with the fields of a YAML file.

            QComm.from_dict({"dense": {"codec": "float6"}})

        Raises: ValueError: naming the field and what is allowed there.
        """
        return cls(config_from_dict(mapping))

    def to_yaml(self) -> str:
        """Return the config as YAML text, which `from_yaml` reads."""
        return write_yaml(config_to_dict(self.config))

    def sharders(
        self,
        *,
        fused_params: Mapping[str, Any] | None = None,
        use_index_dedup: bool = False,
        sharded_module_order_overwrite: Sequence[str] | None = None,
        subclasses: Sequence[type[ModuleSharder[Any]]] = (),
    ) -> list[ModuleSharder[Any]]:
        """Return sharders for DistributedModelParallel, one for each module TorchRec can shard.

        Pass them in the place of TorchRec's own.

        Args:
            fused_params: settings of the fused embedding optimizer, such as {"optimizer": ...,
                "learning_rate": ...}; what TorchRec's sharders take under this name. Where bags
                and sequences differ, make the sharders twice and take one of each.
            use_index_dedup: whether an EmbeddingCollection sends each id once; what TorchRec's
                EmbeddingCollectionSharder takes under this name. CUDA only.
            sharded_module_order_overwrite: order of the sharding types within a module of bags;
                what TorchRec's EmbeddingBagCollectionSharder takes under this name.
            subclasses: subclasses of `trec_qcomm.integration.embedding.sharders.SHARDERS`, each to
                be used in the place of its base, as to pin `sharding_types`.
        Raises: ValueError: settings without a name, or a class that extends no sharder.
        """
        return all_sharders(
            self._session,
            fused_params=fused_params,
            use_index_dedup=use_index_dedup,
            sharded_module_order_overwrite=sharded_module_order_overwrite,
            subclasses=subclasses,
        )

    def data_parallel_wrapper(self, **options: Any) -> DefaultDataParallelWrapper:
        """Return a wrapper of the parts of the model that are replicated on all ranks.

        Gradients of the replicated part are all-reduced as the config's `dense` says, gradients of
        DATA_PARALLEL tables as its `data_parallel` says. A part for which the config says nothing
        keeps DDP's own all-reduce.

        Args: options: keyword arguments of TorchRec's DefaultDataParallelWrapper.
        Raises: ValueError: the config has `dense`, and options an allreduce_comm_precision.
        """
        return CountedDataParallelWrapper(self._session, **options)

    def dmp_arguments(
        self, *, wrapper: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Return the arguments of DistributedModelParallel that are QComm's, sharders and wrapper.

            DistributedModelParallel(dlrm, device=device, plan=plan, **qcomm.dmp_arguments())

        Args:
            wrapper: keyword arguments of `data_parallel_wrapper`.
            options: keyword arguments of `sharders`, such as fused_params.
        """
        return {
            "sharders": self.sharders(**options),
            "data_parallel_wrapper": self.data_parallel_wrapper(**(wrapper or {})),
        }

    def warm_up(
        self, *, ids: torch.dtype = torch.int64, rows_dtype: torch.dtype = torch.float32
    ) -> None:
        """Compile now the CPU kernels that the config uses and that are not compiled yet.

        Sharding a model on CPUs does it, too. Call it earlier, on every rank and before
        `init_process_group`, where collectives have a short timeout. No collective: ranks that
        share a disk share the work. `python -m trec_qcomm warm-up` does it in the image of a
        container.

        Args:
            ids: dtype of the batches' ids, int32 or int64. Lengths may be of either.
            rows_dtype: dtype of the lookups' rows (`output_dtype`): float32, float16 or bfloat16.
        Raises: ValueError: another dtype.
        """
        warm_up(self.config, ids=ids, rows_dtype=rows_dtype)

    @contextmanager
    def bypass(self) -> Iterator[None]:
        """Send exact values inside the block, for evaluation.

        All ranks must enter it together. A rank that does not expects frames of other sizes, and
        gloo ends the process.
        """
        before, self._session.exact = self._session.exact, True
        try:
            yield
        finally:
            self._session.exact = before

    def stats(self) -> Stats:
        """Return what this rank sent to other ranks since construction or `reset_stats`.

            stats = qcomm.stats()
            stats.embedding_forward.wire_nbytes, stats.dense.tables, stats.to_dict()

        Bytes are counted three times: raw, distinct and wire (core.stats.KindStats). Raw bytes of
        pooled rows are exact where all ranks have equal batch sizes. Raw bytes of ids and of
        unpooled rows are estimated: the bytes sent, times how often this rank's batch repeats an
        id. dense and data_parallel count what was sent, or what a ring all-reduce sends where
        DDP's own is used; their raw bytes are those of a float32 ring. Rows that TorchRec's own
        modules send count once; gloo's reduce-scatter of row-wise tables sent a little more.
        """
        return self._session.stats()

    def summary(self) -> str:
        """Return one table of what this rank sends to others in a step, as text.

        A row is a group of traffic: forward, backward, dense, ids, all. Columns are KB as float32
        before equal bags are merged (raw), after that (distinct) and on the wire, raw over wire,
        and ms of encoding, waiting for the network and decoding. What
        extensions tell follows.
        """
        words = [e.in_summary() for e in self._session.extensions.values()]
        return "\n".join([str(self.stats()), *filter(None, words)])

    def __repr__(self) -> str:
        """Return what is active: where the config is from, its rules, whether it is bypassed."""
        config = self.config
        parts = [
            f"{', '.join(rule.tables)}: {rule.forward!r} forward, {rule.backward!r} backward"
            + (f", unique_bags {rule.unique_bags}" if rule.unique_bags else "")
            for rule in config.embedding or [EXACT_RULE]
        ]
        tables = () if config.data_parallel is None else (config.data_parallel,)
        for name, rules in (("dense", config.dense_rules), ("data_parallel", tables)):
            said = ", ".join(f"{rule.codec!r} by {rule.algorithm}" for rule in rules) or "DDP"
            parts.append(f"{name}: {said}")
        parts += [] if config.ids is None else [f"ids: {config.ids.codec}"]
        parts += [f"{name}: {part.in_short()}" for name, part in sections_of(config).items()]
        parts += ["bypassed"] if self._session.exact else []
        return f"QComm({config.source!r}; {'; '.join(parts)})"

    def forward_params(self) -> dict[str, float]:
        """Return the error bound or threshold of each table's forward codec in the next step.

        It is for the rows that this rank sends; where there are two hops, for the hop between
        nodes. Ranks may have different numbers if these are found while training. The bound of a
        row-wise table holds for the sum over ranks. Tables whose codec has neither are left out.
        """
        return self._session.forward_params()

    def reset_stats(self) -> None:
        """Set all counters to zero."""
        self._session.reset_stats()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on as if it had not stopped, keyed by names.

        It holds the numbers of steps, which seed stochastic rounding and drive schedules; what
        codecs of dense gradients kept back; bounds and thresholds that were found while training;
        and the config, which loading compares.

        Raises: CorruptFrameError: a frame in a GPU's memory was wrong; no state is returned.
        """
        return self._session.state_dict()

    def load_state_dict(
        self, state_dict: dict[str, Any], *, allow_changed_config: bool = False
    ) -> None:
        """Continue from a `state_dict`.

        Args: allow_changed_config: whether it may be of another config. Error bounds and thresholds
            are then found anew.
        Raises: ValueError: it is no such state, or of another model or config; the message names
            what has changed.
        """
        self._session.load_state_dict(state_dict, allow_changed_config=allow_changed_config)
