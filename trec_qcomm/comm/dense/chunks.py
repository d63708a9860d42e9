"""Chunks: how the parameters of a bucket are dealt out to ranks and cut into segments.

An algorithm in which every rank sends whole buckets has one chunk, others one for each rank.

Every parameter is split by itself. So the owner of a value does not depend on the parameter's
bucket, which DDP changes after its first step. A parameter consists of blocks, the rows that a
codec sees, and a rest shorter than a block. Chunk c of N gets blocks c/N to (c+1)/N, and the last
chunk gets the rest. The rest is sent as float32, and so are parameters of fewer than `min_numel`
values.

In `values`, the buffer that an all-reduce works on, chunk 0 comes first, then chunk 1 and so on.

Knows: names, sizes, segments. Does not know: messages, residuals.
Shapes: N chunks, E values of P parameters, D values a block.
"""

import zlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import FramePlan, PlacedFrames, plan_frames
from trec_qcomm.core.codec import Codec
from trec_qcomm.ops.batch.rows import Rows, single_rows, take

_REST = " (rest)"  # ends the name of a segment that is sent as float32


@dataclass(frozen=True, kw_only=True)
class Coding:
    """Codecs of the values of some parameters.

    Args:
        codec: codec of the blocks.
        exact: codec of the rest, of fixed size.
        min_numel: least number of values of a parameter that is coded; smaller parameters are sent
            by `exact`.
        error_feedback: whether residuals are kept (comm.dense.error_feedback).
        intra: codec of the blocks in the hop inside a node, if the algorithm has this hop. None:
            `exact`.
    """

    codec: Codec
    exact: Codec
    min_numel: int
    error_feedback: bool = False
    intra: Codec | None = None

    @property
    def inside(self) -> "Coding":
        """Codecs of the hop inside a node."""
        return replace(self, codec=self.exact if self.intra is None else self.intra)


class ParameterShape(NamedTuple):
    """Name and shape of a parameter in an all-reduce.

    Args:
        name: the parameter's name.
        numel: n, the number of its values.
        block: D >= 1, how many adjacent values are one row to the codec.
        coding: index of the parameter's Coding.
        is_factor: whether it is a factor of a matrix; a factor has no residual of its own.
    """

    name: str
    numel: int
    block: int
    coding: int = 0
    is_factor: bool = False


def feeds(parameter: ParameterShape, codings: Sequence[Coding]) -> bool:
    """Return whether a parameter has residuals."""
    return codings[parameter.coding].error_feedback and not parameter.is_factor


@dataclass(frozen=True)
class Piece:
    """Adjacent values of one parameter in one chunk, all of them coded or none.

    Args:
        name, parameter: the parameter's name and index.
        chunk: the chunk's index.
        begin, numel: first value in the parameter, and number of values.
        coded: whether the codec of blocks applies.
        start: first value in `values`.
    """

    name: str
    parameter: int
    chunk: int
    begin: int
    numel: int
    coded: bool
    start: int

    @property
    def end(self) -> int:
        """End of the piece's range in `values`."""
        return self.start + self.numel


@dataclass(frozen=True, eq=False)
class ChunkSpan:
    """Adjacent chunks, sent in one frame or in a frame each.

    Args:
        begin, end: the range in `values`.
        placed: the frames, with segments placed in `values`.
    """

    begin: int
    end: int
    placed: PlacedFrames


