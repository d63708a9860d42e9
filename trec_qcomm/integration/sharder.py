"""Sharder of EmbeddingBagCollection whose all-to-alls are coded. Subclasses, no patching.

TorchRec hands its `qcomm_codecs_registry` from sharder to module to sharding through constructors
and classmethods that we do not own. Ours rides along: `Wiring`, an empty registry, so stock code
sees no codecs, that carries the Session.
"""

from typing import Any

import torch

from trec_qcomm.integration.compat import (
    BaseEmbeddingDist,
    BaseSparseFeaturesDist,
    CwPooledEmbeddingSharding,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    EmbeddingSharding,
    EmbeddingShardingInfo,
    ParameterSharding,
    QuantizedCommCodecs,
    ShardedEmbeddingBagCollection,
    ShardingEnv,
    ShardingType,
    TwPooledEmbeddingSharding,
)
from trec_qcomm.integration.input_dist import CountedTwSparseFeaturesDist
from trec_qcomm.integration.output_dist import CodedTwPooledEmbeddingDist, layout_of
from trec_qcomm.integration.session import Session

SHARDING_TYPES = (
    ShardingType.TABLE_WISE.value,
    ShardingType.COLUMN_WISE.value,
    ShardingType.DATA_PARALLEL.value,
)


class Wiring(dict[str, QuantizedCommCodecs]):
    """An empty TorchRec codec registry that carries a Session to the shardings of one module."""

    def __init__(self, session: Session, module_fqn: str) -> None:
        super().__init__()
        self.session, self.module_fqn = session, module_fqn


class _CodedTwFamily:
    """What table-wise and column-wise shardings share; mixed into TorchRec's classes."""

    def create_input_dist(self, device: torch.device | None = None) -> BaseSparseFeaturesDist[Any]:
        """TorchRec's dist of ids, counted."""
        wiring = self.qcomm_codecs_registry  # type: ignore[attr-defined]
        return CountedTwSparseFeaturesDist(
            self._pg,  # type: ignore[attr-defined]
            self.features_per_rank(),  # type: ignore[attr-defined]
            traffic=wiring.session.counters["input"],
        )

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, torch.Tensor, torch.Tensor]:
        """The coded all-to-all in the place of TorchRec's."""
        stock = super().create_output_dist(device)  # type: ignore[misc]
        wiring = self.qcomm_codecs_registry  # type: ignore[attr-defined]
        groups = self._grouped_embedding_configs_per_rank  # type: ignore[attr-defined]
        pg = self._pg  # type: ignore[attr-defined]
        collective = wiring.session.pooled_all_to_all(
            pg,
            layout_of(groups),
            owner=wiring,
            name=f"{wiring.module_fqn}/{self.sharding_name}",  # type: ignore[attr-defined]
        )
        return CodedTwPooledEmbeddingDist(pg, stock, collective, wiring.session)


class CodedTwPooledEmbeddingSharding(_CodedTwFamily, TwPooledEmbeddingSharding):
    """Table-wise."""

    sharding_name = ShardingType.TABLE_WISE.value


class CodedCwPooledEmbeddingSharding(_CodedTwFamily, CwPooledEmbeddingSharding):
    """Column-wise."""

    sharding_name = ShardingType.COLUMN_WISE.value


class CodedShardedEmbeddingBagCollection(ShardedEmbeddingBagCollection):
    """ShardedEmbeddingBagCollection whose table-wise and column-wise tables are coded."""

    @classmethod
    def create_embedding_bag_sharding(
        cls,
        sharding_infos: list[EmbeddingShardingInfo],
        env: ShardingEnv,
        device: torch.device | None = None,
        permute_embeddings: bool = False,
        qcomm_codecs_registry: dict[str, QuantizedCommCodecs] | None = None,
    ) -> EmbeddingSharding[Any, Any, Any, Any]:
        """Ours for the sharding types that communicate rows, TorchRec's for DATA_PARALLEL.

        Raises: ValueError: any other, which a reshard may ask for without asking the sharder.
        """
        _check_plan({info.embedding_config.name: info.param_sharding for info in sharding_infos})
        sharding_type = sharding_infos[0].param_sharding.sharding_type
        if sharding_type == ShardingType.TABLE_WISE.value:
            return CodedTwPooledEmbeddingSharding(
                sharding_infos, env, device, qcomm_codecs_registry=qcomm_codecs_registry
            )
        if sharding_type == ShardingType.COLUMN_WISE.value:
            return CodedCwPooledEmbeddingSharding(
                sharding_infos,
                env,
                device,
                permute_embeddings=permute_embeddings,
                qcomm_codecs_registry=qcomm_codecs_registry,
            )
        return super().create_embedding_bag_sharding(
            sharding_infos, env, device, permute_embeddings, qcomm_codecs_registry
        )


class CodedEmbeddingBagCollectionSharder(EmbeddingBagCollectionSharder):
    """Drop-in for TorchRec's EmbeddingBagCollectionSharder."""

    def __init__(self, session: Session, **options: Any) -> None:
        """options: those of TorchRec's sharder, without its qcomm_codecs_registry."""
        super().__init__(**options)
        self._session = session

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """What the planner may propose."""
        stock = super().sharding_types(compute_device_type)
        return [kind for kind in stock if kind in SHARDING_TYPES]

    def shard(
        self,
        module: EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> CodedShardedEmbeddingBagCollection:
        """Shard as planned.

        Raises: ValueError: a sharding type, device or output dtype that is not supported, a
            table that no pattern of the config matches, or ranks whose configs differ.
        """
        _check_plan(params)
        _check_device(device)
        _check_output_dtype(params, self.fused_params)
        group = env.process_group
        if group is None:
            raise ValueError("trec_qcomm needs a ShardingEnv with a process group")
        self._session.add_tables(group, params)
        return CodedShardedEmbeddingBagCollection(
            module=module,
            table_name_to_parameter_sharding=params,
            env=env,
            fused_params=self.fused_params,
            device=device,
            qcomm_codecs_registry=Wiring(self._session, module_fqn or "module"),
            module_fqn=module_fqn,
            sharded_module_order_overwrite=self._sharded_module_order_overwrite,
        )

    @property
    def sharded_module_type(self) -> type[CodedShardedEmbeddingBagCollection]:
        """For TorchRec's lookup of sharders by module."""
        return CodedShardedEmbeddingBagCollection


def _check_plan(params: dict[str, ParameterSharding]) -> None:
    for table, sharding in params.items():
        if sharding.sharding_type not in SHARDING_TYPES:
            raise ValueError(
                f"table {table!r}: sharding type {sharding.sharding_type!r} is not supported; "
                f"allowed: {', '.join(SHARDING_TYPES)}"
            )


def _check_device(device: torch.device | None) -> None:
    if device is not None and device.type not in ("cpu", "meta"):
        raise ValueError(f"device {device}: trec_qcomm has kernels for cpu only so far")


def _check_output_dtype(
    params: dict[str, ParameterSharding], fused_params: dict[str, Any] | None
) -> None:
    """Codecs take float32 rows."""
    options: list[tuple[str, Any]] = [("fused_params", (fused_params or {}).get("output_dtype"))]
    options += [(f"table {t!r}", getattr(p, "output_dtype", None)) for t, p in params.items()]
    for where, dtype in options:
        name = str(getattr(dtype, "value", dtype)).lower()
        if dtype is not None and name not in ("fp32", "torch.float32"):
            raise ValueError(f"{where}: output_dtype {dtype} is not supported; allowed: fp32")
