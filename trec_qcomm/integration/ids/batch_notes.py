"""BatchNotes: what this rank knows about the ids of one batch in one sharding.

Notes are written in the input dist and before the lookup, and read in the output dist. TorchRec
hands a sharding context along with each batch, also through pipelines. So the notes are kept in an
attribute of the context. An input dist has no context: its notes are kept in the same attribute of
the dist, until the sharded module hands them over.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.ops.batch.unique import UniqueBags

_ATTRIBUTE = "trec_qcomm_notes"


@dataclass(frozen=True, eq=False)
class SentIds:
    """Ids that one rank sent the owners of the tables, for each rank and each of its features.

    Args:
        num_ids: number of ids of each rank's feature
        num_bags: number of bags of each rank's feature
        lengths: [bags] int, ids in each bag, in the same order
    """

    num_ids: list[int]
    num_bags: list[int]
    lengths: Tensor


@dataclass(frozen=True, eq=False)
class IdRepetition:
    """How often the ids of a batch repeat.

    Args:
        nbytes_ratio: bytes of ids, lengths and weights of the whole batch, over the bytes of the
            distinct ones
        by_feature: [F] float64, ids of each feature over its distinct ids; empty for pooled rows
    """

    nbytes_ratio: float
    by_feature: Tensor


def repetition(
    whole: KeyedJaggedTensor, distinct: KeyedJaggedTensor, by_feature: Tensor | None = None
) -> IdRepetition:
    """Return how often ids repeat, without waiting for a GPU."""
    ratio = _nbytes(whole) / max(_nbytes(distinct), 1)
    none = torch.zeros(0, dtype=torch.float64)
    return IdRepetition(max(ratio, 1.0), none if by_feature is None else by_feature)


def _nbytes(features: KeyedJaggedTensor) -> int:
    tensors = [features.values(), features.lengths()]
    weights = features.weights_or_none()
    tensors += [] if weights is None else [weights]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True, eq=False)
class MergedBags:
    """Distinct bags of a batch's features.

    Args:
        bags: the distinct bags, and which of them each sample has
        in_lookup: whether only they are looked up; else their rows are selected after the lookup
        noted: an extension's notes of them; None: nothing
    """

    bags: UniqueBags
    in_lookup: bool
    noted: Any = None

    @property
    def batch_size(self) -> int:
        """Number of samples of this rank's batch before its bags were merged."""
        return self.bags.inverse.numel() // max(len(self.bags.counts), 1)


@dataclass(eq=False)
class BatchNotes:
    """Notes on one batch in one sharding.

    Args:
        sent: the ids that the input dist sent; None if the dist is not one of ours
        merged: the distinct bags; None if no bags are merged
        received: the ids after the input dist, which this rank looks up; None before that
        repetition: how often this rank's ids repeat; None if none are merged before they are sent
        row_choice: the rows that a row-wise sharding sends and expects (embedding.dists.RowChoice);
            None if they are not being chosen
        on_lookup: function to call when the rows are looked up (ids.merge_pause); None: nothing
    """

    sent: SentIds | None = None
    merged: MergedBags | None = None
    received: KeyedJaggedTensor | None = None
    repetition: IdRepetition | None = None
    row_choice: Any = None
    on_lookup: Callable[[], None] | None = None


def notes_on(carrier: Any) -> BatchNotes:
    """Return the notes on an input dist or a sharding context; make them if there are none."""
    notes: BatchNotes | None = getattr(carrier, _ATTRIBUTE, None)
    if notes is None:
        notes = BatchNotes()
        if carrier is not None:
            setattr(carrier, _ATTRIBUTE, notes)
    return notes


def hand_over_notes(sharding_contexts: Iterable[Any], input_dists: Iterable[Any]) -> None:
    """Move each input dist's notes to its context, before notes of the next batch replace them.

    A batch of distinct bags has its own size for every feature; these sizes are set in the context.
    """
    for context, input_dist in zip(sharding_contexts, input_dists, strict=True):
        notes = notes_on(input_dist)
        setattr(context, _ATTRIBUTE, notes)
        setattr(input_dist, _ATTRIBUTE, None)
        if notes.merged is not None and notes.merged.in_lookup:
            context.variable_batch_per_feature = True
            context.batch_size_per_feature_pre_a2a = notes.merged.bags.counts.tolist()


def note_received(sharding_contexts: Iterable[Any], received: Iterable[Any]) -> None:
    """Note for each sharding the ids that this rank looks up, and call what waits for them.

    TorchRec notes the sizes of a batch of distinct bags in its context when the ids arrive. But a
    pipeline that goes on after `detach` gives a batch that it had sent a new context, without the
    sizes.
    """
    for context, ids in zip(sharding_contexts, received, strict=True):
        if context.variable_batch_per_feature and not context.batch_size_per_rank_per_feature:
            sizes = zip(*ids.stride_per_key_per_rank(), strict=True)
            context.batch_size_per_rank_per_feature = [list(of_rank) for of_rank in sizes]
        notes = notes_on(context)
        notes.received = ids
        if notes.on_lookup is not None:
            notes.on_lookup()
