"""Decoding of received frames: their checks, and their rows.

Knows: frames, groups of segments, counters. Does not know: process groups, which codec, autograd.
Shapes: P frames, S segments in all; G segments of a group; W bytes.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor

from trec_qcomm.comm.frames.coding import SealedFrames, Timer
from trec_qcomm.comm.frames.plan import CodecGroup, FrameLayout, FramePlan, PlacedFrames
from trec_qcomm.core import registry
from trec_qcomm.core.checks import renaming_errors
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded
from trec_qcomm.wire import frame


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
        ranks: the peer of each frame, for errors.
        traffic: counters of seconds.
    Raises: CorruptFrameError: naming the sender and, where one segment is to blame, the table.
    """
    timer = Timer(traffic.decode_s)
    decode_opened(open_frames(frames, placed, ranks), placed, out, ranks, timer)


@dataclass(frozen=True, eq=False)
class OpenedGroup:
    """Encoded bytes of a group's segments, from frames that were checked.

    Args:
        encoded: the bytes of its G segments.
        used: [G] int64, the wire id of each one's codec; None where it is the group's.
    """

    encoded: Encoded
    used: Tensor | None = None


def open_frames(
    frames: SealedFrames, placed: PlacedFrames, ranks: Sequence[int]
) -> list[OpenedGroup]:
    """Check the frames of all peers, and return each group's bytes.

    Arguments and errors: those of `decode_frames`.
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
    )
    if is_planned:
        return _as_planned(frames.buffer, layout, placed)
    opened = []
    for group in placed.groups:
        at, nbytes = group.of_members(encoded.at), group.of_members(encoded.nbytes)
        used = group.of_members(codecs)
        is_own = (used.numpy() == group.codec.wire_id).all()
        opened.append(OpenedGroup(Encoded(encoded.payload, at, nbytes), None if is_own else used))
    return opened


def _as_planned(buffer: Tensor, layout: FrameLayout, placed: PlacedFrames) -> list[OpenedGroup]:
    """Return segments that have the codecs and sizes of the plan, and lie where it says."""
    pairs = zip(layout.group_at, placed.group_nbytes, strict=True)
    return [OpenedGroup(Encoded(buffer, at, nbytes)) for at, nbytes in pairs]


def decode_opened(
    opened: Sequence[OpenedGroup],
    placed: PlacedFrames,
    out: Tensor,
    ranks: Sequence[int],
    timer: Timer,
) -> None:
    """Write the rows of frames that were checked. Arguments: those of `decode_frames`."""
    plan = placed.plan
    for group, bytes_ in zip(placed.groups, opened, strict=True):
        encoded = bytes_.encoded
        if bytes_.used is None:
            _decode_group(encoded, group, plan, out, ranks)
        else:
            for subgroup, which in _by_sender_codec(group, bytes_.used, plan, ranks):
                parts = Encoded(encoded.payload, encoded.at[which], encoded.nbytes[which])
                _decode_as_sent(parts, subgroup, plan, out, ranks)
        timer.add_to(group.label)


def decode_own(
    frames: SealedFrames, placed: PlacedFrames, out: Tensor, *, traffic: Traffic
) -> None:
    """Write to `out` what receivers will decode from frames that this rank has just encoded.

    Nothing is checked. Arguments: those of `decode_frames`, and frames for one rank each.
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
        parts = [(group.of_members(places), group.of_members(sizes)) for group in placed.groups]
        opened = [OpenedGroup(Encoded(frames.buffer, *part)) for part in parts]
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
    """Return a context that adds to the errors of a group the sender and the table."""

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


def _by_sender_codec(
    group: CodecGroup, used: Tensor, plan: FramePlan, ranks: Sequence[int]
) -> list[tuple[CodecGroup, Tensor]]:
    """Return a group split by the codecs that the senders used, if these differ from the config's.

    Returns: the parts, and the number of each of their segments in the group.
    Raises: CorruptFrameError: a wire id that no codec has.
    """
    subgroups = []
    for wire_id in sorted(set(used.tolist())):
        which = (used == wire_id).nonzero().view(-1)
        codec = registry.decoder(wire_id)
        members = group.members[which]
        if codec is None:
            raise _error_at(int(members[0]), f"unknown codec {wire_id}", plan, ranks)
        subgroups.append((CodecGroup(codec, group.segments.subset(which), members), which))
    return subgroups
