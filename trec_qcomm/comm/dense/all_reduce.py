"""Coded all-reduce of the mean over ranks, by one of several algorithms.

    reduction = Reduction(options, rank, world_size, traffic)
    rounds = reduction.start(parameters, bucket)      # on a process group: comm.transport
    play([r.start(...) for r in reductions])          # or all ranks in one process

A bucket is first divided by N, so that residuals are in the unit of the mean, and then summed up.
All ranks end with equal bits. The bits depend only on the inputs, the seed and the step's number.

Knows: algorithms, buckets, error feedback. Does not know: DDP, process groups, which codec.
Shapes: N ranks; E values of a bucket of P parameters.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from trec_qcomm.comm.dense.algorithms import Nodes, hierarchical, recursive_doubling, ring, two_shot
from trec_qcomm.comm.dense.chunks import BucketChunks, Coding, ParameterShape, feeds
from trec_qcomm.comm.dense.coder import (
    Call,
    GradientObserver,
    GradientTolerances,
    MessageCoder,
    Scratch,
)
from trec_qcomm.comm.dense.error_feedback import (
    CONTRIBUTION,
    OWNER,
    BucketResiduals,
    ErrorFeedback,
    LostValues,
    Site,
    node_sites,
    scaled,
    stage_site,
)
from trec_qcomm.comm.dense.low_rank.matrices import Matrices
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.devices import is_gpu
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.wire import frame

FlatAlgorithm = Literal["ring", "recursive_doubling", "two_shot"]  # that take all ranks alike
Algorithm = FlatAlgorithm | Literal["hierarchical"]
ALGORITHMS: dict[FlatAlgorithm, Callable[[MessageCoder, Tensor], Rounds]] = {
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "two_shot": two_shot,
}


@dataclass(frozen=True, kw_only=True)
class AllReduceOptions:
    """Settings of an all-reduce.

    Args:
        codings: codecs of the values; a parameter names its Coding by index.
        algorithm: name of the algorithm.
        ranks_per_node: number of adjacent ranks that share a node, for `hierarchical`.
        seed: the config's seed of stochastic rounding.
        measure: whether to record the largest error of what this rank encodes.
    """

    codings: tuple[Coding, ...]
    algorithm: Algorithm
    seed: int
    measure: bool = False
    ranks_per_node: int | None = None

    def is_inside_one_node(self, world_size: int) -> bool:
        """Return whether all ranks share one node, so that nothing is sent between nodes."""
        return self.algorithm == "hierarchical" and self.ranks_per_node == world_size > 1

    def settled(self, world_size: int) -> "AllReduceOptions":
        """Return the options that a job of so many ranks really uses.

        `hierarchical` with a single hop becomes `two_shot`. Two ranks use `recursive_doubling` in
        place of `two_shot` if codecs are of fixed size: as many bytes, one round less, and no value
        is encoded twice.

        Raises: ValueError: nodes that differ in size.
        """
        fixed_size = all(coding.codec.fixed_size for coding in self.codings)
        if self.algorithm == "two_shot" and world_size == 2 and fixed_size:
            return replace(self, algorithm="recursive_doubling")
        if self.algorithm != "hierarchical":
            return self
        nodes = Nodes(0, world_size, self.ranks_per_node or 0)
        if self.is_inside_one_node(world_size):
            inside = tuple(coding.inside for coding in self.codings)
            flat = replace(self, algorithm="two_shot", codings=inside)
            return flat.settled(world_size)
        flat = replace(self, algorithm="two_shot")
        return flat.settled(world_size) if nodes.ranks_per_node == 1 else self


def sites(options: AllReduceOptions, rank: int, world_size: int) -> list[Site]:
    """Return the sites at which a rank encodes and keeps residuals (comm.dense.error_feedback).

    Args: options: settled options.
    """
    algorithm = options.algorithm
    if algorithm == "hierarchical":
        return list(node_sites(world_size // (options.ranks_per_node or 1)))
    if algorithm == "two_shot":
        return [CONTRIBUTION, OWNER]
    stages = world_size.bit_length() - 1
    if algorithm == "ring" or rank >= 1 << stages:
        return [CONTRIBUTION]
    return [stage_site(stage) for stage in range(stages)]


def ring_nbytes(numel: int, world_size: int, itemsize: int = 4) -> int:
    """Return the bytes that each rank sends in a ring all-reduce of plain numbers.

    They are 2 (N - 1) / N of the data.
    """
    return 2 * (world_size - 1) * numel * itemsize // world_size


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Context of a coded all-reduce that handles only a part of a bucket.

    The values were divided by N before.

    Args:
        raw_numel: number of values of the bucket that count as raw here.
        lost: [E] float32, memory for the codecs' errors, in the bucket's order. None: residuals are
            kept as usual.
    """

    raw_numel: int
    lost: Tensor | None = None


