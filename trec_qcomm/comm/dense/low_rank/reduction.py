"""LowRankReduction: an all-reduce that sends two factors of low rank in place of some matrices.

With M_w the gradient of rank w, divided by N, and its residual, and R what came last time:

    L = sum of R M_w',  its rows made orthonormal          first message, [r, n]
    C = sum of L M_w                                       second message, [r, m]
    result = L' C,  the projection of the sum M of all M_w on what L spans
    residual_w = M_w - L' S_w,  where S_w is what rank w added to C;  R = C

Codecs change both messages. A changed L is just another basis. What codecs keep back of C is part
of S_w, on the ranks where it was kept back (LostValues), so it ends in the residuals, too: the sums
of S_w and of what came are the same, and after any number of steps the sum of the results differs
from the sum of the gradients by the last residuals alone. Unlike M_w less the result, which has
that property as well, M_w - L' S_w does not grow with the differences between ranks.

All ranks end with equal bits: both messages end so on all ranks, and what follows from them is
computed by `exact`. What a rank computes of its own gradients need not be the same elsewhere.

Vectors and matrices of which factors are no smaller travel in the first message, as without this
class. So a bucket takes twice the number of messages of an ordinary all-reduce.

Knows: factors, all-reduces. Does not know: codecs, DDP, process groups.
Source: Vogels et al. 2019 (PowerSGD: one power iteration a step from the last factor, feedback).
Ours: that codecs' losses go into the residual, and equal bits by exact products.
Shapes: N ranks; E values of a bucket; B matrices [n, m] of one shape, r their rank.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trec_qcomm.comm.dense.all_reduce import WHOLE, AllReduceOptions, Part, Reduction
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION, Site
from trec_qcomm.comm.dense.low_rank.exact import orthonormal_rows, write_products
from trec_qcomm.comm.dense.low_rank.matrices import Matrices, MatrixBatch, MatrixShape, products
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.core.codec import Contract
from trec_qcomm.core.counters import Traffic
from trec_qcomm.wire import frame


class _Messages(NamedTuple):
    """The two all-reduces of one bucket.

    Args:
        others: numbers of the parameters that are not sent as factors.
        first, second: shapes of what is sent.
        buffers: memory of both, float32, and for what codecs lose of the second.
    """

    others: tuple[int, ...]
    first: tuple[ParameterShape, ...]
    second: tuple[ParameterShape, ...]
    buffers: tuple[Tensor, Tensor, Tensor]


class LowRankReduction(Reduction):
    """All-reduces of one rank, some parameters of which are sent as factors; see the module."""

    matrices: Matrices

    def __init__(
        self,
        options: AllReduceOptions,
        rank: int,
        world_size: int,
        traffic: Traffic,
        *,
        matrices: Sequence[MatrixShape],
        **others: Any,
    ) -> None:
        """Prepare for all-reduces.

        Args: matrices: the parameters that are sent as factors.  others: keyword arguments of
            Reduction; its `parameters` has the factors in their place.
        """
        super().__init__(options, rank, world_size, traffic, **others)
        self.matrices = Matrices(matrices, options.seed)
        self._messages: dict[tuple[str, ...], _Messages] = {}
        self._wide: Tensor | None = None

    def takes(self, parameter: str, sites: Iterable[Site]) -> bool:
        return parameter in self.matrices.shapes or super().takes(parameter, sites)

    def dealt(self, parameter: ParameterShape, total: Tensor) -> dict[Site, Tensor]:
        if parameter.name in self.matrices.shapes:  # all ranks keep residuals of whole matrices
            return {CONTRIBUTION: total / self.world_size}
        return super().dealt(parameter, total)

    def start(
        self,
        parameters: Sequence[ParameterShape],
        bucket: Tensor,
        *,
        exact: bool = False,
        once: bool = False,
        is_last: bool = True,
        part: Part = WHOLE,
    ) -> Rounds:
        """Return the rounds in which `bucket` becomes the mean over ranks; see Reduction.start.

        Args: parameters: shapes of the bucket's whole parameters, not of factors.
        """
        has_some = any(parameter.name in self.matrices.shapes for parameter in parameters)
        if exact or not has_some:
            return super().start(
                parameters, bucket, exact=exact, once=once, is_last=is_last, part=part
            )
        messages = self._messages_of(parameters, bucket)
        first, second, lost = messages.buffers
        is_exact = all(
            self.options.codings[shape.coding].codec.contract is Contract.EXACT
            for shape in messages.second
        )
        # Both are numbered now, in the order of the buckets, and run later.
        before = Part(is_divided=True, raw_numel=len(bucket))
        after = Part(is_divided=True, raw_numel=0, lost=None if is_exact else lost)
        rounds = (
            super().start(messages.first, first, is_last=False, part=before),
            super().start(messages.second, second, is_last=is_last, part=after),
        )
        return self._both(messages, parameters, bucket, rounds)

    def _messages_of(self, parameters: Sequence[ParameterShape], bucket: Tensor) -> _Messages:
        names = tuple(parameter.name for parameter in parameters)
        if names not in self._messages:
            numbers = [n for group in self.matrices.groups(names) for n in group]
            shapes = [self.matrices.shapes[names[n]] for n in numbers]
            others = tuple(sorted(set(range(len(names))) - set(numbers)))
            first = (*(parameters[n] for n in others), *(shape.left for shape in shapes))
            second = tuple(shape.right for shape in shapes)
            sizes = [sum(s.numel for s in sent) for sent in (first, second, second)]
            memory, into, lost = (bucket.new_zeros(size) for size in sizes)
            # Buckets that had these parameters before will not come again.
            for other in [key for key in self._messages if set(key) & set(names)]:
                del self._messages[other]
            self._messages[names] = _Messages(others, first, second, (memory, into, lost))
        return self._messages[names]

    def _both(
        self,
        messages: _Messages,
        parameters: Sequence[ParameterShape],
        bucket: Tensor,
        rounds: tuple[Rounds, Rounds],
    ) -> Rounds:
        """Yield the rounds of both messages."""
        first, second, lost = messages.buffers
        batches = self.matrices.batches([p.name for p in parameters], bucket.device)
        parts = torch.split(bucket.div_(self.world_size), [p.numel for p in parameters])
        others = [parts[n] for n in messages.others]
        matrices = [b.add_residuals([parts[n] for n in b.numbers]) for b in batches]
        lefts = [products(b.right, m.mT) for b, m in zip(batches, matrices, strict=True)]
        _pack([*others, *lefts], first)
        yield from rounds[0]
        sums = _unpacked(first, [*others, *lefts])
        for part, came in zip(others, sums, strict=False):
            part.copy_(came)
        lefts = _orthonormal(sums[len(others) :])
        rights = [products(left, m) for left, m in zip(lefts, matrices, strict=True)]
        _pack(rights, second)
        yield from rounds[1]
        sums = _unpacked(second, rights)
        extremes = []
        for batch, left, came in zip(batches, lefts, sums, strict=True):
            size = batch.shapes[0].num_rows, batch.shapes[0].num_columns
            results = [parts[number].view(size) for number in batch.numbers]
            write_products(left, came, results, self._wide_for(batch))
            extremes += [torch.stack(torch.aminmax(result)) for result in results]  # NaN, if any
        ok = torch.cat([first, second, *extremes]).isfinite().all()
        shares = _unpacked(lost, rights)  # zero where codecs lose nothing
        for n, batch in enumerate(batches):
            batch.note(matrices[n], lefts[n], rights[n] - shares[n], sums[n], ok)

    def _wide_for(self, batch: MatrixBatch) -> Tensor | None:
        """Return memory for one of the products on a CPU, the same in every step."""
        if frame.is_on_gpu(batch.right):
            return None
        numel = batch.shapes[0].numel
        if self._wide is None or self._wide.numel() < numel:
            self._wide = torch.empty(numel, dtype=torch.float64)
        return self._wide


def _pack(tensors: Sequence[Tensor], memory: Tensor) -> None:
    """Write tensors one behind the other."""
    torch.cat([tensor.flatten() for tensor in tensors], out=memory)


def _unpacked(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of memory, one behind the other, in the shapes of other tensors."""
    parts = torch.split(memory, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def _orthonormal(lefts: Sequence[Tensor]) -> list[Tensor]:
    """Return orthonormal rows of each, those of one rank together. Args: [B, r, n] float32 each."""
    by_rank: dict[int, list[int]] = {}
    for number, left in enumerate(lefts):
        by_rank.setdefault(left.shape[1], []).append(number)
    made: Mapping[int, Tensor] = {
        number: rows
        for numbers in by_rank.values()
        for number, rows in zip(numbers, orthonormal_rows([lefts[n] for n in numbers]), strict=True)
    }
    return [made[number] for number in range(len(lefts))]
