"""Encode rows into the sealed frames of one exchange. decoding.py is the inverse.

Knows: frames, groups of segments, counters. Does not know: process groups, which codec, autograd.
A rank's frame for itself is coded like all others.
Shapes: P frames, S segments in all; G segments of a group; W bytes; T tables.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import CodecGroup, FramePlan, PlacedFrames, joined
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.core.segments import Encoded
from trec_qcomm.wire import frame

_SEED_STRIDE = 0x1E3779B97F4A7C15


@dataclass(frozen=True, eq=False)
class SealedFrames:
    """P sealed frames of one call, one after the other.

    Args:
        buffer: [W] uint8.
        nbytes: P ints, the size of each frame.
        call: number of the exchange, >= 0, the same on all ranks.
        announced: codec and size of each segment, if both are known before the frames are read
            (wire.frame.unseal).
        counts: P ints, the number of segments of each frame; empty for received frames.
        is_shared: whether all P frames are one frame, which the buffer holds once.
    """

    buffer: Tensor
    nbytes: list[int]
    call: int
    announced: frame.Announced | None = None
    counts: tuple[int, ...] = ()
    is_shared: bool = False


def encode_frames(
    values: Tensor,
    placed: PlacedFrames,
    *,
    call: int,
    seed: int,
    traffic: Traffic,
    measure: bool = False,
    counted: bool = True,
    tolerances: Tensor | None = None,
    decoded: Tensor | None = None,
) -> SealedFrames:
    """Encode and seal all segments of the frames, each once, however many ranks get its frame.

    Args:
        values: contiguous, the buffer that holds the rows.
        placed: the frames, with rows placed in `values`.
        call: number of the exchange, the same on all ranks.
        seed: seed of stochastic rounding.
        traffic: counters of the bytes that go to other ranks, and of seconds.
        measure: whether to decode again and record the largest error.
        counted: whether to count bytes and flushed values, too.
        tolerances: [T] float64, by table index, in place of `Codec.tolerance`; not read where a
            codec has none.
        decoded: memory of the shape of `values` for the values that receivers will decode; None:
            they are not needed.
    Raises: UnencodableError: naming the table.
    """
    plan, fixed_size = placed.plan, placed.fixed_size
    layout = placed.layout(frame.alignment_of(values))
    frame_nbytes, codecs = layout.frame_nbytes, plan.codecs
    buffer = torch.empty(sum(frame_nbytes), dtype=torch.uint8, device=values.device)
    to_encode, counts = plan.tolerances_to_encode(tolerances), plan.segments_per_frame
    fields: dict[str, Any] = {"layouts": plan.layouts, "call": call, "num_rows": placed.num_rows}
    fields |= {"codecs": codecs, "kept": layout.kept if fixed_size else None}
    frame_of = plan.frame_of_members if frame.is_on_gpu(buffer) else None
    if frame_of is not None:
        nbytes = placed.max_nbytes
        frames = frame.for_codecs(buffer, frame_nbytes, counts, **fields, nbytes=nbytes)
    nbytes_by_group, flushed = [], []
    if measure and decoded is None:
        decoded = torch.empty_like(values)
    timer = Timer(traffic.encode_s)
    with frame.dropped_on_error(layout.kept):
        for number, group in enumerate(placed.groups):
            at, options = layout.group_at[number], {"seed": group_seed(seed, number, group)}
            if frame_of is not None:
                options["frames"] = frames.of_segments(frame_of[number])
            encoded = _encode_group(values, group, plan, buffer, at, to_encode, options)
            nbytes_by_group.append(encoded.nbytes)
            timer.add_to(group.label)
            if counted and encoded.flushed is not None:
                flushed.append((plan.table[group.members], encoded.flushed))
            if decoded is not None:
                group.codec.decode(encoded, group.segments, decoded)
                timer.restart()
    if measure and decoded is not None:
        _record_errors(values, decoded, placed, traffic)
    for tables, numbers in flushed:  # of no group, if a codec refuses values
        traffic.add_flushed(tables, numbers)
    nbytes = placed.max_nbytes if fixed_size else joined(placed.groups, nbytes_by_group)
    if not fixed_size:
        within = Encoded(buffer, layout.at, nbytes)
        encoded, frame_nbytes = frame.compact(within, counts)
        buffer = encoded.payload
    if frame_of is None:
        frame.seal(buffer, frame_nbytes, counts, **fields, nbytes=nbytes)
    if counted:
        _count_bytes(traffic, placed, nbytes, frame_nbytes)
    n = plan.fan_out
    is_shared = n > 1 and frame.is_on_gpu(buffer)
    if n > 1:
        codecs, nbytes = codecs.repeat(n), nbytes.repeat(n)
        buffer = buffer if is_shared else buffer.repeat(n)
    announced = frame.Announced(codecs, nbytes)
    return SealedFrames(buffer, frame_nbytes * n, call, announced, counts * n, is_shared)


def group_seed(seed: int, number: int, group: CodecGroup) -> int:
    """Return the seed with which a group of segments is encoded.

    Args: seed: the seed of all groups.  number: index of the group.
    """
    if group.segments.numbers is not None:
        return seed
    # Each group numbers its values from 0, so equal seeds would draw equal noise.
    return (seed ^ (number * _SEED_STRIDE)) % 2**63


def _count_bytes(
    traffic: Traffic, placed: PlacedFrames, nbytes: Tensor, frame_nbytes: list[int]
) -> None:
    """Count what goes to other ranks. Args: nbytes: [S] int64, encoded bytes of each segment."""
    plan = placed.plan
    if placed.fixed_size:
        raw, wire = placed.bytes_to_others
    else:
        raw, wire = placed.raw_nbytes * plan.segment_copies, nbytes * plan.segment_copies
    pairs = zip(frame_nbytes, plan.remote_copies.tolist(), strict=True)
    sent = sum(size * copies for size, copies in pairs)
    traffic.add_bytes(plan.table, raw, wire, sent - int(wire.numpy().sum()))


class Timer:
    """Stopwatch that adds the seconds since its start to a codec's entry."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        """Start again from zero."""
        self._begin = perf_counter()

    def add_to(self, label: str) -> None:
        """Add the seconds since the last start to the seconds of `label`, and start again."""
        now = perf_counter()
        self._seconds[label] += now - self._begin
        self._begin = now