@dataclass(frozen=True, eq=False)
class BucketChunks:
    """Chunks of one bucket, the same on all ranks.

    Args:
        parameters: P shapes, in the bucket's order.
        num_chunks: N, 1 or the number of ranks. With 1 the buffer `values` is the bucket itself.
        codings: codecs of the values; `ParameterShape.coding` is an index into them.
        first_numbers: number of each parameter's first value, for the noise of stochastic rounding;
            None: values are counted through the bucket.
    Derived:
        pieces: all pieces, in the order of `values`.
        bounds: N + 1 ints, where each chunk begins in `values`.
        fingerprint: 32-bit hash of the parameters and N, for the frames' layout field.
    """

    parameters: tuple[ParameterShape, ...]
    num_chunks: int
    codings: tuple[Coding, ...]
    first_numbers: tuple[int, ...] | None = None
    pieces: tuple[Piece, ...] = field(init=False)
    bounds: tuple[int, ...] = field(init=False)
    fingerprint: int = field(init=False)
    _moves: dict[tuple[bool, torch.device], Rows] = field(init=False, default_factory=dict)
    _placed_frames: dict[tuple[object, ...], PlacedFrames] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.first_numbers is None:
            ends = accumulate((parameter.numel for parameter in self.parameters), initial=0)
            object.__setattr__(self, "first_numbers", tuple(ends)[:-1])
        pieces: list[Piece] = []
        bounds = [0]
        for chunk in range(self.num_chunks):
            start = bounds[-1]
            for p, parameter in enumerate(self.parameters):
                for begin, numel, coded in self._ranges(parameter, chunk):
                    pieces.append(Piece(parameter.name, p, chunk, begin, numel, coded, start))
                    start += numel
            bounds.append(start)
        object.__setattr__(self, "pieces", tuple(pieces))
        object.__setattr__(self, "bounds", tuple(bounds))
        layout = repr((tuple(tuple(p[:3]) for p in self.parameters), self.num_chunks))
        object.__setattr__(self, "fingerprint", zlib.crc32(layout.encode()))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(parameter.name for parameter in self.parameters)

    def coding_of(self, parameter: int) -> Coding:
        """Return the codecs of a parameter's values. Args: parameter: index of the parameter."""
        return self.codings[self.parameters[parameter].coding]

    def feeds(self, parameter: int) -> bool:
        """Return whether a parameter has residuals. Args: parameter: index of the parameter."""
        return feeds(self.parameters[parameter], self.codings)

    @cached_property
    def inside(self) -> "BucketChunks":
        """Chunks of the same bucket, with the codecs of the hop inside a node."""
        return replace(self, codings=tuple(coding.inside for coding in self.codings))

    @cached_property
    def fixed_size(self) -> bool:
        """Whether the codecs of all parameters are of fixed size."""
        used = {parameter.coding for parameter in self.parameters}
        return all(self.codings[number].codec.fixed_size for number in used)

    @cached_property
    def has_feedback(self) -> bool:
        """Whether some parameter has residuals."""
        return any(map(self.feeds, range(len(self.parameters))))

    def _ranges(self, parameter: ParameterShape, chunk: int) -> list[tuple[int, int, bool]]:
        """Return (begin, numel, coded) of a parameter's pieces in one chunk, none empty."""
        numel, block = parameter.numel, parameter.block
        last = chunk == self.num_chunks - 1
        blocks = numel // block if numel >= self.codings[parameter.coding].min_numel else 0
        first, end = (blocks * c // self.num_chunks * block for c in (chunk, chunk + 1))
        ranges = [(first, end - first, True)] if end > first else []
        if last and numel > blocks * block:
            ranges.append((blocks * block, numel - blocks * block, False))
        return ranges

    def gather(self, bucket: Tensor, values: Tensor) -> None:
        """Write a bucket [E], parameter by parameter, to `values` [E], chunk by chunk."""
        take(bucket, self._rows(bucket.device, in_bucket=True), values)

    def scatter(self, values: Tensor, bucket: Tensor) -> None:
        """Write `values` back into the bucket: the inverse of `gather`."""
        take(values, self._rows(values.device, in_bucket=False), bucket)

    def _rows(self, device: torch.device, *, in_bucket: bool) -> Rows:
        """Return the pieces as rows of the bucket in the order of `values`, or the other way."""
        if (in_bucket, device) not in self._moves:
            pieces: Sequence[Piece] = self.pieces
            if in_bucket:
                first = list(accumulate((p.numel for p in self.parameters), initial=0))
                begins = [first[piece.parameter] + piece.begin for piece in pieces]
            else:
                pieces = sorted(pieces, key=lambda piece: (piece.parameter, piece.begin))
                begins = [piece.start for piece in pieces]
            numels = torch.tensor([piece.numel for piece in pieces], dtype=torch.int64)
            rows = single_rows(torch.tensor(begins, dtype=torch.int64), numels, device)
            self._moves[in_bucket, device] = rows
        return self._moves[in_bucket, device]

    def span(self, chunks: range) -> ChunkSpan:
        """Return adjacent chunks as one frame."""
        return ChunkSpan(
            self.bounds[chunks.start], self.bounds[chunks.stop], self.frames((chunks,))
        )

    def frames(self, groups: tuple[range, ...]) -> PlacedFrames:
        """Return a frame for each group of chunks, placed in `values`."""
        if groups not in self._placed_frames:
            start = [piece.start for group in groups for c in group for piece in self._pieces_of(c)]
            self._placed_frames[groups] = self._place(groups, start)
        return self._placed_frames[groups]

    def copies(self, chunks: range, slots: tuple[int, ...]) -> PlacedFrames:
        """Return frames that hold the same adjacent chunks of several ranks.

        Each frame is placed in its own row of a matrix [.., number of values of the chunks].

        Args: chunks: indices of the chunks.  slots: row of each frame in the matrix.
        """
        key = (chunks, slots)
        if key not in self._placed_frames:
            first, end = self.bounds[chunks.start], self.bounds[chunks.stop]
            start = [
                slot * (end - first) + piece.start - first
                for slot in slots
                for c in chunks
                for piece in self._pieces_of(c)
            ]
            self._placed_frames[key] = self._place((chunks,) * len(slots), start)
        return self._placed_frames[key]

    def _pieces_of(self, chunk: int) -> Sequence[Piece]:
        first, end = (
            bisect_left(self.pieces, c, key=lambda piece: piece.chunk) for c in (chunk, chunk + 1)
        )
        return self.pieces[first:end]

    def _place(self, groups: Sequence[range], start: list[int]) -> PlacedFrames:
        pieces = [piece for group in groups for c in group for piece in self._pieces_of(c)]
        rows = [p.numel // self._dim(p) for p in pieces]
        assert self.first_numbers is not None
        numbers = [self.first_numbers[p.parameter] + p.begin for p in pieces]
        plan = self._plan(groups)
        num_rows, begin, number = (
            torch.tensor(x, dtype=torch.int64) for x in (rows, start, numbers)
        )
        return plan.place(num_rows, begin, plan.dims, number)

    def _dim(self, piece: Piece) -> int:
        return self.parameters[piece.parameter].block if piece.coded else 1

    def _plan(self, groups: Sequence[range]) -> FramePlan:
        frames = [
            [
                (p.name if p.coded else p.name + _REST, self._dim(p))
                for c in group
                for p in self._pieces_of(c)
            ]
            for group in groups
        ]
        codings = {p.name: self.codings[p.coding] for p in self.parameters}
        exact = {name + _REST: coding.exact for name, coding in codings.items()}
        numbers = {name: p for p, name in enumerate(self.names)}
        return plan_frames(
            frames,
            layouts=[zlib.crc32(repr(list(group)).encode(), self.fingerprint) for group in groups],
            codecs={name: coding.codec for name, coding in codings.items()} | exact,
            table_numbers=numbers | {name + _REST: p for name, p in numbers.items()},
            rank=-1,  # no frame stays on this rank
        )
