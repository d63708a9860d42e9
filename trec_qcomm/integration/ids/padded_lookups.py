"""Padding of FBGEMM's lookups on CPU, where every feature has a batch size of its own.

For such a batch FBGEMM 1.8 makes metadata of all bags. Only its CUDA kernels read them, but they
are made on CPU, too, with several torch operators for each bag. That took half of a step of 2 x
2048 samples of 26 features. Then the lookup pads every feature with empty bags to the size of the
largest one, and takes the rows out of the result. Here the same is done before and after the
lookup, so that FBGEMM sees a batch of one size. Results are equal bit for bit, forward and
backward.

Shapes: F features with rows of D_f values, W in all; P ranks; B bags in all, M of the largest one.
"""

from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trec_qcomm.comm.rows.selected import take_rows
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.integration.compat import SplitTableBatchedEmbeddingBagsCodegen
from trec_qcomm.ops.batch.rows import Rows, choose

_SIZES = "batch_size_per_feature_per_rank"


def pad_lookups(module: nn.Module) -> None:
    """From now on pad the batches of all fused lookups of pooled rows in the module, on CPU."""
    for lookup in module.modules():
        if isinstance(lookup, SplitTableBatchedEmbeddingBagsCodegen) and lookup.use_cpu:
            _pad(lookup)


def _pad(lookup: Any) -> None:
    dims: Tensor = lookup.D_offsets.diff().to(torch.int64)
    waiting: list[Tensor] = []  # sizes of the batch that is being looked up

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before(
        _lookup: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        waiting.clear()
        if options.get(_SIZES) is None or options.get("vbe_output") is not None:
            return None
        sizes = int64_tensor(chain.from_iterable(options[_SIZES])).view(len(dims), -1)
        waiting.append(sizes)
        offsets = padded_offsets(options["offsets"], sizes.sum(1))
        return args, options | {"offsets": offsets, _SIZES: None}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def after(
        _lookup: nn.Module, _args: tuple[Any, ...], _options: dict[str, Any], rows: Tensor
    ) -> Tensor | None:
        return take_rows(rows, rows_of(waiting.pop(), dims)) if waiting else None

    lookup.register_forward_pre_hook(before, with_kwargs=True)
    lookup.register_forward_hook(after, with_kwargs=True)


def padded_offsets(offsets: Tensor, num_bags: Tensor) -> Tensor:
    """Return [F M + 1] offsets, with empty bags behind the last bag of each feature.

    Args:
        offsets: [B + 1], where each bag's ids begin
        num_bags: [F] int64, bags of each feature
    """
    sizes, most = num_bags.numpy(), int(num_bags.numpy().max(initial=0))
    begins = sizes.cumsum() - sizes
    bags = np.minimum(np.arange(most), sizes[:, None]) + begins[:, None]
    every = np.append(bags.reshape(-1), len(offsets) - 1)
    return offsets.index_select(0, torch.from_numpy(every))


def rows_of(sizes: Tensor, dims: Tensor) -> Rows:
    """Return the rows of a result [M, W] that are no padding, for each rank, for each feature.

    Args:
        sizes: [F, P] int64, bags of each feature from each rank
        dims: [F] int64, the length of each feature's rows
    """
    bags, dim = sizes.numpy(), dims.numpy()
    width, columns = int(dim.sum()), dim.cumsum() - dim
    start = (bags.cumsum(1) - bags) * width + columns[:, None]
    by_rank = bags.T.ravel(), start.T.ravel(), np.full(bags.size, width), np.tile(dim, len(bags.T))
    num_rows, starts, stride, row_dims = (torch.from_numpy(numbers) for numbers in by_rank)
    every = torch.ones(int(bags.max(initial=0)), dtype=torch.bool)
    return choose(every, torch.zeros_like(num_rows), num_rows, starts, stride, row_dims)