class Reduction:
    """All-reduces of one rank, with the residuals and chunks that are kept between steps."""

    def __init__(
        self,
        options: AllReduceOptions,
        rank: int,
        world_size: int,
        traffic: Traffic,
        *,
        parameters: Sequence[ParameterShape] = (),
        intra_traffic: Traffic | None = None,
    ) -> None:
        """Prepare for all-reduces.

        Args:
            options: settings, the same on all ranks.
            rank, world_size: this rank, and N.
            traffic: counters, with one table, of what is sent; with `hierarchical`, between nodes.
            parameters: shapes of all parameters. Their order numbers all values, and the numbers
                key the noise of stochastic rounding. Other parameters are numbered as they come.
                The state has the residuals of these parameters from the beginning.
            intra_traffic: counters of what `hierarchical` sends inside a node.
        Raises: ValueError: nodes that differ in size.
        """
        self.is_inside = options.is_inside_one_node(world_size)
        self.options = options = options.settled(world_size)
        self.rank, self.world_size = rank, world_size
        self.ranks: Sequence[int] = range(world_size)  # numbers in the job, for errors
        self._nodes: Nodes | None = None
        if options.algorithm == "hierarchical":
            self._nodes = Nodes(rank, world_size, options.ranks_per_node or 0)
        self.traffic = traffic
        self.intra_traffic = intra_traffic or Traffic("intra_dense", traffic.tables)
        self.error_feedback: ErrorFeedback | None = None
        if any(coding.error_feedback for coding in options.codings):
            numels = {p.name: p.numel for p in parameters if feeds(p, options.codings)}
            self.error_feedback = ErrorFeedback(sites(options, rank, world_size), numels)
        self.tolerances: GradientTolerances | None = None  # rule that sets the codecs' tolerances
        self.matrices: Matrices | None = None  # parameters that are sent as factors
        self.observer: GradientObserver | None = None  # sees values, such as the debugger
        self.num_calls = 0
        self.num_steps = 0  # steps whose last bucket was started; part of the state
        self._first_numbers: dict[str, int] = {}
        self._next_number = 0
        self._numbers_of(parameters)
        self._chunks: dict[tuple[ParameterShape, ...], BucketChunks] = {}
        self._scratch = Scratch()
        # For each bucket of this step, whether its result is finite, and who is to be told.
        self._undecided: list[tuple[Tensor, Callable[[Tensor], None]]] = []

    def takes(self, parameter: str, sites: Iterable[Site]) -> bool:
        """Return whether this rank alone can go on with its saved residuals of a parameter."""
        return self.error_feedback is None or self.error_feedback.takes(sites)

    def dealt(self, parameter: ParameterShape, total: Tensor) -> dict[Site, Tensor]:
        """Return this rank's share of all ranks' residuals, dealt evenly to the ranks that send.

        Args: parameter: shape of the parameter.  total: [numel] float32, the sum over ranks.
        Returns: {site: [numel]}, zero where this rank sends nothing there.
        """
        if self._nodes is None:
            return {CONTRIBUTION: total / self.world_size}
        chunks = BucketChunks((parameter,), self.world_size, self.options.codings)
        shard, share = self._nodes.shard(self._nodes.place), torch.zeros_like(total)
        for piece in chunks.pieces:
            if piece.chunk in shard:
                part = slice(piece.begin, piece.begin + piece.numel)
                share[part] = total[part] / self._nodes.num_nodes
        return {node_sites(self._nodes.num_nodes)[0]: share}

    def start(
        self,
        parameters: Sequence[ParameterShape],
        bucket: Tensor,
        *,
        once: bool = False,
        is_last: bool = True,
        part: Part | None = None,
    ) -> Rounds:
        """Return the rounds in which `bucket` becomes the mean over ranks.

        Call it in the same order on all ranks, and run one all-reduce to its end before the next.

        Args:
            parameters: P shapes, in the bucket's order.
            bucket: [E] float32, contiguous, on CPU, or on a GPU where the codec has kernels;
                E is the sum of the parameters' numels, and may be 0.
            once: whether these shapes will not come again, so that their chunks need not be kept.
            is_last: whether this is the last bucket of its step.
            part: context, if these values are only a part of a bucket.
        Raises: ValueError: another dtype, device or size.
        """
        on_known_device = bucket.device.type == "cpu" or is_gpu(bucket.device)
        if bucket.dtype != torch.float32 or not on_known_device:
            got = f"{bucket.dtype} on {bucket.device}"
            raise ValueError(f"gradients: expected float32 on cpu or cuda, got {got}")
        numel = sum(parameter.numel for parameter in parameters)
        if bucket.shape != (numel,):
            raise ValueError(f"gradients: expected [{numel}], got {list(bucket.shape)}")
        self.num_calls += 1
        step = self.num_steps
        self.num_steps += is_last
        shapes = tuple(parameters)
        chunks = self._chunks.get(shapes) or self.new_chunks(shapes)
        if not once:
            self._chunks[shapes] = chunks
        return self._decided(self._rounds(chunks, bucket, self.num_calls, step, part), is_last)

    def rescale(self, factor: float) -> None:
        """Multiply all residuals, for a loss of another scale in the next step. Waits for a GPU."""
        if self.error_feedback is not None:
            kept = self.error_feedback.state_dict().items()
            self.error_feedback.load_state_dict({name: scaled(s, factor) for name, s in kept})
        if self.matrices is not None:
            for matrix in self.matrices.by_name.values():
                matrix.residual = matrix.residual * factor

    def _decided(self, rounds: Rounds, is_last: bool) -> Rounds:
        """Yield rounds, and behind the last bucket's decide on what all buckets of the step keep.

        A loss scaler throws the whole step away where the result of one bucket is not finite. So
        all buckets keep what they kept before, or none does.
        """
        yield from rounds
        if is_last and self._undecided:
            finite = torch.stack([finite for finite, _ in self._undecided]).all()
            for _, end in self._undecided:
                end(finite)
            self._undecided.clear()

    def _rounds(
        self, chunks: BucketChunks, bucket: Tensor, number: int, step: int, part: Part | None
    ) -> Rounds:
        is_apart = chunks.num_chunks > 1
        values = self._scratch.empty("values", len(bucket), bucket) if is_apart else bucket
        residuals: BucketResiduals | LostValues | None = None
        if part is not None and part.lost is not None:
            residuals = LostValues(values)
        elif self.error_feedback is not None and chunks.has_feedback:
            residuals = self.error_feedback.for_bucket(chunks, values.device)
        measurement = None if self.observer is None else self.observer.begin(chunks, step)
        call = Call(
            rank=self.rank,
            ranks=self.ranks,
            number=number,
            step=step,
            seed=self.options.seed,
            scratch=self._scratch,
            alignment=frame.alignment_of(bucket),
            measure=self.options.measure,
        )
        traffic = self.intra_traffic if self.is_inside else self.traffic
        coder = MessageCoder(
            chunks,
            call,
            timed=traffic,
            residuals=residuals,
            tolerances=self.tolerances,
            measurement=measurement,
        )
        if is_apart:
            chunks.gather(bucket, values)
        if part is None:
            values.div_(values.new_full((), self.world_size))  # CUDA inverts a Python number
        numel = len(values) if part is None else part.raw_numel
        raw_nbytes = ring_nbytes(numel, self.world_size)
        algorithm = self.options.algorithm
        if algorithm != "hierarchical":
            yield from ALGORITHMS[algorithm](coder, values)
        else:
            assert self._nodes is not None
            lost = residuals if isinstance(residuals, LostValues) else None
            inside = MessageCoder(chunks.inside, call, timed=self.intra_traffic, residuals=lost)
            yield from hierarchical(coder, inside, values, self._nodes)
            between_nbytes = ring_nbytes(numel // self._nodes.ranks_per_node, self._nodes.num_nodes)
            _add_traffic(self.intra_traffic, inside, raw_nbytes - between_nbytes)
            raw_nbytes = between_nbytes
        if residuals is not None:
            self._undecided.append((values.isfinite().all(), residuals.end))
        if measurement is not None:
            measurement.end(values)
        if is_apart:
            chunks.scatter(values, bucket)
        if part is not None and part.lost is not None and isinstance(residuals, LostValues):
            chunks.scatter(residuals.lost, part.lost)
        _add_traffic(traffic, coder, raw_nbytes)

    def new_chunks(self, parameters: tuple[ParameterShape, ...]) -> BucketChunks:
        """Return the chunks of a bucket of these parameters."""
        numbers = self._numbers_of(parameters)
        num_chunks = 1 if self.options.algorithm == "recursive_doubling" else self.world_size
        return BucketChunks(parameters, num_chunks, self.options.codings, numbers)

    def _numbers_of(self, parameters: Sequence[ParameterShape]) -> tuple[int, ...]:
        """Return the number of each parameter's first value, the same in every bucket."""
        for parameter in parameters:
            if parameter.name not in self._first_numbers:
                self._first_numbers[parameter.name] = self._next_number
                self._next_number += parameter.numel
        return tuple(self._first_numbers[parameter.name] for parameter in parameters)


def _add_traffic(traffic: Traffic, coder: MessageCoder, raw_nbytes: int) -> None:
    """Count what a coder sent. Args: raw_nbytes: bytes of a ring of float32 in its place."""
    sent = coder.sent
    raw, payload = int64_tensor([raw_nbytes]), int64_tensor([sent.nbytes - sent.header_nbytes])
    traffic.add_bytes(int64_tensor([0]), raw, payload, sent.header_nbytes)
    if len(coder.traffic.max_abs_err):
        worst = coder.traffic.max_abs_err.amax(0, keepdim=True)
        traffic.max_abs_err.copy_(torch.maximum(traffic.max_abs_err, worst))
