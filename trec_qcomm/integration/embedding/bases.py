"""Base classes of our shardings, sharded modules and sharders.

A subclass also extends a class of TorchRec's, or of a library that extends TorchRec's. It may be a
sharding (other lookups, other buckets of ids), the sharded module that makes the sharding, or the
sharder that makes the module (docs/LIBRARIES.md). Two mistakes would be silent: a sharding of the
library's that is not coded, and a coded one without the library's part. The checks here find both.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from trec_qcomm.config import TableRule
from trec_qcomm.integration.compat import (
    EmbeddingSharding,
    ParameterSharding,
    QuantizedCommCodecs,
    ShardingEnv,
    ShardingType,
    get_use_sync_collectives,
)
from trec_qcomm.integration.session import Session

Shardings = Mapping[str, type[Any]]

_CODING = (
    "create_output_dist",
    "create_embedding_bag_sharding",
    "create_embedding_sharding",
    "shard",
)


class SessionRegistry(dict[str, QuantizedCommCodecs]):
    """Empty TorchRec codec registry that carries a Session to the shardings of one module.

    TorchRec hands its `qcomm_codecs_registry` from sharder to module to sharding, by constructors
    and classmethods that we do not own. Our registry is empty, so that stock code sees no codecs,
    and has the Session as an attribute.

    Args:
        module_name: key of the state of the module's collectives
        is_nested: whether the collection is inside a module that does more with its ids than look
            them up
    """

    def __init__(self, session: Session, module_name: str, *, is_nested: bool) -> None:
        super().__init__()
        self.session, self.module_name, self.is_nested = session, module_name, is_nested


class ComesFirst:
    """Mixin of our classes. They must come before a library's class, whose methods they call.

    Raises: TypeError: a base class of another library hides a method that codes.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__[: cls.__mro__.index(ComesFirst)]:
            hidden = [method for method in _CODING if method in vars(base)]
            if hidden and not issubclass(base, ComesFirst):
                raise TypeError(
                    f"{cls.__name__}: {base.__name__} comes before the class of trec_qcomm and its "
                    f"{hidden[0]} codes nothing; name the class of trec_qcomm first"
                )


class HasRegistry(ComesFirst):
    """Mixin of our sharded modules and shardings. TorchRec hands them the registry."""

    @property
    def _registry(self) -> SessionRegistry:
        registry: SessionRegistry = self.qcomm_codecs_registry  # type: ignore[attr-defined]
        return registry


class CodedModule(HasRegistry):
    """Mixin of our sharded modules, which make coded shardings.

    Class attributes:
        coded_shardings: classes by sharding type, in place of our own classes; for libraries
    """

    coded_shardings: ClassVar[Shardings] = {}

    @classmethod
    def _coded_class(
        cls, kind: str, ours: Shardings, theirs: EmbeddingSharding[Any, Any, Any, Any]
    ) -> type[Any] | None:
        """Return the class of the coded sharding that the module makes; None: no rows are sent.

        Args:
            kind: sharding type
            ours: coded classes by sharding type, which extend TorchRec's
            theirs: the sharding that TorchRec or a library makes
        Raises: ValueError: a library's sharding that no coded class extends.
        """
        coded: type[Any] | None = {**ours, **cls.coded_shardings}.get(kind)
        if coded is None and kind == ShardingType.DATA_PARALLEL.value:
            return None
        if (
            coded is None
            or not issubclass(coded, type(theirs))
            or not issubclass(coded, tuple(ours.values()))
        ):
            raise ValueError(
                f"{cls.__name__}.coded_shardings[{kind!r}]: {coded and coded.__name__}: expected a "
                f"class that extends a coded sharding and {type(theirs).__name__}, which the "
                "module makes"
            )
        return coded


