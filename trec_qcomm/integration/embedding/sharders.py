"""All sharders of one Session: those of bags and sequences, and of the modules that hold them.

TorchRec's sharders of managed collision, feature processed and ITEP modules take the sharder of
the collection inside. Its tower sharders make their own, so they are subclassed. What a tower
sends between nodes is the output of its interaction module, not rows: it stays as it is.
"""

from typing import Any

import torch
from torch import nn

from trec_qcomm.integration.compat import (
    Awaitable,
    BaseEmbeddingSharder,
    EmbeddingCollection,
    EmbeddingTower,
    EmbeddingTowerCollectionSharder,
    EmbeddingTowerSharder,
    FeatureProcessedEmbeddingBagCollectionSharder,
    ITEPEmbeddingBagCollectionSharder,
    ITEPEmbeddingCollectionSharder,
    ManagedCollisionCollection,
    ManagedCollisionCollectionSharder,
    ManagedCollisionEmbeddingBagCollectionSharder,
    ManagedCollisionEmbeddingCollectionSharder,
    ModuleSharder,
    ParameterSharding,
    ShardedManagedCollisionCollection,
    ShardingEnv,
)
from trec_qcomm.integration.compat.private import (
    input_dists,
    nested_sharder,
    output_dists,
    set_tower_sharder,
)
from trec_qcomm.integration.embedding.bags import (
    CodedEmbeddingBagCollectionSharder,
    CodedFusedEmbeddingBagCollectionSharder,
)
from trec_qcomm.integration.embedding.sequences import CodedEmbeddingCollectionSharder
from trec_qcomm.integration.ids.batch_notes import hand_over_notes
from trec_qcomm.integration.ids.id_traffic import count_remapped_ids, record_sent_ids
from trec_qcomm.integration.session import Session


def all_sharders(
    session: Session, *, fused_params: dict[str, Any] | None, use_index_dedup: bool
) -> list[ModuleSharder[Any]]:
    """One for each module of TorchRec that shards embeddings. Args: see QComm.sharders."""
    bags = CodedEmbeddingBagCollectionSharder(session, fused_params=fused_params)
    held_bags = CodedEmbeddingBagCollectionSharder(session, held=True, fused_params=fused_params)
    sequences = CodedEmbeddingCollectionSharder(
        session, fused_params=fused_params, use_index_dedup=use_index_dedup
    )
    held_sequences = CodedEmbeddingCollectionSharder(
        session, held=True, fused_params=fused_params, use_index_dedup=use_index_dedup
    )
    collisions = CodedManagedCollisionCollectionSharder(session)
    tower = CodedEmbeddingTowerSharder(held_bags, held_sequences)
    return [
        bags,
        sequences,
        CodedFusedEmbeddingBagCollectionSharder(session),
        _NamedManagedCollisionEmbeddingBagCollectionSharder(held_bags, collisions),
        _NamedManagedCollisionEmbeddingCollectionSharder(held_sequences, collisions),
        FeatureProcessedEmbeddingBagCollectionSharder(held_bags),
        _NamedITEPEmbeddingBagCollectionSharder(held_bags),
        _NamedITEPEmbeddingCollectionSharder(held_sequences),
        tower,
        CodedEmbeddingTowerCollectionSharder(tower),
    ]


class _Named:
    """Tells the sharder of the collection inside the module's name, which TorchRec keeps from it.

    Two modules may have tables of the same names, and their noise and state must not mix.
    """

    def shard(
        self,
        module: Any,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        """As the base class."""
        inside = nested_sharder(self)
        inside.name_of_holder = module_fqn
        try:
            return super().shard(module, params, env, device, module_fqn)  # type: ignore[misc]
        finally:
            inside.name_of_holder = None


class _NamedManagedCollisionEmbeddingBagCollectionSharder(
    _Named, ManagedCollisionEmbeddingBagCollectionSharder
):
    """TorchRec's."""


class _NamedManagedCollisionEmbeddingCollectionSharder(
    _Named, ManagedCollisionEmbeddingCollectionSharder
):
    """TorchRec's."""


class _NamedITEPEmbeddingBagCollectionSharder(_Named, ITEPEmbeddingBagCollectionSharder):
    """TorchRec's."""


class _NamedITEPEmbeddingCollectionSharder(_Named, ITEPEmbeddingCollectionSharder):
    """TorchRec's."""


class CodedShardedManagedCollisionCollection(ShardedManagedCollisionCollection):
    """TorchRec's, which has dists of ids of its own: they are watched, too."""

    def __init__(self, *args: Any, session: Session, **options: Any) -> None:
        """The rest as TorchRec's."""
        super().__init__(*args, **options)
        self._session = session
        for output_dist in output_dists(self):
            count_remapped_ids(output_dist, session.counters["input"])

    def _create_input_dists(self, *args: Any, **options: Any) -> None:
        super()._create_input_dists(*args, **options)
        for input_dist in input_dists(self):
            record_sent_ids(input_dist, self._session.counters["input"])

    def input_dist(
        self, ctx: Any, features: Any, *args: Any, **options: Any
    ) -> Awaitable[Awaitable[Any]]:
        """As the base class; the output dist will want to know how many ids went where."""
        awaitable = super().input_dist(ctx, features, *args, **options)
        hand_over_notes(ctx.sharding_contexts, input_dists(self))
        return awaitable


class CodedManagedCollisionCollectionSharder(ManagedCollisionCollectionSharder):
    """Drop-in for TorchRec's."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def shard(
        self,
        module: ManagedCollisionCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        embedding_shardings: list[Any],
        device: torch.device | None = None,
        use_index_dedup: bool = False,
    ) -> CodedShardedManagedCollisionCollection:
        """Shard as planned."""
        return CodedShardedManagedCollisionCollection(
            module,
            params,
            env=env,
            device=device or torch.device("cpu"),
            embedding_shardings=embedding_shardings,
            use_index_dedup=use_index_dedup,
            session=self._session,
        )


class CodedEmbeddingTowerSharder(EmbeddingTowerSharder):
    """TorchRec's; the tables of a tower, which lie in one node, are coded."""

    def __init__(
        self, bags: CodedEmbeddingBagCollectionSharder, sequences: CodedEmbeddingCollectionSharder
    ) -> None:
        super().__init__(fused_params=bags.fused_params)
        self._bags, self._sequences = bags, sequences

    def embedding_sharder(self, module: EmbeddingTower) -> BaseEmbeddingSharder[nn.Module]:
        """Ours for the collection inside."""
        inside: Any = self._bags
        if isinstance(module.embedding, EmbeddingCollection):
            inside = self._sequences
        return inside


class CodedEmbeddingTowerCollectionSharder(EmbeddingTowerCollectionSharder):
    """TorchRec's, with our sharder of each tower."""

    def __init__(self, tower: CodedEmbeddingTowerSharder) -> None:
        super().__init__(fused_params=tower.fused_params)
        set_tower_sharder(self, tower)
