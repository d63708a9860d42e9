"""FramePlan: the frames that one rank encodes for its peers, or decodes from them, in an exchange.

A `FramePlan` has what stays from batch to batch: tables, dims, codecs. Its method `place` returns
the `PlacedFrames` of one batch, whose segments have rows and places.
Knows: segments, codecs, frame sizes. Does not know: process groups, what the rows mean.
Shapes: P frames, S segments in all, frame-major; G segments of one group.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from trec_qcomm.core.codec import Codec, Contract, SummingCodec, check_dim
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.wire import frame


@dataclass(frozen=True, eq=False)
class CodecGroup:
    """Segments of equal codec and dim, which one encode or decode call handles.

    Args:
        codec: the codec of all segments.
        segments: G segments, with rows and places.
        members: [G] int64, the index of each among the S segments of the frames.
        has_all: whether these are all S segments, in order.
    """

    codec: Codec
    segments: Segments
    members: Tensor
    has_all: bool = False

    @property
    def label(self) -> str:
        """Codec and dim as text, for statistics."""
        return _label(self.codec, self.segments.dim)

    def of_members(self, numbers: Tensor) -> Tensor:
        """Return [G], the members' numbers out of [S] numbers, one a segment of the frames."""
        return numbers if self.has_all else numbers[self.members]


def joined(groups: Sequence[CodecGroup], numbers: Sequence[Tensor]) -> Tensor:
    """Return [S] int64, the groups' numbers in the order of the frames' segments.

    Args: groups: groups that together have every segment once.  numbers: [G] int64 of each group.
    """
    if len(groups) == 1 and groups[0].has_all:
        return numbers[0]
    every = torch.empty(sum(len(group.members) for group in groups), dtype=torch.int64)
    for group, of_group in zip(groups, numbers, strict=True):
        every[group.members] = of_group
    return every


@lru_cache(256)
def _label(codec: Codec, dim: int) -> str:
    return f"{codec!r}, dim {dim}"


@dataclass(frozen=True, eq=False)
class FramePlan:
    """Plan of P frames and their S segments, without rows; `plan_frames` makes it.

    Args:
        tables: S names, the table of each segment.
        table: [S] int64, the index of each segment's table.
        dims: [S] int64, values a row.
        frame: [S] int64, the index of each segment's frame.
        codecs: [S] int64, wire ids of the config's codecs.
        segments_per_frame: P counts.
        layouts: P hashes (comm.rows.layout).
        fan_out: number of ranks that get each frame: 1, or all (then P is 1).
        remote_copies: [P] int64, number of other ranks that get each frame.
        tolerances: [S] float64, each codec's own tolerance; NaN where it has none.
        divisors: [S] float64; a tolerance is divided by it before a codec gets the tolerance. It is
            the number of summands where the tolerance bounds the error of a sum, else 1.
        groups: codec, dim and members of each group, as in `CodecGroup`.
        num_summands: number of decoded values that the receivers add up.
        value_nbytes: bytes of a value that is not coded.
    """

    tables: tuple[str, ...]
    table: Tensor
    dims: Tensor
    frame: Tensor
    codecs: Tensor
    segments_per_frame: tuple[int, ...]
    layouts: tuple[int, ...]
    fan_out: int
    remote_copies: Tensor
    tolerances: Tensor
    divisors: Tensor
    groups: tuple[tuple[Codec, int, Tensor], ...]
    num_summands: int = 1
    value_nbytes: int = 4

    def place(
        self, num_rows: Tensor, start: Tensor, stride: Tensor, numbers: Tensor | None = None
    ) -> "PlacedFrames":
        """Return the frames with the rows of one batch.

        Args: num_rows, start, stride, numbers: [S] int64 each, as in core.segments.Segments.
        """
        places = [vector.contiguous() for vector in (num_rows, start, stride)]
        groups, has_all = [], len(self.groups) == 1
        for codec, dim, members in self.groups:
            rows, begin, apart = places if has_all else [vector[members] for vector in places]
            keys = numbers if numbers is None or has_all else numbers[members]
            segments = Segments(exclusive_cumsum(rows), dim, begin, apart, numbers=keys)
            groups.append(CodecGroup(codec, segments, members, has_all))
        return PlacedFrames(self, places[0], tuple(groups))

    @cached_property
    def segment_copies(self) -> Tensor:
        """Number of other ranks that get each segment, [S] int64."""
        return self.remote_copies[self.frame]

    def tolerances_to_encode(self, by_table: Tensor | None) -> Tensor:
        """Return [S] float64, the tolerance that `Codec.encode` gets for each segment.

        Args: by_table: [T] float64, by table index, in place of the codecs' own tolerances.
        """
        return self._own_tolerances if by_table is None else by_table[self.table] / self.divisors

    @cached_property
    def frame_of_members(self) -> tuple[Tensor, ...] | None:
        """Index of each member's frame, [G] int64 for each group; None: not all codecs take it."""
        if not all(codec.takes_frames for codec, *_ in self.groups):
            return None
        return tuple(self.frame[members] for *_, members in self.groups)

    @cached_property
    def _own_tolerances(self) -> Tensor:
        return self.tolerances / self.divisors


