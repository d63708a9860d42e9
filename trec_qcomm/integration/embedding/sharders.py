"""All sharders of one Session: for bags, for sequences, and for modules around such collections.

TorchRec's sharders of managed collision and feature processed modules take the sharder of the
collection inside them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trec_qcomm.integration.compat import (
    Awaitable,
    FeatureProcessedEmbeddingBagCollectionSharder,
    ManagedCollisionCollectionSharder,
    ManagedCollisionEmbeddingBagCollectionSharder,
    ManagedCollisionEmbeddingCollectionSharder,
    ModuleSharder,
    ParameterSharding,
    ShardedManagedCollisionCollection,
    ShardingEnv,
)
from trec_qcomm.integration.compat.private import input_dists, nested_sharder, output_dists
from trec_qcomm.integration.embedding.modules import (
    CodedEmbeddingBagCollectionSharder,
    CodedEmbeddingCollectionSharder,
    CodedFusedEmbeddingBagCollectionSharder,
)
from trec_qcomm.integration.ids.batch_notes import hand_over_notes
from trec_qcomm.integration.ids.sent_ids import count_remapped_ids, record_sent_ids
from trec_qcomm.integration.session import Session


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


class CodedShardedManagedCollisionCollection(ShardedManagedCollisionCollection):
    """ShardedManagedCollisionCollection whose own dists of ids are counted, too."""

    def __init__(self, *args: Any, session: Session, **options: Any) -> None:
        super().__init__(*args, **options)
        self._session = session
        for output_dist in output_dists(self):
            count_remapped_ids(output_dist, session.counters["input"])

    def _create_input_dists(self, *args: Any, **options: Any) -> None:
        super()._create_input_dists(*args, **options)
        session = self._session
        for input_dist in input_dists(self):
            record_sent_ids(input_dist, session.counters["input"], lambda: session.packs_ids)

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
        self, *args: Any, device: torch.device | None = None, **options: Any
    ) -> CodedShardedManagedCollisionCollection:
        """Shard as planned. Args: args, options: arguments of TorchRec's sharder."""
        device = device or torch.device("cpu")
        return CodedShardedManagedCollisionCollection(
            *args, device=device, session=self._session, **options
        )


SHARDERS: tuple[type[ModuleSharder[Any]], ...] = (
    CodedEmbeddingBagCollectionSharder,
    CodedEmbeddingCollectionSharder,
    CodedFusedEmbeddingBagCollectionSharder,
    CodedManagedCollisionEmbeddingBagCollectionSharder,
    CodedManagedCollisionEmbeddingCollectionSharder,
    FeatureProcessedEmbeddingBagCollectionSharder,
)


def all_sharders(
    session: Session,
    *,
    fused_params: Mapping[str, Any] | None = None,
    use_index_dedup: bool = False,
    sharded_module_order_overwrite: Sequence[str] | None = None,
    subclasses: Sequence[type[ModuleSharder[Any]]] = (),
) -> list[ModuleSharder[Any]]:
    """Make a sharder for each module of TorchRec that shards embeddings.

    Args:
        fused_params: parameters of the fused optimizer, as TorchRec's sharders take them
        use_index_dedup: whether collections of sequences send each id once (TorchRec's option)
        sharded_module_order_overwrite: order of sharding types in collections of bags (TorchRec's
            option)
        subclasses: classes that replace the classes of SHARDERS that they extend
    Raises: ValueError: fused_params with a key that is no name, a subclass of none of SHARDERS, or
        several subclasses of one.
    """
    for key in fused_params or {}:
        if not isinstance(key, str):
            raise ValueError(f"fused_params: {key!r}: expected names of parameters")
    classes = _classes(subclasses)
    options: dict[str, Any] = {"fused_params": None if fused_params is None else dict(fused_params)}
    of_bags = dict(options)
    if sharded_module_order_overwrite is not None:
        of_bags["sharded_module_order_overwrite"] = list(sharded_module_order_overwrite)
    bags, nested_bags = (
        classes[CodedEmbeddingBagCollectionSharder](session, is_nested=is_nested, **of_bags)
        for is_nested in (False, True)
    )
    sequences, nested_sequences = (
        classes[CodedEmbeddingCollectionSharder](
            session, is_nested=is_nested, use_index_dedup=use_index_dedup, **options
        )
        for is_nested in (False, True)
    )
    collisions = CodedManagedCollisionCollectionSharder(session)
    return [
        bags,
        sequences,
        classes[CodedFusedEmbeddingBagCollectionSharder](session),
        classes[CodedManagedCollisionEmbeddingBagCollectionSharder](nested_bags, collisions),
        classes[CodedManagedCollisionEmbeddingCollectionSharder](nested_sequences, collisions),
        classes[FeatureProcessedEmbeddingBagCollectionSharder](nested_bags),
    ]


def _classes(
    subclasses: Sequence[type[ModuleSharder[Any]]],
) -> dict[type[ModuleSharder[Any]], Callable[..., Any]]:
    """Return for each class of SHARDERS the one to make, itself or the subclass that is given.

    Raises: ValueError: a class that extends none of SHARDERS, or two that extend the same.
    """
    classes: dict[type[ModuleSharder[Any]], Callable[..., Any]] = {c: c for c in SHARDERS}
    for chosen in subclasses:
        bases = [base for base in SHARDERS if issubclass(chosen, base)]
        if not bases:
            raise ValueError(
                f"subclasses: {chosen!r} extends none of "
                f"{', '.join(base.__name__ for base in SHARDERS)}"
            )
        if classes[bases[0]] is not bases[0]:
            raise ValueError(
                f"subclasses: {classes[bases[0]]!r} and {chosen!r} both extend {bases[0].__name__}"
            )
        classes[bases[0]] = chosen
    return classes
