"""Ids of the rows that a table-wise all-to-all sends, for residuals that are kept by id.

The samples' rank knows the ids of its distinct bags, and sends the bags' gradients. A table's rank
knows the ids that came to it, and sends the ids' rows.
Shapes: F features, P ranks, N ids, B bags, U distinct bags.
"""

from typing import Any

import torch
from torch import Tensor, nn

from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.config import Config
from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.core.transfer import upload
from trec_qcomm.ext.feedback.residuals import NO_ID, RowFeedbackTransform
from trec_qcomm.ext.feedback.rule import RowFeedback
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.integration.ids.bag_merging import BagMerging, Groups, MergePoint
from trec_qcomm.integration.ids.batch_notes import notes_on
from trec_qcomm.integration.ids.lookup_rows import batch_sizes
from trec_qcomm.ops.batch.unique import UniqueBags


class RowFeedbacks:
    """Residuals of the rows of one sharding, by id, in both directions.

    Args:
        config: the session's config.
        groups_per_rank: tables of each rank, grouped as TorchRec looks them up.
        merging: the sharding's merging of equal bags.
    Raises: ValueError: error_feedback of a table with weights, or of rows whose equal bags are
        merged after the lookup.
    """

    def __init__(self, config: Config, groups_per_rank: Groups, merging: BagMerging) -> None:
        self._slots: dict[str, dict[str, int]] = {"forward": {}, "backward": {}}
        for group in (group for groups in groups_per_rank for group in groups):
            for table in group.embedding_tables:
                feedback = config.rule_for(table.name).error_feedback
                if feedback is None:
                    continue
                assert isinstance(feedback, RowFeedback)
                where = f"error_feedback of table {table.name!r}"
                if group.is_weighted:
                    raise ValueError(
                        f"{where}: its ids have weights; leave error_feedback out for it"
                    )
                if feedback.forward_rows and merging.point is not MergePoint.INPUT_DIST:
                    raise ValueError(
                        f"{where}: forward_rows: its lookups do not take distinct bags; "
                        "allowed here: backward_rows"
                    )
                for direction, slots in self._slots.items():
                    num_rows = feedback.num_rows(direction)
                    slots[table.name] = min(num_rows, table.num_embeddings)

    def transform_of(self, collective: RowCollective) -> RowFeedbackTransform:
        """Return the transform of a collective of this sharding."""
        return RowFeedbackTransform(collective.plan, self._slots)

    def ids_of(self, features: KeyedJaggedTensor, bags: UniqueBags) -> Tensor:
        """Return [U] int64, the id of each distinct bag of one id, and NO_ID for all other bags."""
        return ids_of_bags(features.values(), features.lengths(), bags.first)

    def watch(self, output_dist: nn.Module, collective: RowCollective) -> None:
        """Tell the collective's transform, from now on, the ids of the rows of each exchange."""

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def before(_dist: nn.Module, args: tuple[Any, ...]) -> None:
            context: Any = args[1] if len(args) > 1 else None
            notes, transform = notes_on(context), collective.transform
            if not isinstance(transform, RowFeedbackTransform):  # as in `RowCollective.replacing`
                return
            transform.ids = None
            if notes.merged is None or notes.received is None:
                return
            transform.ids = {"backward": notes.merged.noted}
            if "forward" in transform.residuals:
                batches, num_ranks = context.batch_size_per_rank, collective.world_size
                sizes = batch_sizes(notes.received, batches, num_ranks)
                transform.ids["forward"] = _ids_to_send(notes.received, sizes)

        output_dist.register_forward_pre_hook(before)


def ids_of_bags(values: Tensor, lengths: Tensor, bags: Tensor) -> Tensor:
    """Return [U] int64, the id of each of these bags that has one id, and NO_ID for the rest.

    Args: values: [N], ids.  lengths: [B], ids of each bag.  bags: [U] int64, indices of bags.
    """
    if not len(values):
        return torch.full_like(bags, NO_ID)
    ends = torch.cumsum(lengths, 0)[bags]
    ids = values[(ends - 1).clamp(min=0)].to(torch.int64)
    return torch.where(lengths[bags] == 1, ids, NO_ID)


def _ids_to_send(received: KeyedJaggedTensor, sizes: Tensor) -> Tensor:
    """Return [B] int64, the ids of the bags for each rank, for each feature.

    Args: received: the bags for each feature, for each rank.  sizes: [F, P] int64, how many.
    """
    first = exclusive_cumsum(sizes.reshape(-1))[:-1].view(sizes.shape).T.reshape(-1)
    counts = sizes.T.reshape(-1)
    ends = exclusive_cumsum(counts)
    bags = torch.repeat_interleave(first - ends[:-1], counts) + torch.arange(int(ends[-1]))
    lengths = received.lengths()
    (order,) = upload(lengths.device, bags)
    return ids_of_bags(received.values(), lengths, order)
