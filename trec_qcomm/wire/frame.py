"""Frames: what one rank sends one peer in one collective. FORMAT.md is the specification.

Knows: headers, segment tables, checksums. Does not know: codecs, tables, process groups.
Frames of several peers lie one after the other in one buffer and are handled in one call.
Shapes: P frames, S segments in all, frame-major; W bytes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded
from trec_qcomm.wire import kernels

VERSION = 1
HEADER_NBYTES = 32
SEGMENT_ENTRY_NBYTES = 12

_REASONS = {
    kernels.BAD_SIZE: "size differs from the bytes received",
    kernels.BAD_MAGIC: "not a frame (magic)",
    kernels.BAD_VERSION: f"version differs from {VERSION}",
    kernels.BAD_LAYOUT: "the sender's tables, dims or order differ from this rank's",
    kernels.BAD_COUNT: "number of segments differs from this rank's",
    kernels.BAD_CHECKSUM: "checksum differs",
    kernels.BAD_ROWS: "number of rows differs from this rank's batch",
    kernels.BAD_SEGMENT: "segment sizes do not add up",
    kernels.BAD_CALL: "of another call: the ranks are out of step",
}


def overhead_nbytes(num_segments: int) -> int:
    """Header and segment table of a frame; 0 where there is nothing to send."""
    if num_segments == 0:
        return 0
    return (HEADER_NBYTES + SEGMENT_ENTRY_NBYTES * num_segments + 7) // 8 * 8


def lay_out(nbytes: Tensor, segments_per_frame: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Where each segment's bytes begin when frames of these sizes lie one after the other.

    Args:    nbytes: [S] int64, multiples of 8, frame-major.  segments_per_frame: P counts.
    Returns: at: [S] int64.  frame_nbytes: P ints, 0 for a frame without segments.
    Raises:  ValueError: a segment of 4 GiB or more, which the format cannot state.
    """
    if len(nbytes) and int(nbytes.max()) >= 2**32:
        raise ValueError(f"a segment of {int(nbytes.max())} bytes; frames hold less than 2^32")
    counts = torch.tensor(segments_per_frame, dtype=torch.int64)
    overheads = torch.tensor([overhead_nbytes(n) for n in segments_per_frame], dtype=torch.int64)
    before = torch.repeat_interleave(torch.cumsum(overheads, 0), counts)
    at = before + torch.cumsum(nbytes, 0) - nbytes
    frame_of = torch.repeat_interleave(torch.arange(len(counts)), counts)
    frame_nbytes = overheads.index_add(0, frame_of, nbytes)
    return at, frame_nbytes.tolist()


def seal(
    buffer: Tensor,
    frame_nbytes: Sequence[int],
    segments_per_frame: Sequence[int],
    *,
    layouts: Sequence[int],
    call: int,
    codecs: Tensor,
    num_rows: Tensor,
    nbytes: Tensor,
) -> None:
    """Write headers, segment tables and checksums around payload that is already in place.

    Args: buffer: [W] uint8 on CPU, at least sum(frame_nbytes).  layouts: P hashes, 32 bits.
        call: number of the exchange, of which 16 bits are kept.
        codecs, num_rows, nbytes: [S] int64.
    """
    kernels.seal(
        buffer.numpy(),
        np.asarray(frame_nbytes, np.int64),
        np.asarray(segments_per_frame, np.int64),
        np.asarray(layouts, np.int64),
        call % 2**16,
        codecs.numpy(),
        num_rows.numpy(),
        nbytes.numpy(),
    )


def unseal(
    buffer: Tensor,
    frame_nbytes: Sequence[int],
    segments_per_frame: Sequence[int],
    *,
    layouts: Sequence[int],
    call: int,
    num_rows: Tensor,
    ranks: Sequence[int],
    tables: Sequence[str] | None = None,
) -> tuple[Encoded, Tensor]:
    """Check P frames and find their segments.

    Args:    buffer: [W] uint8 on CPU, exactly sum(frame_nbytes).  num_rows: [S] int64, what this
             rank expects.  call: the exchange it is in.  ranks, tables: P and S names for errors.
    Returns: the segments' bytes in place; codecs: [S] int64 wire ids.
    Raises:  CorruptFrameError: any frame that breaks FORMAT.md or expects another batch.
    """
    if buffer.numel() != sum(frame_nbytes):
        raise CorruptFrameError(f"{buffer.numel()} bytes where {sum(frame_nbytes)} were due")
    total = sum(segments_per_frame)
    codecs, at, nbytes = (torch.empty(total, dtype=torch.int64) for _ in range(3))
    reason, frame, segment = kernels.unseal(
        buffer.numpy(),
        np.asarray(frame_nbytes, np.int64),
        np.asarray(segments_per_frame, np.int64),
        np.asarray(layouts, np.int64),
        call % 2**16,
        num_rows.numpy(),
        codecs.numpy(),
        at.numpy(),
        nbytes.numpy(),
    )
    if reason != kernels.OK:
        table = tables[segment] if tables is not None and segment >= 0 else None
        raise CorruptFrameError(_REASONS[reason], rank=ranks[frame], table=table)
    return Encoded(buffer, at, nbytes), codecs


def compact(encoded: Encoded, segments_per_frame: Sequence[int]) -> tuple[Encoded, list[int]]:
    """Close the gaps that upper bounds left, so that frames of the true sizes lie in a row.

    Moves payload within the buffer; frames keep their order. Returns it and the P frame sizes.
    """
    at, frame_nbytes = lay_out(encoded.nbytes, segments_per_frame)
    kernels.compact(encoded.payload.numpy(), encoded.at.numpy(), at.numpy(), encoded.nbytes.numpy())
    return Encoded(encoded.payload[: sum(frame_nbytes)], at, encoded.nbytes), frame_nbytes


def checksum(frame: Tensor) -> int:
    """The checksum of one frame, in plain torch: the definition.

    Args: frame: [W] uint8, W a multiple of 4; bytes 24..31 count as 0.
    """
    words = frame.clone().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    words[6:8] = 0
    weights = 2 * torch.arange(len(words), dtype=torch.int64) + 1
    return int((words * weights).sum()) & 0xFFFFFFFFFFFFFFFF
