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
from trec_qcomm.integration.compat import DefaultDataParallelWrapper, ModuleSharder
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

    Make one QComm on each rank, from the same config, and use it for one model. Train as before.
    `stats()` tells what was sent; `with qcomm.bypass():` evaluates with exact communication. A
    QComm is a Stateful of torch.distributed.checkpoint: save {"model": ..., "trec_qcomm": qcomm}.
    """

    def __init__(self, config: Config) -> None:
        """Make a QComm for one model, on this rank.

        Args: config: settings of the codecs.
        Raises: ValueError: `config` is no Config.
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
        """Session that all parts of this object share, for extensions and tools."""
        return self._session

    @property
    def scaler(self) -> Any:
        """Scaler of the loss (torch.amp.GradScaler); None, the default, if there is none.

            qcomm.scaler = scaler

        Residuals of dense gradients then follow the scale. Error bounds of mode `abs` and
        thresholds of dense gradients are in the unit of the scaled gradients.
        """
        return self._session.scaler

    @scaler.setter
    def scaler(self, scaler: Any) -> None:
        self._session.scaler = scaler

    @property
    def state(self) -> NamedStates[Stateful]:
        """Objects whose state checkpoints keep besides QComm's own, by name.

            qcomm.state["mine"] = stateful      # with state_dict() and load_state_dict(state)

        If a checkpoint was loaded before, the object gets its state at once. With a changed config
        it gets load_state_dict({}), and begins anew. A state is a mapping with at least one tensor,
        because torch.distributed.checkpoint does not always load plain numbers alone.
        """
        return self._session.state

    def extend(self, name: str, extension: Extension) -> None:
        """Add an extension, which may use the doors of all collectives (docs/EXTENDING.md).

        Raises: ValueError: there is an extension of that name already.
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

        Modules that are resharded keep the new codecs. A step that has begun ends with the codecs
        that it began with.

        Args:
            tables: {table: {"forward": codec, "backward": codec}}, or one of the two.
            dense: rules in place of the config's `dense`; `exact`: DDP's own all-reduce. None: no
                change.
            ids: `packed`, or `exact` to send ids as TorchRec does. None: no change.
            bags: `distinct` sends equal bags once where the config merges them, and leaves out
                empty rows of row-wise tables. `all` sends a row for each bag. None: no change.
        Raises: ValueError: a table that is not exchanged here, codecs that a table may not have,
            rules that do not fit, or `dense` where the config has none. Then that argument changes
            nothing.
        """
        self._session.use_codecs(tables or {}, dense=dense, ids=ids, bags=bags)

    def __getattr__(self, name: str) -> Any:
        """Return a method of an extension or tool, and import its module when it is first used.

        TOOLS has the names of these methods.
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
            ValueError: the file is no config; the error names file, field and allowed values.
        """
        return cls(load_config(path))

    @classmethod
    def from_preset(cls, name: str) -> "QComm":
        """Make a QComm from a preset, such as "best"; `trec_qcomm.presets()` lists them.

        Raises: ValueError: no preset has that name.
        """
        return cls(load_preset(name))

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "QComm":
        """Make a QComm from a mapping with the fields of a YAML file.

            QComm.from_dict({"dense": {"codec": "float6"}})

        Raises: ValueError: the mapping is no config; the error names field and allowed values.
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

        Pass them in place of TorchRec's own.

        Args:
            fused_params: settings of the fused embedding optimizer, such as {"optimizer": ...,
                "learning_rate": ...}, as TorchRec's sharders take them. If bags and sequences need
                different settings, make the sharders twice and take one of each.
            use_index_dedup: whether an EmbeddingCollection sends each id once, as TorchRec's
                EmbeddingCollectionSharder takes it. CUDA only.
            sharded_module_order_overwrite: order of the sharding types within a module of bags, as
                TorchRec's EmbeddingBagCollectionSharder takes it.
            subclasses: subclasses of `trec_qcomm.integration.embedding.sharders.SHARDERS`. Each is
                used in place of its base, for example to pin `sharding_types`.
        Raises: ValueError: fused_params without names, or a class that extends no sharder.
        """
        return all_sharders(
            self._session,
            fused_params=fused_params,
            use_index_dedup=use_index_dedup,
            sharded_module_order_overwrite=sharded_module_order_overwrite,
            subclasses=subclasses,
        )

    def data_parallel_wrapper(self, **options: Any) -> DefaultDataParallelWrapper:
        """Return a wrapper for the parts of the model that are replicated on all ranks.

        The config's `dense` says how gradients of the replicated part are all-reduced, and its
        `data_parallel` says it for DATA_PARALLEL tables. A part for which the config says nothing
        keeps DDP's own all-reduce.

        Args: options: keyword arguments of TorchRec's DefaultDataParallelWrapper.
        Raises: ValueError: the config has `dense` and the options have allreduce_comm_precision.
        """
        return CountedDataParallelWrapper(self._session, **options)

    def dmp_arguments(
        self, *, wrapper: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Return QComm's sharders and wrapper as arguments of DistributedModelParallel.

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
        """Compile the CPU kernels that the config uses, unless they are compiled already.

        Sharding a model on CPUs compiles them, too. Call this earlier if collectives have a short
        timeout: on every rank, before `init_process_group`. It uses no collective: ranks that share
        a disk share the work. `python -m trec_qcomm warm-up` compiles them into a container's
        image.

        Args:
            ids: dtype of the batches' ids, int32 or int64. Lengths may have either.
            rows_dtype: dtype of the lookups' rows (`output_dtype`): float32, float16 or bfloat16.
        Raises: ValueError: another dtype.
        """
        warm_up(self.config, ids=ids, rows_dtype=rows_dtype)

    @contextmanager
    def bypass(self) -> Iterator[None]:
        """Send exact values inside the block, for evaluation.

        All ranks must enter it together. A rank that does not enter expects frames of other sizes,
        and gloo ends its process.
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
        pooled rows are exact if all ranks have equal batch sizes. Raw bytes of ids and of unpooled
        rows are estimated: the bytes sent, times how often this rank's batch repeats an id. dense
        and data_parallel count what was sent. Where DDP's own all-reduce is used, they count what a
        ring sends; their raw bytes are those of a float32 ring. Rows that TorchRec's own modules
        send count once, though gloo's reduce-scatter of row-wise tables sends a little more.
        """
        return self._session.stats()

    def summary(self) -> str:
        """Return one table of what this rank sends to others in a step, as text.

        Each row is a group of traffic: forward, backward, dense, ids, all. The first columns are
        KB: as float32 before equal bags are merged (raw), after that (distinct), and on the wire.
        Then come raw over wire, and ms of encoding, waiting for the network and decoding. Lines of
        the extensions follow.
        """
        words = [e.in_summary() for e in self._session.extensions.values()]
        return "\n".join([str(self.stats()), *filter(None, words)])

    def __repr__(self) -> str:
        """Return what is active: the config's source and rules, and whether it is bypassed."""
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

        The number holds for the rows that this rank sends; with two hops, for the hop between
        nodes. Numbers that are found while training may differ between ranks. The bound of a
        row-wise table holds for the sum over ranks. Tables whose codec has no bound or threshold
        are left out.
        """
        return self._session.forward_params()

    def reset_stats(self) -> None:
        """Set all counters to zero."""
        self._session.reset_stats()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs to continue exactly, keyed by names.

        The state has the numbers of steps, which seed stochastic rounding and drive schedules. It
        has the residuals of dense gradients, and the bounds and thresholds that were found while
        training. It has the config, which `load_state_dict` compares.

        Raises: CorruptFrameError: a frame in a GPU's memory was wrong; no state is returned.
        """
        return self._session.state_dict()

    def load_state_dict(
        self, state_dict: dict[str, Any], *, allow_changed_config: bool = False
    ) -> None:
        """Continue from a `state_dict`.

        Args: allow_changed_config: whether the state may come from another config. Error bounds and
            thresholds are then found anew.
        Raises: ValueError: no such state, or the state of another model or config; the message
            names what has changed.
        """
        self._session.load_state_dict(state_dict, allow_changed_config=allow_changed_config)
