"""Encode the rows of an exchange once more, into the debugger's own memory, and decode them.

Encoding is a function of rows, seed and tolerance. So the values decoded here equal the receivers'
values, bit by bit. The memory of the exchange is not written.

Knows: codecs, groups of segments. Does not know: process groups, what is measured.
Shapes: S segments, R rows of D values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trec_qcomm.comm.frames.coding import group_seed
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.core.codec import Codec, Contract, encode_alone
from trec_qcomm.core.segments import Segments
from trec_qcomm.core.transfer import download


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows of segments of one codec and dim, in one matrix, table by table.

    Args:
        x: [R, D] float32.
        segments: the S segments of `x`, one after the other.
        names: S names, the table or parameter of each.
        codec: the codec that the exchange uses.
        seed: the seed of the exchange.
        tolerances: [S] float64, the tolerance of each as the codec gets it; None: it has none.
        configured: [S] float64, the tolerances before they are divided among summands; NaN: none.
        num_summands: number of summands that share the tolerance of a BOUNDED codec here.
    """

    x: Tensor
    segments: Segments
    names: tuple[str, ...]
    codec: Codec
    seed: int
    tolerances: Tensor | None
    configured: Tensor
    num_summands: int

    def tolerances_of(self, codec: Codec) -> Tensor | None:
        """Return [S] float64, the tolerances of another codec by its own config; None: it has none.

        A bound of a sum is divided among its summands.
        """
        if codec.tolerance is None:
            return None
        tolerances = torch.full((len(self.names),), codec.tolerance, dtype=torch.float64)
        return tolerances / (self.num_summands if codec.contract is Contract.BOUNDED else 1)

    def blocks(self) -> Iterator[tuple[str, slice, slice]]:
        """Yield each table or parameter with its segments and its rows."""
        ends = self.segments.offsets.tolist()
        begin = 0
        for s, name in enumerate(self.names):
            if s + 1 == len(self.names) or self.names[s + 1] != name:
                yield name, slice(begin, s + 1), slice(ends[begin], ends[s + 1])
                begin = s + 1


def pack(
    values: Tensor,
    placed: PlacedFrames,
    *,
    seed: int,
    tolerances: Tensor | None,
    names: Sequence[str | None],
) -> Iterator[PackedRows]:
    """Yield the rows of each group of an exchange, of some tables or parameters.

    Args:
        values: float32, contiguous, the buffer that holds the rows.
        placed: the rows' places.
        seed, tolerances: arguments of comm.frames.coding.encode_frames.
        names: S names of tables or parameters; None leaves a segment out.
    """
    plan = placed.plan
    to_encode = plan.tolerances_to_encode(tolerances)
    configured = plan.tolerances if tolerances is None else tolerances[plan.table]
    wanted = torch.tensor([name is not None for name in names], dtype=torch.bool)
    for number, group in enumerate(placed.groups):
        chosen = (wanted[group.members] & (group.segments.num_rows > 0)).nonzero().view(-1)
        chosen = chosen[torch.argsort(plan.table[group.members[chosen]], stable=True)]
        if not len(chosen):
            continue
        segments, members = group.segments, group.members[chosen]
        part, dim = segments.subset(chosen), segments.dim
        # A codec that writes masks would write the exchange's own, which is none of our business.
        reads = group.codec.follows_forward
        packed = replace(
            part,
            start=part.offsets[:-1] * dim,
            stride=torch.full_like(part.stride, dim),
            notes=part.notes if reads else None,
            numbers=segments.first_numbers[chosen],
        )
        yield PackedRows(
            torch.cat([segments.block(values, s) for s in chosen.tolist()]),
            packed,
            tuple(str(names[s]) for s in members.tolist()),
            group.codec,
            group_seed(seed, number, group),
            None if group.codec.tolerance is None else to_encode[members],
            configured[members],
            plan.num_summands,
        )


def code(rows: PackedRows, codec: Codec, tolerances: Tensor | None) -> tuple[Tensor, Tensor]:
    """Encode rows and decode them.

    Args: codec: the rows' codec, or another.  tolerances: [S] float64; None: the codec has none.
    Returns: [R, D] float32, the decoded rows; and [S] int64 on the CPU, the bytes of each segment.
    Raises: UnencodableError.  ValueError: the codec needs masks, or does not run on this device.
    """
    segments = rows.segments
    if codec is not rows.codec and segments.notes is not None:
        segments = replace(segments, notes=None)
    encoded = encode_alone(codec, rows.x, segments, seed=rows.seed, tolerances=tolerances)
    encoded = replace(encoded, nbytes=download(encoded.nbytes))
    y = torch.empty_like(rows.x)
    codec.decode(encoded, segments, y)
    return y, encoded.nbytes
