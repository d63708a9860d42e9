"""LowRankReduction: an all-reduce that sends two factors of low rank in place of some matrices.

M_w is the gradient of rank w, divided by N, plus its residual. R is the C of the last step.

    L = sum of R M_w',  its rows made orthonormal          first message, [r, n]
    C = sum of L M_w                                       second message, [r, m]
    result = L' C,  the projection of the sum M of all M_w on what L spans
    residual_w = M_w - L' S_w,  where S_w is what rank w added to C;  R = C

Codecs change both messages. A changed L is just another basis. A codec's error in C is part of S_w
on the rank that encoded (LostValues), so it ends in the residuals, too. The sum of all S_w equals
the C that came. So after any number of steps the sum of the results differs from the sum of the
gradients by the last residuals alone. M_w minus the result would have that property as well, but it
grows with the differences between ranks; M_w - L' S_w does not.

All ranks end with equal bits if their machines are equal: all ranks receive the same two messages
and compute the result alike. `comm.dense.replica_check` finds ranks that differ.

Vectors, and matrices whose factors are no smaller, travel in the first message, as without this
class. So a bucket takes twice the number of messages of an ordinary all-reduce.

Knows: factors, all-reduces. Does not know: codecs, DDP, process groups.
Source: Vogels et al. 2019 (PowerSGD: one power iteration a step from the last factor, feedback).
Ours: the codecs' errors go into the residual.
Shapes: N ranks; E values of a bucket; matrices [n, m], r their rank.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trec_qcomm.comm.dense.all_reduce import Part, Reduction
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION, Site
from trec_qcomm.comm.dense.low_rank.matrices import (
    Matrices,
    MatrixShape,
    largest_magnitude,
    orthonormal_rows,
)
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.core.codec import Contract


class _Messages(NamedTuple):
    """The two all-reduces of one bucket.

    Args:
        others, matrices: numbers of the parameters that are not sent as factors, and of those that
            are.
        first, second: shapes of what is sent.
        buffers: memory of both, float32, and for what codecs lose of the second.
    """

    others: tuple[int, ...]
    matrices: tuple[int, ...]
    first: tuple[ParameterShape, ...]
    second: tuple[ParameterShape, ...]
    buffers: tuple[Tensor, Tensor, Tensor]


class LowRankReduction(Reduction):
    """All-reduces of one rank that send some parameters as two factors."""

    matrices: Matrices

    def __init__(self, *args: Any, matrices: Sequence[MatrixShape], **options: Any) -> None:
        """Prepare for all-reduces.

        Args: matrices: the parameters that are sent as factors.  args, options: arguments of
            Reduction; `parameters` has the factors in place of these parameters.
        """
        super().__init__(*args, **options)
        self.matrices = Matrices(matrices, self.options.seed)
        self._messages: dict[tuple[str, ...], _Messages] = {}

    def takes(self, parameter: str, sites: Iterable[Site]) -> bool:
        return parameter in self.matrices.by_name or super().takes(parameter, sites)

    def dealt(self, parameter: ParameterShape, total: Tensor) -> dict[Site, Tensor]:
        if parameter.name in self.matrices.by_name:  # all ranks keep residuals of whole matrices
            return {CONTRIBUTION: total / self.world_size}
        return super().dealt(parameter, total)

    def start(
        self,
        parameters: Sequence[ParameterShape],
        bucket: Tensor,
        *,
        is_last: bool = True,
        **options: Any,
    ) -> Rounds:
        """Return the rounds in which `bucket` becomes the mean over ranks, as Reduction.start does.

        Args: parameters: shapes of the bucket's whole parameters, not of factors.
        """
        has_some = any(parameter.name in self.matrices.by_name for parameter in parameters)
        if not has_some:
            return super().start(parameters, bucket, is_last=is_last, **options)
        messages = self._messages_of(parameters, bucket)
        first, second, lost = messages.buffers
        codings = self.options.codings
        is_exact = all(codings[s.coding].codec.contract is Contract.EXACT for s in messages.second)
        # Both are numbered now, in the order of the buckets, and run later.
        before = Part(raw_numel=len(bucket))
        after = Part(raw_numel=0, lost=None if is_exact else lost)
        rounds = (
            super().start(messages.first, first, is_last=False, part=before),
            super().start(messages.second, second, is_last=False, part=after),
        )
        self.num_steps += is_last
        return self._decided(self._both(messages, parameters, bucket, rounds), is_last)

    def _messages_of(self, parameters: Sequence[ParameterShape], bucket: Tensor) -> _Messages:
        names = tuple(parameter.name for parameter in parameters)
        if names not in self._messages:
            kept = self.matrices.by_name
            numbers = tuple(n for n, name in enumerate(names) if name in kept)
            shapes = [kept[names[n]].shape for n in numbers]
            others = tuple(n for n, name in enumerate(names) if name not in kept)
            first = (*(parameters[n] for n in others), *(shape.left for shape in shapes))
            second = tuple(shape.right for shape in shapes)
            sizes = [sum(s.numel for s in sent) for sent in (first, second, second)]
            memory, into, lost = (bucket.new_zeros(size) for size in sizes)
            # Buckets that had these parameters before will not come again.
            for other in [key for key in self._messages if set(key) & set(names)]:
                del self._messages[other]
            self._messages[names] = _Messages(others, numbers, first, second, (memory, into, lost))
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
        bucket.div_(bucket.new_full((), self.world_size))  # CUDA inverts a Python number
        parts = torch.split(bucket, [p.numel for p in parameters])
        others = [parts[n] for n in messages.others]
        kept = [self.matrices.by_name[parameters[n].name] for n in messages.matrices]
        pairs = zip(messages.matrices, kept, strict=True)
        matrices = [parts[n].view_as(matrix.residual) for n, matrix in pairs]
        lefts = [keeper.begin(matrix) for keeper, matrix in zip(kept, matrices, strict=True)]
        _pack([*others, *lefts], first)
        yield from rounds[0]
        sums = _unpacked(first, [*others, *lefts])
        for part, came in zip(others, sums, strict=False):
            part.copy_(came)
        lefts = [orthonormal_rows(left) for left in sums[len(others) :]]
        rights = [torch.mm(left, matrix) for left, matrix in zip(lefts, matrices, strict=True)]
        _pack(rights, second)
        yield from rounds[1]
        # No value of a result is above r times the largest of what came.
        largest = [largest_magnitude(message) for message in (first, second)]
        ok = (largest[0] + largest[1] * max(keeper.shape.rank for keeper in kept)).isfinite()
        sums = _unpacked(second, rights)
        shares = _unpacked(lost, rights)  # zero where codecs lose nothing
        for n, keeper in enumerate(kept):
            keeper.end(matrices[n], lefts[n], rights[n] - shares[n], sums[n], ok)
            self._undecided.append((ok, keeper.keep))


def _pack(tensors: Sequence[Tensor], memory: Tensor) -> None:
    """Write tensors one behind the other."""
    torch.cat([tensor.flatten() for tensor in tensors], out=memory)


def _unpacked(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of memory, one behind the other, in the shapes of other tensors."""
    parts = torch.split(memory, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