@dataclass(frozen=True, eq=False)
class FrameLayout:
    """Places of frames in a buffer in which each segment takes its largest size.

    Args:
        at: [S] int64, where each segment begins.
        frame_nbytes: P ints, the size of each frame and of the padding after it.
        group_at: [G] int64 for each group, the part of `at` that its members have.
        kept: dictionary for wire.frame.seal.
    """

    at: Tensor
    frame_nbytes: list[int]
    group_at: tuple[Tensor, ...]
    kept: frame.Kept = field(default_factory=dict)


Sums = tuple[tuple[SummingCodec, Segments], ...]  # see PlacedFrames.sums


@dataclass(frozen=True, eq=False)
class PlacedFrames:
    """Frames of one batch: a plan, and the rows and places of its segments.

    Derived values are kept, for later batches of the same sizes.

    Args:
        plan: what stays from batch to batch.
        num_rows: [S] int64.
        groups: groups that together have every segment once.
    Derived:
        raw_nbytes: [S] int64, bytes of the uncoded rows.
        fixed_size: whether all codecs are of fixed size; else the next two are upper bounds.
        max_nbytes: [S] int64, encoded bytes of each segment.
        group_nbytes: [G] int64 for each group, the part of `max_nbytes` that its members have.
    """

    plan: FramePlan
    num_rows: Tensor
    groups: tuple[CodecGroup, ...]
    raw_nbytes: Tensor = field(init=False)
    fixed_size: bool = field(init=False)
    max_nbytes: Tensor = field(init=False)
    group_nbytes: tuple[Tensor, ...] = field(init=False)
    _layouts: dict[int, FrameLayout] = field(init=False, default_factory=dict)
    _sums: dict[int, Sums | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        sizes = tuple(group.codec.max_nbytes(group.segments) for group in self.groups)
        raw_nbytes = self.num_rows * self.plan.dims * self.plan.value_nbytes
        object.__setattr__(self, "raw_nbytes", raw_nbytes)
        object.__setattr__(self, "fixed_size", all(g.codec.fixed_size for g in self.groups))
        object.__setattr__(self, "max_nbytes", joined(self.groups, sizes))
        object.__setattr__(self, "group_nbytes", sizes)

    def layout(self, alignment: int) -> FrameLayout:
        """Return the places of the frames. Args: alignment: result of wire.frame.alignment_of."""
        layout = self._layouts.get(alignment)
        if layout is None:
            counts = self.plan.segments_per_frame
            at, frame_nbytes = frame.lay_out(self.max_nbytes, counts, alignment)
            group_at = tuple(group.of_members(at) for group in self.groups)
            layout = self._layouts[alignment] = FrameLayout(at, frame_nbytes, group_at)
        return layout

    @cached_property
    def announced(self) -> frame.Announced:
        """Codec and size of each segment, if all codecs are of fixed size."""
        return frame.Announced(self.plan.codecs, self.max_nbytes)

    @cached_property
    def payload_nbytes(self) -> list[int]:
        """Encoded bytes of each frame's segments, P ints, if all codecs are of fixed size."""
        return frame.payload_nbytes(self.max_nbytes, self.plan.segments_per_frame)

    @cached_property
    def bytes_to_others(self) -> tuple[Tensor, Tensor]:
        """Raw and encoded bytes of each segment that go to other ranks, [S] int64 each.

        For codecs of fixed size only.
        """
        copies = self.plan.segment_copies
        return self.raw_nbytes * copies, self.max_nbytes * copies

    def sums(self, begin: int = 0) -> Sums | None:
        """Return, for each group, its codec and the places where it writes the sum of these frames.

        They are the places of the first frame. None: a codec cannot add up while it decodes.

        Args: begin: place in the buffer that becomes place 0 of the sum.
        Raises: ValueError: the frames do not hold the same rows.
        """
        if begin not in self._sums:
            num_frames = len(self.plan.segments_per_frame)
            sums = tuple(
                (group.codec, group.segments.first_of(num_frames, begin))
                for group in self.groups
                if isinstance(group.codec, SummingCodec)
            )
            self._sums[begin] = sums if len(sums) == len(self.groups) else None
        return self._sums[begin]


def plan_frames(
    frames: Sequence[Sequence[tuple[str, int]]],
    *,
    layouts: Sequence[int],
    codecs: Mapping[str, Codec],
    table_numbers: Mapping[str, int],
    rank: int,
    fan_out: int = 1,
    num_summands: int = 1,
    value_nbytes: int = 4,
) -> FramePlan:
    """Plan frames: number their segments, and group the segments by codec and dim.

    Args:
        frames: for each of P frames its segments as (table, dim).
        layouts: P hashes.
        codecs: {table: codec}.
        table_numbers: {table: index} in statistics and in the tolerances of an encode call.
        rank: this rank. Frame p goes to rank p or comes from it, unless `fan_out` is above 1. The
            frame of this rank itself does not count as sent.
        fan_out: number of ranks that get a single frame, this rank among them.
        num_summands: number of decoded values that the receivers add up. The error bound of a
            BOUNDED codec is divided by it, so that it holds for the sum.
        value_nbytes: bytes of a value that is not coded.
    Raises: ValueError: a sum of values whose codec is BOUNDED and has no tolerance to divide, or
        rows of a length that their codec does not take.
    """
    flat = [segment for segments in frames for segment in segments]
    by_key: dict[tuple[Codec, int], list[int]] = {}
    for s, (table, dim) in enumerate(flat):
        key = (codecs[table], dim)
        if key not in by_key:
            check_dim(*key, f"table {table!r}")
        by_key.setdefault(key, []).append(s)
    counts = [len(segments) for segments in frames]
    segment_codecs = [codecs[table] for table, _ in flat]
    if num_summands > 1:
        for (table, _), codec in zip(flat, segment_codecs, strict=True):
            if codec.contract is Contract.BOUNDED and codec.tolerance is None:
                raise ValueError(
                    f"table {table!r}: {codec!r} is BOUNDED and has no tolerance, which the number "
                    "of summands divides; give its class the property `tolerance`"
                )
    remote = [fan_out - 1] if fan_out > 1 else [int(p != rank) for p in range(len(frames))]
    return FramePlan(
        tables=tuple(table for table, _ in flat),
        table=torch.tensor([table_numbers[table] for table, _ in flat], dtype=torch.int64),
        dims=torch.tensor([dim for _, dim in flat], dtype=torch.int64),
        frame=torch.repeat_interleave(
            torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64)
        ),
        codecs=torch.tensor([codec.wire_id for codec in segment_codecs], dtype=torch.int64),
        segments_per_frame=tuple(counts),
        layouts=tuple(layouts),
        fan_out=fan_out,
        remote_copies=torch.tensor(remote, dtype=torch.int64),
        tolerances=torch.tensor(
            [math.nan if codec.tolerance is None else codec.tolerance for codec in segment_codecs],
            dtype=torch.float64,
        ),
        divisors=torch.tensor(
            [num_summands if c.contract is Contract.BOUNDED else 1 for c in segment_codecs],
            dtype=torch.float64,
        ),
        groups=tuple(
            (codec, dim, torch.tensor(members, dtype=torch.int64))
            for (codec, dim), members in by_key.items()
        ),
        num_summands=num_summands,
        value_nbytes=value_nbytes,
    )
