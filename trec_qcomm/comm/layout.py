"""Who owns which columns, and so which segments each pair of ranks exchanges.

Two matrices matter. The owner's, as the lookup makes it: [all samples, its columns], samples
grouped by the rank that will get them. The receiver's: [its samples, all columns], columns
grouped by owner. `owner_side` and `sample_side` describe the same segments in either.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.wire import frame


@dataclass(frozen=True)
class Block:
    """Adjacent columns that hold one table's rows for one feature and one column shard.

    Args: table, feature: names.  column: the shard's first column in the table.  dim: its width.
    """

    table: str
    feature: str
    column: int
    dim: int


@dataclass(frozen=True)
class Layout:
    """The blocks of every rank, in the order of its columns. The same on all ranks.

    Args: blocks: one tuple per rank of the process group.
    """

    blocks: tuple[tuple[Block, ...], ...]

    def dim_sum(self, rank: int) -> int:
        """Columns of that rank's matrix."""
        return sum(block.dim for block in self.blocks[rank])

    def fingerprint(self, rank: int) -> int:
        """32-bit hash of that rank's blocks, for the frame's layout field."""
        return zlib.crc32(repr(self.blocks[rank]).encode())

    def tables(self) -> list[str]:
        """All names, each once, sorted."""
        return sorted({block.table for blocks in self.blocks for block in blocks})


@dataclass(frozen=True, eq=False)
class Group:
    """Segments that one encode or decode call handles: equal codec and dim.

    Args: members: [G] int64, their numbers among the side's S segments.
    Derived: label: its name in statistics.
    """

    codec: Codec
    segments: Segments
    members: Tensor
    label: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", f"{self.codec!r}, dim {self.segments.dim}")


@dataclass(frozen=True, eq=False)
class Side:
    """What one rank encodes for its P peers, or decodes from them: S segments, peer-major.

    Args:
        tables: S names.  segments_per_frame: P counts.  layouts: P hashes, see Layout.
        num_rows, raw_nbytes: [S] int64.  table: [S] int64, index into Layout.tables().
        peer: [S] int64.  groups: cover every segment once.
    Derived, exact only where `fixed_size`: at: [S] int64 and frame_nbytes: P ints.
    """

    tables: tuple[str, ...]
    segments_per_frame: tuple[int, ...]
    layouts: tuple[int, ...]
    num_rows: Tensor
    raw_nbytes: Tensor
    table: Tensor
    peer: Tensor
    groups: tuple[Group, ...]
    fixed_size: bool = field(init=False)
    at: Tensor = field(init=False)
    frame_nbytes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        most = torch.zeros(len(self.tables), dtype=torch.int64)
        for group in self.groups:
            most[group.members] = group.codec.max_nbytes(group.segments)
        at, frame_nbytes = frame.lay_out(most, self.segments_per_frame)
        object.__setattr__(self, "fixed_size", all(g.codec.fixed_size for g in self.groups))
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "frame_nbytes", frame_nbytes)


def owner_side(
    layout: Layout, rank: int, batch_sizes: Sequence[int], codecs: Mapping[str, Codec]
) -> Side:
    """The segments as they lie in this rank's [sum(batch_sizes), dim_sum(rank)] matrix.

    Args: batch_sizes: samples of each rank.  codecs: by table name.
    """
    width = layout.dim_sum(rank)
    first_row = [0, *accumulate(batch_sizes)]
    placed = [
        [(block, first_row[peer] * width + column, width, num_rows) for block, column in own]
        for peer, num_rows in enumerate(batch_sizes)
        for own in [_columns(layout.blocks[rank])]
    ]
    return _side(placed, [layout.fingerprint(rank)] * len(batch_sizes), layout.tables(), codecs)


def sample_side(
    layout: Layout, rank: int, batch_sizes: Sequence[int], codecs: Mapping[str, Codec]
) -> Side:
    """The segments as they lie in this rank's [batch_sizes[rank], sum of dim_sum] matrix."""
    owners = range(len(layout.blocks))
    width = sum(layout.dim_sum(owner) for owner in owners)
    first_column = [0, *accumulate(layout.dim_sum(owner) for owner in owners)]
    placed = [
        [
            (block, first_column[owner] + column, width, batch_sizes[rank])
            for block, column in _columns(layout.blocks[owner])
        ]
        for owner in owners
    ]
    return _side(placed, [layout.fingerprint(o) for o in owners], layout.tables(), codecs)


def _columns(blocks: Sequence[Block]) -> list[tuple[Block, int]]:
    """Each block with its first column in its owner's matrix."""
    starts = [0, *accumulate(block.dim for block in blocks)]
    return list(zip(blocks, starts, strict=False))


def _side(
    placed: list[list[tuple[Block, int, int, int]]],
    layouts: list[int],
    table_names: list[str],
    codecs: Mapping[str, Codec],
) -> Side:
    """placed: for each peer its segments as (block, start, stride, num_rows)."""
    flat = [segment for segments in placed for segment in segments]
    blocks = [block for block, *_ in flat]
    numbers = torch.tensor([row for _, *row in flat], dtype=torch.int64).view(-1, 3)
    start, stride, num_rows = numbers.unbind(1)
    dims = torch.tensor([block.dim for block in blocks], dtype=torch.int64)
    by_key: dict[tuple[Codec, int], list[int]] = {}
    for s, block in enumerate(blocks):
        by_key.setdefault((codecs[block.table], block.dim), []).append(s)
    groups = []
    for (codec, dim), which in by_key.items():
        members = torch.tensor(which, dtype=torch.int64)
        offsets = exclusive_cumsum(num_rows[members])
        segments = Segments(offsets, dim, start[members], stride[members])
        groups.append(Group(codec, segments, members))
    number_of = {name: t for t, name in enumerate(table_names)}
    counts = [len(segments) for segments in placed]
    return Side(
        tables=tuple(block.table for block in blocks),
        segments_per_frame=tuple(counts),
        layouts=tuple(layouts),
        num_rows=num_rows.contiguous(),
        raw_nbytes=num_rows * dims * 4,
        table=torch.tensor([number_of[b.table] for b in blocks], dtype=torch.int64),
        peer=torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)),
        groups=tuple(groups),
    )