class CodedSharder(ComesFirst):
    """Mixin of our sharders.

    Class attributes:
        sharded_class: class of the modules
        merges_bags: whether equal bags and ids may be sent once; a lookup that counts its ids
            forbids it. None: they may if `sharded_class` is ours
    """

    sharded_class: ClassVar[type[Any]]
    merges_bags: ClassVar[bool | None] = None

    def __init__(self, session: Session, *, is_nested: bool = False, **options: Any) -> None:
        """Make one sharder for any number of modules.

        Args:
            is_nested: whether the modules are inside others that do more with ids than look them up
            options: options of TorchRec's sharder, without its qcomm_codecs_registry
        """
        super().__init__(**options)
        self._session, self._is_nested = session, is_nested
        self.parent_fqn: str | None = None  # path of the module around the next one

    def shard(
        self,
        module: Any,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        """Shard as planned. Raises ValueError as `_register` does."""
        return self.sharded_class(
            module,
            params,
            env,
            device=device,
            qcomm_codecs_registry=self._register(params, env, device, module_fqn),
            **self._torchrec_options(module_fqn),
            **self.module_options(params),
        )

    def _torchrec_options(self, module_fqn: str | None) -> dict[str, Any]:
        """Return what TorchRec's sharder hands to the constructor of TorchRec's module."""
        return {"fused_params": self.fused_params, "module_fqn": module_fqn}  # type: ignore[attr-defined]

    def module_options(self, params: dict[str, ParameterSharding]) -> dict[str, Any]:
        """Return further arguments of `sharded_class`. Args: params: the module's plan."""
        return {}

    @property
    def sharded_module_type(self) -> type[Any]:
        """Class of the sharded module. TorchRec looks up sharders by it."""
        return self.sharded_class

    def _check_plan(
        self, params: Mapping[str, ParameterSharding], device: torch.device | None
    ) -> None:
        """Raise ValueError at a plan that `sharded_class` does not support on the device."""

    def _register(
        self,
        params: Mapping[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None,
        module_fqn: str | None,
    ) -> SessionRegistry:
        """Check how a module is to be sharded, add it to the session. Collective over env's group.

        Args: module_fqn: the module's path; None: that of the module around it, or its tables'
            names.
        Raises: ValueError: a device that is not supported, a codec without kernels for it,
            synchronous collectives, a table that no pattern of the config matches, or ranks whose
            configs differ.
        """
        self._check_plan(params, device)
        refuse_sync_collectives()
        if env.process_group is None:
            raise ValueError("env: no process group; make it by ShardingEnv.from_process_group(pg)")
        session = self._session
        module_name = module_fqn or self.parent_fqn or "+".join(sorted(params))
        session.add_module(env.process_group, module_name, params)
        if device is not None:
            _check_device(device, {table: session.config.rule_for(table) for table in params})
            for extension in session.extensions.values():
                extension.check_tables(params, torch.float32, device)
        if device is None or device.type == "cpu":
            kinds = {params[table].sharding_type for table in params}
            session.warm_up_once(data_parallel=ShardingType.DATA_PARALLEL.value in kinds)
        is_ours = self.sharded_class.__module__.startswith("trec_qcomm.")
        merges = is_ours if self.merges_bags is None else self.merges_bags
        return SessionRegistry(session, module_name, is_nested=self._is_nested or not merges)


def refuse_sync_collectives() -> None:
    """Raise ValueError if TorchRec's switch `use_sync_collectives` (for torch.compile) is on.

    With this switch TorchRec's own codecs silently stop the training of the embeddings.
    """
    if get_use_sync_collectives():
        raise ValueError("torchrec's use_sync_collectives is not supported: unset it")


def _check_device(device: torch.device, rules: Mapping[str, TableRule]) -> None:
    if device.type in ("cpu", "meta"):
        return
    if device.type != "cuda":
        raise ValueError(f"device {device}: trec_qcomm has kernels for cpu and cuda")
    for table, rule in rules.items():
        for codec in (rule.forward, rule.backward, rule.intra.forward, rule.intra.backward):
            if not codec.has_gpu_kernels:
                raise ValueError(
                    f"device {device}: table {table!r}: no GPU kernels for {codec!r}; take a codec "
                    "that has them, such as rowwise, cast, float6, or error_bounded with bitpack"
                )
