"""Decode frames and add up their rows: several ranks sent rows for the same places.

A core.codec.SummingCodec reads all frames at once and writes only the sums. For other codecs, and
for sums of float16 and bfloat16, every frame is decoded and ops.batch.rank_sum adds up the rows.
The bits are the same.

Knows: frames, groups of segments. Does not know: process groups, which codec.
Shapes: P frames of the same rows, N values each.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.frames.coding import SealedFrames, Timer
from trec_qcomm.comm.frames.decoding import decode_opened, naming_senders, open_frames
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.core.counters import Traffic
from trec_qcomm.ops.batch.rank_sum import rank_sum
from trec_qcomm.wire import frame


def decode_sum(
    frames: SealedFrames,
    placed: PlacedFrames,
    out: Tensor,
    *,
    ranks: Sequence[int],
    traffic: Traffic,
    held_at: int = -1,
    memory: Callable[[int], Tensor] | None = None,
) -> None:
    """Check the frames of all peers and write to `out` the sum of their rows, frame by frame.

    Args:
        frames, ranks, traffic: arguments of `frames.decoding.decode_frames`.
        placed: P >= 1 frames of the same rows, with places in a matrix [number of terms, N].
        out: N values, contiguous.
        held_at: index, among the terms of the sum, of the rows that `out` holds; no frame has these
            rows. -1: the rows in `out` are no term.
        memory: function that returns so many float32 values of any content; None: memory is newly
            allocated.
    Raises: CorruptFrameError: the same as `decode_frames`.
    """
    timer = Timer(traffic.decode_s)
    opened = open_frames(frames, placed, ranks)
    sums = None
    if out.dtype == torch.float32:
        sums = placed.sums(out.numel() if held_at == 0 else 0)
    if sums is None or any(parts[0][0] not in placed.groups for parts in opened):
        num_terms = len(frames.nbytes) + (held_at >= 0)
        terms = (memory or out.new_empty)(num_terms * out.numel()).view(num_terms, out.numel())
        decode_opened(opened, placed, terms, ranks, timer)
        if num_terms == 2 and held_at >= 0:  # without a copy of what `out` holds
            pair = [out.view(-1), terms[1 - held_at]]
            torch.add(*(reversed(pair) if held_at else pair), out=pair[0])
            return
        if held_at >= 0:
            terms[held_at] = out.view(-1)
        rank_sum(terms, out)
        return
    with frame.dropped_on_error(placed.layout(frame.alignment_of(out)).kept):
        for (codec, segments), [(group, encoded)] in zip(sums, opened, strict=True):
            with naming_senders(group, placed.plan, ranks):
                codec.decode_sum(encoded, segments, out, held_at=held_at)
            timer.add_to(group.label)
