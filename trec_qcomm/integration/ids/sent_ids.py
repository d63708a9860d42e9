"""Pack the ids that input dists send, if the config says so; count and note them.

PackedBatch is a batch that TorchRec's input dist sends as packed messages, bit by bit. TorchRec
calls four public methods of a KeyedJaggedTensor: `dist_labels`, `dist_splits` and `dist_tensors`
say what to send, and `dist_init` makes a batch of what came. PackedBatch overrides them and changes
nothing but the bytes. The splits exchange carries the sizes of the messages, pipelines fuse it as
ever, and TorchRec's own permutation follows. PackedBatch announces one more split than it sends
tensors: the number of ids, which tells sequence shardings how many rows come back.

**Order.** If equal bags are merged before the input dist, distinct bags of features with one id a
bag are first sorted by id (`ops.batch.unique.sort_by_id`). A segment then holds steps and no
numbers. The samples' owner keeps the inverse, and the order is not sent. The order changes no bit
of a training with codecs that draw no noise:
- forward: the row of a bag does not depend on its place, and the inverse finds it.
- backward: the gradient of a bag is the sum over its samples in their order, whatever its place.
- at the table: a row's gradients are added rank by rank and feature by feature. Within one rank and
  feature an id occurs once. If the feature's bags were not merged, it occurs in the order of its
  samples, because the sort is stable.
- codecs: rows are coded one by one, or by the range of all rows of a segment, which has no order.

Stochastic rounding draws its noise by the place of a row, so it draws other noise of the same
distribution. Entropy-coded sizes may differ.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trec_qcomm.comm.peers import Peers
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.core.transfer import upload
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.integration.compat.private import (
    inner_dist,
    input_dist_tensors,
    process_group,
    set_length_per_key,
)
from trec_qcomm.integration.ids.batch_notes import SentIds, notes_on
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.wire.id_messages import PackedMessages, pack, unpack

_FIRST = int64_tensor([0])  # ids are counted under one table


class PackedBatch(KeyedJaggedTensor):
    """KeyedJaggedTensor that an input dist sends packed, and that is otherwise the given batch."""

    _ranks: ClassVar[Sequence[int]]  # of the group that it is sent in
    _dtypes: ClassVar[tuple[torch.dtype, torch.dtype]]  # of ids and lengths, as sent last
    _packed: PackedMessages
    _plain_splits: list[list[int]]

    @classmethod
    def view_of(cls, features: KeyedJaggedTensor) -> "PackedBatch":
        """Return the batch as a PackedBatch, which shares all tensors."""
        batch = cls.__new__(cls)
        batch.__dict__.update(features.__dict__)
        cls._dtypes = batch.values().dtype, batch.lengths().dtype
        return batch

    def dist_labels(self) -> list[str]:
        """Return the names of the tensors that are sent, and a name for the numbers of ids."""
        weights = [] if self.weights_or_none() is None else ["weights"]
        return ["packed", *weights, "values"]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def dist_splits(self, key_splits: list[int]) -> list[list[int]]:
        """Pack the batch for all ranks. Return the splits of the sent tensors, and of the ids.

        Args: key_splits: P ints, the number of features of each rank
        """
        bags = Bags(
            self.values().contiguous(),
            self.lengths().contiguous(),
            int64_tensor(self.stride_per_key()),
        )
        even_bags = None if self.variable_stride_per_key() else self.stride()
        self._packed = pack(bags, key_splits, even_bags=even_bags)
        set_length_per_key(self, self._packed.num_ids)  # else the host would wait for a GPU again
        self._plain_splits = super().dist_splits(key_splits)
        num_ids = self._plain_splits[1]
        weights = [] if self.weights_or_none() is None else [num_ids]
        return [self._packed.nbytes, *weights, num_ids]

    def dist_tensors(self) -> list[Tensor]:
        """Return the tensors to send: messages, and unchanged weights. Call `dist_splits` first."""
        weights = self.weights_or_none()
        return [self._packed.buffer, *([] if weights is None else [weights])]

    def unpacked_nbytes(self, rank: int) -> tuple[int, int]:
        """Return the bytes and the number of sizes that TorchRec would send to other ranks."""
        sizes = [self.lengths().element_size(), self.values().element_size()]
        sizes += [8] if self.variable_stride_per_key() else []
        weights = self.weights_or_none()
        if weights is not None:
            sizes.append(weights.element_size() * (weights.numel() // max(len(weights), 1)))
        pairs = zip(self._plain_splits, sizes, strict=True)
        return sum((sum(split) - split[rank]) * size for split, size in pairs), len(sizes)

    @classmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def dist_init(
        cls,
        keys: list[str],
        tensors: Sequence[Tensor],
        variable_stride_per_key: bool,
        num_workers: int,
        recat: Tensor | None,
        stride_per_rank: list[int] | None,
        stagger: int = 1,
    ) -> Any:
        """Return the batch that came from all ranks, as TorchRec makes it of unpacked tensors.

        Args: tensors: messages, and weights if there are any.  The other arguments are TorchRec's.
        Raises: CorruptFrameError: naming the sender and the feature.
        """
        even_bags = None if variable_stride_per_key else stride_per_rank
        bags = unpack(tensors[0], cls._ranks, keys, even_bags, cls._dtypes)
        strides = upload(tensors[0].device, bags.num_bags) if variable_stride_per_key else []
        plain = [bags.lengths, bags.ids, *strides, *tensors[1:]]
        return KeyedJaggedTensor.dist_init(
            keys, plain, variable_stride_per_key, num_workers, recat, stride_per_rank, stagger
        )


def record_sent_ids(input_dist: Any, traffic: Traffic, packs: Callable[[], bool]) -> None:
    """Count, from now on, what a TorchRec input dist sends, and note it (BatchNotes.sent).

    Args: packs: function that returns whether ids are sent packed now.

    Lengths, ids and weights to other ranks are counted, and the sizes sent before them. The hook
    sits on the inner all-to-all, because TrainPipelineSparseDist replaces its `forward` (and not
    `__call__`).
    """
    inner = inner_dist(input_dist)
    pg = process_group(inner)
    rank, world_size = pg.rank(), pg.size()

    class GroupBatch(PackedBatch):  # TorchRec asks the class of a batch, which must know the ranks
        _ranks = Peers(pg).ranks

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before(_inner: nn.Module, args: tuple[KeyedJaggedTensor]) -> tuple[KeyedJaggedTensor]:
        return (GroupBatch.view_of(args[0]),) if packs() else args

    def after(_inner: nn.Module, args: tuple[KeyedJaggedTensor], awaitable: Any) -> None:
        (features,) = args
        splits_and_tensors, num_sizes = input_dist_tensors(awaitable)
        wire = plain = sum(
            (sum(splits) - splits[rank]) * tensor.element_size()
            for splits, tensor in splits_and_tensors
        )
        plain_sizes = num_sizes
        if isinstance(features, PackedBatch):
            plain, plain_sizes = features.unpacked_nbytes(rank)
        has_stride = not features.variable_stride_per_key()  # which is sent, too
        raw = int64_tensor([plain + 8 * (plain_sizes + has_stride) * (world_size - 1)])
        count = int64_tensor([wire + 8 * (num_sizes + has_stride) * (world_size - 1)])
        traffic.add_bytes(_FIRST, raw, count, 0)
        notes = notes_on(input_dist)
        if notes.repetition is not None:
            left_out = round(plain * (notes.repetition.nbytes_ratio - 1))
            traffic.add_left_out(_FIRST, int64_tensor([left_out]))
        notes.sent = SentIds(
            features.length_per_key(), features.stride_per_key(), features.lengths()
        )

    if world_size > 1:  # TorchRec sends nothing to itself
        inner.register_forward_pre_hook(before)
    inner.register_forward_hook(after)


def count_remapped_ids(output_dist: Any, traffic: Traffic) -> None:
    """Count, from now on, what a managed collision module sends to return remapped ids."""

    def after(_dist: nn.Module, args: tuple[Tensor, Any], _awaitable: Any) -> None:
        ids, context = args
        rank = process_group(inner_dist(output_dist)).rank()
        splits = context.output_splits
        num_ids = sum(splits) - splits[rank]
        count = int64_tensor([num_ids * ids.element_size() * (ids.numel() // max(len(ids), 1))])
        traffic.add_bytes(_FIRST, count, count, 0)

    output_dist.register_forward_hook(after)