def _encode_group(
    values: Tensor,
    group: CodecGroup,
    plan: FramePlan,
    buffer: Tensor,
    at: Tensor,
    tolerances: Tensor,
    options: dict[str, Any],
) -> Encoded:
    """Encode one group.

    Args: at: [G] int64.  tolerances: [S] float64, for all segments.  options: other arguments of
        the codec's `encode`.
    """
    codec, members = group.codec, group.members
    try:
        return codec.encode(
            values,
            group.segments,
            buffer,
            at,
            tolerances=None if codec.tolerance is None else group.of_members(tolerances),
            **options,
        )
    except UnencodableError as error:
        segment = int(members[error.segment])
        table = plan.tables[segment]
        raise UnencodableError(error.reason, segment=segment, table=table) from error


def _record_errors(values: Tensor, decoded: Tensor, placed: PlacedFrames, traffic: Traffic) -> None:
    """Record the largest |error| of each table. Not fast."""
    for group in placed.groups:
        for s, segment in enumerate(group.members.tolist()):
            x, y = (group.segments.block(rows, s).float() for rows in (values, decoded))
            same = (x == y) | (x.isnan() & y.isnan())
            error = torch.where(same, 0, (x - y).abs())
            if error.numel():
                t = int(placed.plan.table[segment])
                traffic.max_abs_err[t] = torch.maximum(traffic.max_abs_err[t], error.max().cpu())
