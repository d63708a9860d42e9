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

Where ranks are chosen while training (`ranks`), a few numbers a matrix travel with the second
message, and every so many steps, before the first bucket, ranks may change.

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
from trec_qcomm.comm.dense.low_rank.batch import MatrixBatch
from trec_qcomm.comm.dense.low_rank.exact import orthonormal_rows, write_products
from trec_qcomm.comm.dense.low_rank.matrices import Matrices
from trec_qcomm.comm.dense.low_rank.products import products
from trec_qcomm.comm.dense.low_rank.ranks import NUM_PROBES, energies_of, probe, signs
from trec_qcomm.comm.dense.low_rank.shapes import PROBES, MatrixShape
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.comm.streams import side_stream
from trec_qcomm.core.codec import Contract
from trec_qcomm.core.counters import Traffic
from trec_qcomm.wire import frame


class _Messages(NamedTuple):
    """The two all-reduces of one bucket.

    Args:
        others: numbers of the parameters that are not sent as factors.
        first, second: shapes of what is sent; the second has the probes of all matrices last.
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
        self._messages: dict[tuple[tuple[str, int], ...], _Messages] = {}
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
        step = self.num_steps
        if self.matrices.chooses:
            with side_stream(bucket.device, use="gradients"):
                if self.matrices.choose_ranks(step):
                    self._chunks.clear()  # those of other ranks may not come again
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
        return self._both(messages, parameters, bucket, rounds, step)

    def _messages_of(self, parameters: Sequence[ParameterShape], bucket: Tensor) -> _Messages:
        names = [parameter.name for parameter in parameters]
        key = tuple((name, self.matrices.rank_of(name)) for name in names)
        if key not in self._messages:
            numbers = [n for group in self.matrices.groups(names) for n in group]
            shapes = [self.matrices.shapes[names[n]] for n in numbers]
            others = tuple(sorted(set(range(len(names))) - set(numbers)))
            first = (*(parameters[n] for n in others), *(shape.left for shape in shapes))
            second = tuple(shape.right for shape in shapes)
            chosen = [shape for shape in shapes if shape.choice is not None]
            if chosen:
                numel = NUM_PROBES * len(chosen)
                name, coding = chosen[0].name + PROBES, chosen[0].coding
                # One block would be longer, so the codec leaves these values as they are.
                second += (ParameterShape(name, numel, numel + 1, coding, is_factor=True),)
            sizes = [sum(s.numel for s in sent) for sent in (first, second, second)]
            memory, into, lost = (bucket.new_zeros(size) for size in sizes)
            # Buckets that had these parameters before will not come again.
            for other in [k for k in self._messages if {name for name, _ in k} & set(names)]:
                del self._messages[other]
            self._messages[key] = _Messages(others, first, second, (memory, into, lost))
        return self._messages[key]

    def _both(
        self,
        messages: _Messages,
        parameters: Sequence[ParameterShape],
        bucket: Tensor,
        rounds: tuple[Rounds, Rounds],
        step: int,
    ) -> Rounds:
        """Yield the rounds of both messages."""
        first, second, lost = messages.buffers
        batches = self.matrices.batches([p.name for p in parameters], bucket.device)
        parts = torch.split(bucket.div_(self.world_size), [p.numel for p in parameters])
        others = [parts[n] for n in messages.others]
        matrices = [b.add_residuals([parts[n] for n in b.numbers]) for b in batches]
        probing = Probing(batches, step, bucket.device)
        lefts = probing.left_factors(matrices)
        _pack([*others, *lefts], first)
        yield from rounds[0]
        sums = _unpacked(first, [*others, *lefts])
        for part, came in zip(others, sums, strict=False):
            part.copy_(came)
        lefts = _orthonormal(sums[len(others) :])
        rights = [products(left, m) for left, m in zip(lefts, matrices, strict=True)]
        sent = [*rights, *probing.shares(lefts)]
        _pack(sent, second)
        yield from rounds[1]
        sums = _unpacked(second, sent)
        extremes = []
        for batch, left, came in zip(batches, lefts, sums, strict=False):
            size = batch.shapes[0].num_rows, batch.shapes[0].num_columns
            results = [parts[number].view(size) for number in batch.numbers]
            write_products(left, came, results, self._wide_for(batch))
            extremes += [torch.stack(torch.aminmax(result)) for result in results]  # NaN, if any
        ok = torch.cat([first, second, *extremes]).isfinite().all()
        shares = _unpacked(lost, sent)  # zero where codecs lose nothing
        energies = probing.energies(sums)
        for n, batch in enumerate(batches):
            own_share = rights[n] - shares[n]
            batch.note(matrices[n], lefts[n], own_share, sums[n], ok, energies[n])

    def _wide_for(self, batch: MatrixBatch) -> Tensor | None:
        """Return memory for one of the products on a CPU, the same in every step."""
        if frame.is_on_gpu(batch.right):
            return None
        numel = batch.shapes[0].numel
        if self._wide is None or self._wide.numel() < numel:
            self._wide = torch.empty(numel, dtype=torch.float64)
        return self._wide


class Probing:
    """Estimates of what the factors of one bucket leave out, in one step; see `ranks`."""

    def __init__(self, batches: Sequence[MatrixBatch], step: int, device: torch.device) -> None:
        """Draw signs for the batches whose ranks are chosen while training."""
        self._batches = batches
        self._probed = [n for n, batch in enumerate(batches) if batch.is_chosen]
        self._products: dict[int, Tensor] = {}  # by number of the batch
        shapes = [batches[n].shapes[0] for n in self._probed]
        if shapes:
            longest = max(max(shape.num_rows, shape.num_columns) for shape in shapes)
            self._of_rows, self._of_columns = signs(step, longest, device)

    def left_factors(self, matrices: Sequence[Tensor]) -> list[Tensor]:
        """Return [B, r, n], this rank's left factors. Args: matrices: [B, n, m] each."""
        lefts = []
        for number, (batch, matrix) in enumerate(zip(self._batches, matrices, strict=True)):
            right, rank = batch.right, batch.right.shape[1]
            if batch.is_chosen:
                drawn = self._of_columns[:, : right.shape[2]].expand(len(right), -1, -1)
                right = torch.cat([right, drawn], dim=1)
            left = products(right, matrix.mT)
            self._products[number] = left[:, rank:]
            lefts.append(left[:, :rank])
        return lefts

    def shares(self, lefts: Sequence[Tensor]) -> list[Tensor]:
        """Return [B, NUM_PROBES], to be added up over ranks. Args: lefts: [B, r, n] each."""
        return [
            probe(self._products[n], lefts[n], self._of_rows[:, : lefts[n].shape[2]])
            for n in self._probed
        ]

    def energies(self, sums: Sequence[Tensor]) -> list[Tensor | None]:
        """Return [B, r + 1] of each batch, None where the rank stays as it is.

        Args: sums: the right factors [B, r, m], and behind them the sums of `shares`.
        """
        energies: list[Tensor | None] = [None] * len(self._batches)
        probes = sums[len(self._batches) :]
        for number, came in zip(self._probed, probes, strict=True):
            energies[number] = energies_of(sums[number], came)
        return energies


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
