"""Frames in which another codec takes the rows that their own codec refused.

A frame says of each segment how it is coded, so a receiver needs not be told. But the segment may
be larger than both ends expect: only an exchange whose sizes travel can send such a frame.

Knows: frame plans. Does not know: which codec, process groups, why rows are refused.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from trec_qcomm.comm.frames.plan import CodecGroup, PlacedFrames, label_of
from trec_qcomm.core.codec import Codec


def coded_otherwise(placed: PlacedFrames, table: str, codec: Codec) -> PlacedFrames:
    """Return the same frames, with another codec for all segments of a table.

    Args: codec: a codec without tolerance.
    """
    plan = placed.plan
    number = plan.table[plan.tables.index(table)]
    groups = tuple(
        part
        for group in placed.groups
        for part in _split(group, plan.table[group.members] == number, codec)
    )
    by_codec = tuple((group.codec, group.segments.dim, group.members) for group in groups)
    return PlacedFrames(replace(plan, groups=by_codec), placed.num_rows, groups)


def _split(group: CodecGroup, is_refused: Tensor, codec: Codec) -> Iterator[CodecGroup]:
    if not bool(is_refused.any()):
        yield group
        return
    segments = replace(group.segments, numbers=group.segments.first_numbers)
    for chosen, chosen_codec in ((~is_refused, group.codec), (is_refused, codec)):
        which = chosen.nonzero().view(-1)
        if len(which):
            label = label_of(chosen_codec, segments.dim)
            yield CodecGroup(chosen_codec, segments.subset(which), group.members[which], label)
