"""Watch: which rows of a model's tables batches look up, noted before an optimizer changes them.

It hooks the kernels themselves, so it sees what they will change under any sharding and input dist.
A batch whose backward is yet to come while an average is taken, as in pipelines that look up the
next batch early, keeps its rows for the next average.

Knows: FBGEMM's kernels, banks. Does not know: shardings, averages.
Shapes: F features of a kernel; n ids of a batch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from trec_qcomm.comm.replicas.banks import TouchedRows
from trec_qcomm.core.segments import exclusive_cumsum, int64_tensor
from trec_qcomm.integration.replicas.tables import Kernel


class _Lookup:
    """One lookup of a batch, which lives as long as its autograd graph.

    Args: rows: pairs of a bank's number and [n] int64 rows.
    """

    def __init__(self, rows: Sequence[tuple[int, Tensor]]) -> None:
        self.rows, self.is_pending = rows, True

    def on_gradient(self, _gradient: Tensor) -> None:
        """Note that backward has come to the kernel."""
        self.is_pending = False


class Watch:
    """Watch over the kernels of a model."""

    def __init__(self, kernels: Sequence[Kernel], touched: Sequence[TouchedRows]) -> None:
        """Hook the kernels. Args: touched: the rows of each bank, which are noted there."""
        self._touched = touched
        self._lookups: WeakSet[_Lookup] = WeakSet()
        self._handles = []
        for kernel in kernels:
            see = partial(self._see, _Rows(kernel))
            handle = kernel.module.register_forward_hook(see, with_kwargs=True)
            self._handles.append(handle)

    def _see(
        self, rows_of: Callable[..., Any], _module: Any, args: Any, options: Any, output: Any
    ) -> None:
        if not torch.is_grad_enabled():
            return
        rows = rows_of(*args, **options)
        self._note(rows)
        if output.requires_grad:
            lookup = _Lookup(rows)
            output.register_hook(lookup.on_gradient)
            self._lookups.add(lookup)

    def _note(self, rows: Sequence[tuple[int, Tensor]]) -> None:
        for bank, of_bank in rows:
            self._touched[bank].touch(of_bank)

    def note_pending(self) -> None:
        """Note the rows of lookups whose backward is yet to come. Call it after an average."""
        for lookup in list(self._lookups):
            if lookup.is_pending:
                self._note(lookup.rows)
            else:
                self._lookups.discard(lookup)

    def stop(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()


class _Rows:
    """Function from the arguments of a kernel's forward to the rows that it looks up."""

    def __init__(self, kernel: Kernel) -> None:
        self._features = kernel.features
        places = kernel.features
        device = next(kernel.module.buffers()).device
        self._first = int64_tensor(place.first for place in places).to(device)
        self._num_rows = int64_tensor(place.num_rows for place in places).to(device)
        self._bank = [place.bank for place in places]
        self._banks = sorted(set(self._bank))

    def __call__(
        self,
        indices: Tensor,
        offsets: Tensor,
        *_: Any,
        batch_size_per_feature_per_rank: Sequence[Sequence[int]] | None = None,
        **_options: Any,
    ) -> list[tuple[int, Tensor]]:
        """Return pairs of a bank's number and [n] int64 rows. Waits for a GPU.

        The arguments are those of SplitTableBatchedEmbeddingBagsCodegen.forward. An id that the
        table does not have stands for its row 0, which is what kernels look up then.
        """
        ends = self._ends(offsets, batch_size_per_feature_per_rank)
        counts = ends.diff()
        begin, end = int(ends[0]), int(ends[-1])
        ids = indices[begin:end].long()
        first, limit = (
            v.repeat_interleave(counts, output_size=end - begin)
            for v in (self._first, self._num_rows)
        )
        rows = torch.where((ids < 0) | (ids >= limit), 0, ids) + first
        banks = self._banks
        if len(banks) == 1:
            return [(banks[0], rows)]
        parts = torch.split(rows, counts.tolist())
        return [
            (bank, torch.cat([p for p, b in zip(parts, self._bank, strict=True)
                              if b == bank]))
            for bank in banks
        ]  # fmt: skip

    def _ends(self, offsets: Tensor, batch_sizes: Sequence[Sequence[int]] | None) -> Tensor:
        """Return [F + 1] int64, where the ids of each feature begin, and the end of the last."""
        num_features = len(self._features)
        if batch_sizes is None:
            sizes = torch.full((num_features,), (len(offsets) - 1) // num_features)
        else:
            sizes = int64_tensor(sum(of_ranks) for of_ranks in batch_sizes)
        return offsets[exclusive_cumsum(sizes).to(offsets.device)].long()
