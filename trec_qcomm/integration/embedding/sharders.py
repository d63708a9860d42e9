"""All sharders of one Session: of bags, of sequences, and of the modules around these.

TorchRec's sharders of managed collision, feature processed and ITEP modules take the sharder of
the collection inside them. Its tower sharders make their own, so they are subclassed. Between nodes
a tower does not send rows but the output of its interaction module, which is not coded.
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
    """Make a sharder for each module of TorchRec that shards embeddings.

    Args:
        fused_params: parameters of the fused optimizer, as TorchRec's sharders take them
        use_index_dedup: whether collections of sequences send each id once (TorchRec's option)
    """
    bags = CodedEmbeddingBagCollectionSharder(session, fused_params=fused_params)
    nested_bags = CodedEmbeddingBagCollectionSharder(
        session, is_nested=True, fused_params=fused_params
    )
    sequences = CodedEmbeddingCollectionSharder(
        session, fused_params=fused_params, use_index_dedup=use_index_dedup
    )
    nested_sequences = CodedEmbeddingCollectionSharder(
        session, is_nested=True, fused_params=fused_params, use_index_dedup=use_index_dedup
    )
    collisions = CodedManagedCollisionCollectionSharder(session)
    tower = CodedEmbeddingTowerSharder(nested_bags, nested_sequences)
    return [
        bags,
        sequences,
        CodedFusedEmbeddingBagCollectionSharder(session),
        CodedManagedCollisionEmbeddingBagCollectionSharder(nested_bags, collisions),
        CodedManagedCollisionEmbeddingCollectionSharder(nested_sequences, collisions),
        FeatureProcessedEmbeddingBagCollectionSharder(nested_bags),
        CodedITEPEmbeddingBagCollectionSharder(nested_bags),
        CodedITEPEmbeddingCollectionSharder(nested_sequences),
        tower,
        CodedEmbeddingTowerCollectionSharder(tower),
    ]


class _PassesFqnOn:
    """Mixin that gives the sharder of an inner collection the path (fqn) of the module around it.

    TorchRec does not. Two modules may have tables of equal names, and their noise and state must
    not mix.
    """

    def shard(
        self,
        module: Any,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        """Shard as planned."""
        inside = nested_sharder(self)
        inside.parent_fqn = module_fqn
        try:
            return super().shard(module, params, env, device, module_fqn)  # type: ignore[misc]
        finally:
            inside.parent_fqn = None


class CodedManagedCollisionEmbeddingBagCollectionSharder(
    _PassesFqnOn, ManagedCollisionEmbeddingBagCollectionSharder
):
    """Sharder of ManagedCollisionEmbeddingBagCollection with a coded collection inside."""


class CodedManagedCollisionEmbeddingCollectionSharder(
    _PassesFqnOn, ManagedCollisionEmbeddingCollectionSharder
):
    """Sharder of ManagedCollisionEmbeddingCollection with a coded collection inside."""


class CodedITEPEmbeddingBagCollectionSharder(_PassesFqnOn, ITEPEmbeddingBagCollectionSharder):
    """Sharder of ITEPEmbeddingBagCollection with a coded collection inside."""


class CodedITEPEmbeddingCollectionSharder(_PassesFqnOn, ITEPEmbeddingCollectionSharder):
    """Sharder of ITEPEmbeddingCollection with a coded collection inside."""


class CodedShardedManagedCollisionCollection(ShardedManagedCollisionCollection):
    """ShardedManagedCollisionCollection whose own dists of ids are counted, too."""

    def __init__(self, *args: Any, session: Session, **options: Any) -> None:
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
        """Send the ids, and note for the output dist how many went where."""
        awaitable = super().input_dist(ctx, features, *args, **options)
        hand_over_notes(ctx.sharding_contexts, input_dists(self))
        return awaitable


class CodedManagedCollisionCollectionSharder(ManagedCollisionCollectionSharder):
    """Drop-in for TorchRec's ManagedCollisionCollectionSharder."""

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
    """Drop-in for TorchRec's EmbeddingTowerSharder; a tower's tables all lie in one node."""

    def __init__(
        self, bags: CodedEmbeddingBagCollectionSharder, sequences: CodedEmbeddingCollectionSharder
    ) -> None:
        super().__init__(fused_params=bags.fused_params)
        self._bags, self._sequences = bags, sequences

    def embedding_sharder(self, module: EmbeddingTower) -> BaseEmbeddingSharder[nn.Module]:
        """Return the coded sharder of the collection inside."""
        sharder: Any = self._bags
        if isinstance(module.embedding, EmbeddingCollection):
            sharder = self._sequences
        return sharder


class CodedEmbeddingTowerCollectionSharder(EmbeddingTowerCollectionSharder):
    """Drop-in for TorchRec's EmbeddingTowerCollectionSharder, over CodedEmbeddingTowerSharder."""

    def __init__(self, tower: CodedEmbeddingTowerSharder) -> None:
        super().__init__(fused_params=tower.fused_params)
        set_tower_sharder(self, tower)
