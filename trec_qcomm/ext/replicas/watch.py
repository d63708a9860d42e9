"""Watch: note the rows that batches look up, before an optimizer changes them.

It hooks the kernels themselves, so it sees the rows that they will change under any sharding and
input dist. The backward of a batch may come after an average, in pipelines that look up the next
batch early, or in a second backward through one graph. Such a batch counts for the next average,
too.

Knows: FBGEMM's kernels, banks. Does not know: shardings, averages.
Shapes: F features of a kernel; n ids of a batch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum, int64_tensor
from trec_qcomm.ext.replicas.tables import Kernel

_RowsOfBanks = Sequence[tuple[int, Tensor]]  # number of a bank, and [n] int64 rows


class Watch:
    """Watch over the kernels of a model. handles: hooks that `stop` removes."""

    def __init__(
        self, kernels: Sequence[Kernel], touch: Sequence[Callable[[Tensor], object]]
    ) -> None:
        """Hook the kernels.

        Args: touch: for each bank a function that notes rows, [n] int64 in any order; rows repeat.
        """
        self._touch = touch
        self._num_clearings = 0
        self.handles = []
        for kernel in kernels:
            see = partial(self._see, _Rows(kernel))
            handle = kernel.module.register_forward_hook(see, with_kwargs=True)
            self.handles.append(handle)

    def _see(
        self, rows_of: Callable[..., Any], _module: Any, args: Any, options: Any, output: Any
    ) -> None:
        if not torch.is_grad_enabled():
            return
        rows = rows_of(*args, **options)
        self._note(rows)
        if output.requires_grad:
            output.register_hook(partial(self._on_gradient, rows, self._num_clearings))

    def _on_gradient(self, rows: _RowsOfBanks, num_clearings: int, _gradient: Tensor) -> None:
        """Note a batch's rows again, before the kernel changes them, if they were forgotten."""
        if num_clearings != self._num_clearings:
            self._note(rows)

    def _note(self, rows: _RowsOfBanks) -> None:
        for bank, of_bank in rows:
            self._touch[bank](of_bank)

    def note_cleared(self) -> None:
        """Note that an average or a load forgot the touched rows.

        Rows of a batch count again when its gradient comes.
        """
        self._num_clearings += 1

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
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
