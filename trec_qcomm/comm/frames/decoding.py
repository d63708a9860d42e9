"""Check received frames and decode their rows.

Knows: frames, groups of segments, counters. Does not know: process groups, which codec, autograd.
Shapes: P frames, S segments in all; G segments of a group; W bytes.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from trec_qcomm.comm.frames.coding import SealedFrames, Timer
from trec_qcomm.comm.frames.plan import CodecGroup, FrameLayout, FramePlan, PlacedFrames
from trec_qcomm.core import registry
from trec_qcomm.core.checks import renaming_errors
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded
from trec_qcomm.wire import frame

# For each group its segments and their bytes: itself, or parts with the codecs that senders used.
Opened = list[list[tuple[CodecGroup, Encoded]]]


def decode_frames(
    frames: SealedFrames,
    placed: PlacedFrames,
    out: Tensor,
    *,
    ranks: Sequence[int],
    traffic: Traffic,
) -> None:
    """Check the frames of all peers and write their rows to `out`.

    The codec id of each segment selects its decoder.

    Args:
        frames: the peers' frames.
        placed: the rows to expect, with their places in `out`.
        out: contiguous, of the dtype of the rows that were sent.
        ranks: global rank of the sender of each frame, for errors.
        traffic: counters of seconds.
    Raises: CorruptFrameError: naming the sender and, where one segment is to blame, the table.
    """
    timer = Timer(traffic.decode_s)
    decode_opened(open_frames(frames, placed, ranks), placed, out, ranks, timer)


def open_frames(frames: SealedFrames, placed: PlacedFrames, ranks: Sequence[int]) -> Opened:
    """Check the frames of all peers, and return the bytes of their segments.

    Arguments and errors are those of `decode_frames`.
    """
    plan, layout = placed.plan, placed.layout(frame.alignment_of(frames.buffer))
    is_planned = frames.announced is placed.announced
    encoded, codecs = frame.unseal(
        frames.buffer,
        frames.nbytes,
        plan.segments_per_frame,
        layouts=plan.layouts,
        call=frames.call,
        num_rows=placed.num_rows,
        ranks=ranks,
        tables=plan.tables,
        announced=frames.announced,
        kept=layout.kept if is_planned else None,
        by_codecs=is_planned and plan.frame_of_members is not None,
    )
    if is_planned or (
        placed.fixed_size
        and frames.nbytes == layout.frame_nbytes
        and _are_planned(encoded.nbytes, codecs, placed)
    ):
        return _as_planned(frames.buffer, layout, placed, encoded.frames)
    return [_by_sender_codec(group, encoded, codecs, plan, ranks) for group in placed.groups]


def _are_planned(nbytes: Tensor, codecs: Tensor, placed: PlacedFrames) -> bool:
    """Return whether S segments have the sizes and codecs of the plan."""
    pairs = (codecs, placed.plan.codecs), (nbytes, placed.max_nbytes)
    return all(bool((a.numpy() == b.numpy()).all()) for a, b in pairs)


def _as_planned(
    buffer: Tensor, layout: FrameLayout, placed: PlacedFrames, to_check: Any = None
) -> Opened:
    """Return segments that have the codecs and sizes of the plan, and lie where it says.

    Args: to_check: frames that codecs must check while they decode; None: none.
    """
    frame_of = placed.plan.frame_of_members if to_check is not None else None
    opened: Opened = []
    for number, group in enumerate(placed.groups):
        frames = to_check.of_segments(frame_of[number]) if frame_of is not None else None
        places = layout.group_at[number], placed.group_nbytes[number]
        opened.append([(group, Encoded(buffer, *places, frames=frames))])
    return opened


def decode_opened(
    opened: Opened, placed: PlacedFrames, out: Tensor, ranks: Sequence[int], timer: Timer
) -> None:
    """Write the rows of opened frames. The arguments are those of `decode_frames`."""
    plan = placed.plan
    with frame.dropped_on_error(placed.layout(frame.alignment_of(out)).kept):
        for group, parts in zip(placed.groups, opened, strict=True):
            for part, encoded in parts:
                decode = _decode_group if part is group else _decode_as_sent
                decode(encoded, part, plan, out, ranks)
            timer.add_to(group.label)


def decode_own(
    frames: SealedFrames, placed: PlacedFrames, out: Tensor, *, traffic: Traffic
) -> None:
    """Write to `out` what receivers will decode from frames that this rank has just encoded.

    Nothing is checked. The arguments are those of `decode_frames`; each frame is for one rank.
    """
    assert frames.announced is not None
    assert placed.plan.fan_out == 1
    timer = Timer(traffic.decode_s)
    alignment = frame.alignment_of(frames.buffer)
    if placed.fixed_size:
        opened = _as_planned(frames.buffer, placed.layout(alignment), placed)
    else:
        sizes = frames.announced.nbytes
        places, _ = frame.lay_out(sizes, placed.plan.segments_per_frame, alignment)
        within = Encoded(frames.buffer, places, sizes)
        opened = [[(group, _bytes_of(group, within))] for group in placed.groups]
    decode_opened(opened, placed, out, (), timer)


def _decode_group(
    encoded: Encoded, group: CodecGroup, plan: FramePlan, out: Tensor, ranks: Sequence[int]
) -> None:
    """Decode one group. Args: encoded: the bytes of its G segments."""
    with naming_senders(group, plan, ranks):
        group.codec.decode(encoded, group.segments, out)


def naming_senders(
    group: CodecGroup, plan: FramePlan, ranks: Sequence[int]
) -> AbstractContextManager[None]:
    """Return a context that adds sender and table to the errors of a group."""

    def named(error: CorruptFrameError) -> CorruptFrameError:
        if error.segment is None:
            return error
        return _error_at(int(group.members[error.segment]), error.reason, plan, ranks)

    return renaming_errors(named)


def _error_at(
    segment: int, reason: str, plan: FramePlan, ranks: Sequence[int]
) -> CorruptFrameError:
    """Return the error of one segment, with its sender and table."""
    rank, table = ranks[int(plan.frame[segment])], plan.tables[segment]
    return CorruptFrameError(reason, rank=rank, table=table, segment=segment)


def _decode_as_sent(
    encoded: Encoded, group: CodecGroup, plan: FramePlan, out: Tensor, ranks: Sequence[int]
) -> None:
    """Decode a group whose codec the senders chose, and which may not work here.

    Raises: CorruptFrameError: also in place of the codec's ValueError (no masks, no GPU kernels,
        rows too long): this rank's config did not ask for that codec.
    """
    try:
        _decode_group(encoded, group, plan, out, ranks)
    except ValueError as error:
        reason = f"codec {group.codec.wire_id} is not the one this rank expects, and fails: {error}"
        raise _error_at(int(group.members[0]), reason, plan, ranks) from error


def _bytes_of(group: CodecGroup, encoded: Encoded) -> Encoded:
    """Return the bytes of a group. Args: encoded: those of all S segments."""
    at, nbytes = group.of_members(encoded.at), group.of_members(encoded.nbytes)
    return Encoded(encoded.payload, at, nbytes)


def _by_sender_codec(
    group: CodecGroup, encoded: Encoded, codecs: Tensor, plan: FramePlan, ranks: Sequence[int]
) -> list[tuple[CodecGroup, Encoded]]:
    """Return a group with its bytes, split by the codecs that senders used if these differ.

    Args: encoded: bytes of all S segments.  codecs: [S] int64, wire ids of their codecs.
    Raises: CorruptFrameError: a wire id that no codec has.
    """
    used = group.of_members(codecs)
    if (used.numpy() == group.codec.wire_id).all():
        return [(group, _bytes_of(group, encoded))]
    parts = []
    for wire_id in sorted(set(used.tolist())):
        which = (used == wire_id).nonzero().view(-1)
        codec, members = registry.decoder(wire_id), group.members[which]
        if codec is None:
            reason = f"unknown codec {wire_id}; import the module that registers it"
            raise _error_at(int(members[0]), reason, plan, ranks)
        part = CodecGroup(codec, group.segments.subset(which), members)
        parts.append((part, _bytes_of(part, encoded)))
    return parts
