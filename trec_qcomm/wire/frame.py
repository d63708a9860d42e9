"""Frames: what one rank sends one peer in one collective. FORMAT.md is the specification.

Frames of several peers lie one after the other in one buffer and are handled in one call. The
buffer is in the memory of the host (cpu.py) or of a GPU (gpu.py, imported where it is needed).

Knows: headers, segment tables, checksums. Does not know: codecs, tables, process groups.
Shapes: P frames, S segments in all, frame-major; W bytes.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.checks import is_deferring, new_flag, raise_first
from trec_qcomm.core.devices import is_gpu
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import ALIGNMENT, Encoded, exclusive_cumsum
from trec_qcomm.ops.frames import cpu

VERSION = 3
HEADER_NBYTES = 32
SEGMENT_ENTRY_NBYTES = 12
DEVICE_ALIGNMENT = 128  # bytes at whose multiples frames begin in a GPU's memory

OUT_OF_STEP = "of another call: the ranks are out of step; make the same calls on all ranks"
_REASONS = {
    cpu.BAD_SIZE: "its size is beyond the bytes received, or no multiple of 8",
    cpu.BAD_MAGIC: "not a frame (magic)",
    cpu.BAD_LAYOUT: "the sender's tables, dims or order differ from this rank's",
    cpu.BAD_COUNT: "number of segments differs from this rank's",
    cpu.BAD_CHECKSUM: "checksum differs: bytes changed on the way; check memory and network",
    cpu.BAD_ROWS: "number of rows differs from this rank's batch",
    cpu.BAD_SEGMENT: "segment sizes do not add up",
    cpu.BAD_CALL: OUT_OF_STEP,
}


# What is wrong if a word differs, for each of the four words of 8 bytes of a header.
_WORDS = (
    f"magic, version or number of the call differ: not a frame of wire version {VERSION}, which "
    "alone this release reads, or the ranks are out of step",
    "the sender's tables, dims or order differ from this rank's",
    "size differs from the bytes received",
    _REASONS[cpu.BAD_CHECKSUM],
)


Kept = dict[torch.device, Any]  # see `seal`


@dataclass(frozen=True, eq=False)
class Announced:
    """Codec and size of each segment of some frames, known before the frames are read.

    The senders announced them. Where all codecs are of fixed size, this rank computes them.

    Args: codecs: [S] int64, wire ids.  nbytes: [S] int64, sizes.
    """

    codecs: Tensor
    nbytes: Tensor


def overhead_nbytes(num_segments: int) -> int:
    """Return the bytes of a frame's header and segment table; 0 for a frame without segments."""
    if num_segments == 0:
        return 0
    return (HEADER_NBYTES + SEGMENT_ENTRY_NBYTES * num_segments + 7) // 8 * 8


def alignment_of(buffer: Tensor) -> int:
    """Return the number of bytes at whose multiples frames begin and end in this memory.

    On a CPU frames lie without gaps. NCCL copies byte by byte if data do not begin at a multiple of
    16 bytes, and a GPU moves memory in pieces of 32 and 128 bytes.
    """
    return DEVICE_ALIGNMENT if is_on_gpu(buffer) else ALIGNMENT


def lay_out(
    nbytes: Tensor, segments_per_frame: Sequence[int], alignment: int = ALIGNMENT
) -> tuple[Tensor, list[int]]:
    """Return where each segment's bytes begin when frames lie one after the other.

    Args:
        nbytes: [S] int64, multiples of 8, frame-major.
        segments_per_frame: P counts.
        alignment: the result of `alignment_of`.
    Returns: at: [S] int64.  frame_nbytes: P ints, the size of each frame with the padding after it;
        0 for a frame without segments.
    Raises:  ValueError: a segment of 4 GiB or more, which the format cannot state.
    """
    sizes = nbytes.numpy()  # numpy is faster than torch on vectors this short
    largest = int(sizes.max(initial=0))
    if largest >= 2**32:
        raise ValueError(f"a segment of {largest} bytes; allowed: less than 2^32; cut the batch")
    counts, overheads, bounds, before = _overheads(tuple(segments_per_frame))
    ends = np.zeros(len(sizes) + 1, np.int64)
    sizes.cumsum(out=ends[1:])
    frame_ends = ends[bounds]
    padded = overheads + frame_ends[1:] - frame_ends[:-1] + (alignment - 1) & -alignment
    if alignment == ALIGNMENT:
        return torch.from_numpy(before + ends[:-1]), padded.tolist()
    first = padded.cumsum() - padded + overheads - frame_ends[:-1]
    return torch.from_numpy(ends[:-1] + first.repeat(counts)), padded.tolist()


def payload_nbytes(nbytes: Tensor, segments_per_frame: Sequence[int]) -> list[int]:
    """Return P ints, the bytes of each frame's segments. The arguments are those of `lay_out`."""
    ends = np.concatenate([[0], nbytes.numpy().cumsum()])
    sizes: list[int] = np.diff(ends[_overheads(tuple(segments_per_frame))[2]]).tolist()
    return sizes


@lru_cache(64)
def _overheads(segments_per_frame: tuple[int, ...]) -> tuple[Any, Any, Any, Any]:
    """Return what `lay_out` needs of P frames and their S segments.

    Returns: [P] numbers of segments; [P] overhead of each frame; [P + 1] numbers of segments
        before each frame; [S] overheads of all frames up to a segment's.
    """
    counts = np.asarray(segments_per_frame, np.int64)
    overheads = np.asarray([overhead_nbytes(n) for n in segments_per_frame], np.int64)
    bounds = np.asarray([0, *accumulate(segments_per_frame)], np.int64)
    return counts, overheads, bounds, overheads.cumsum().repeat(counts)


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
    kept: Kept | None = None,
) -> None:
    """Write headers, segment tables and checksums around payload that is already in place.

    Args:
        buffer: [W] uint8, at least sum(frame_nbytes).
        frame_nbytes, segments_per_frame: P ints each.
        layouts: P hashes, 32 bits.
        call: number of the exchange; its lowest 16 bits are written.
        codecs, num_rows, nbytes: [S] int64 on CPU.
        kept: dictionary, empty at first, for results that later calls use again. Calls on one
            stream that differ only in `buffer` and `call` pass the same dictionary.
    """
    if is_on_gpu(buffer):
        fields = frame_nbytes, segments_per_frame, layouts, codecs, num_rows, nbytes
        _gpu().seal(buffer, _on_device(buffer, kept, *fields), call % 2**16)
    else:
        fields = _fields(frame_nbytes, segments_per_frame, layouts, call)
        table = codecs.numpy(), num_rows.numpy(), nbytes.numpy()
        cpu.seal(buffer.numpy(), *fields, *table, False)


@contextmanager
def dropped_on_error(kept: Kept) -> Iterator[None]:
    """Empty `kept` if an error ends the `with` block, in which codecs seal or check frames.

    What a GPU counts for a frame is then incomplete, and the next call must not go on from there.
    """
    try:
        yield
    except BaseException:
        kept.clear()
        raise


def for_codecs(
    buffer: Tensor,
    frame_nbytes: Sequence[int],
    segments_per_frame: Sequence[int],
    *,
    call: int,
    kept: Kept | None = None,
    **fields: Any,
) -> Any:
    """Return the frames for codecs that seal them while they encode on a GPU, in place of `seal`.

    Args: fields: layouts, codecs, num_rows and nbytes. All arguments are those of `seal`.
    Returns: ops.frames.gpu.FramesOfSegments, of which a codec takes `of_segments`.
    """
    on_device = _on_device(buffer, kept, frame_nbytes, segments_per_frame, **fields)
    return _gpu().FramesOfSegments(on_device, call % 2**16)


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
    announced: Announced | None = None,
    kept: Kept | None = None,
    by_codecs: bool = False,
) -> tuple[Encoded, Tensor]:
    """Check P frames and find their segments.

    Args:
        buffer: [W] uint8, exactly sum(frame_nbytes).
        frame_nbytes: P ints, on a CPU at least the size of each frame.
        segments_per_frame: P counts.
        layouts: P hashes, 32 bits.
        call: number of the exchange.
        num_rows: [S] int64, the rows that this rank expects.
        ranks: P global ranks of the senders, for errors.
        tables: S names, for errors.
        announced: codecs and sizes that the segment tables must state. Needed on a GPU, where the
            host does not read the frames; not used on a CPU.
        kept: dictionary, as in `seal`.
        by_codecs: whether codecs may check frames on a GPU while they decode. Where errors may be
            raised later, `frames` of the result then says what they must check.
    Returns: the segments' bytes in place, and [S] int64 wire ids of their codecs.
    Raises: CorruptFrameError: a frame that breaks FORMAT.md or belongs to another batch. On a GPU
        it may be raised later (core.checks).
    """
    if buffer.numel() != sum(frame_nbytes):
        raise CorruptFrameError(f"{buffer.numel()} bytes where {sum(frame_nbytes)} were due")
    if is_on_gpu(buffer):
        assert announced is not None, "frames on a GPU are not read by the host"
        codecs, nbytes = announced.codecs, announced.nbytes
        expected = frame_nbytes, segments_per_frame, layouts, codecs, num_rows, nbytes
        frames = _on_device(buffer, kept, *expected)
        error = partial(
            _error_at, segments_per_frame=segments_per_frame, ranks=ranks, tables=tables
        )
        for_codecs = None
        if by_codecs and is_deferring():
            first = new_flag(buffer.device)
            for_codecs = _gpu().FramesOfSegments(frames, call % 2**16, first)
        else:
            first = _gpu().first_difference(buffer, frames, call % 2**16)
        raise_first(first, error)
        return Encoded(buffer, frames.at, nbytes, frames=for_codecs), codecs
    fields = _fields(frame_nbytes, segments_per_frame, layouts, call)
    total = sum(segments_per_frame)
    codecs, at, nbytes = (torch.empty(total, dtype=torch.int64) for _ in range(3))
    tables_out = codecs.numpy(), at.numpy(), nbytes.numpy()
    reason, frame, segment = cpu.unseal(buffer.numpy(), *fields, num_rows.numpy(), *tables_out)
    if reason == cpu.BAD_VERSION:
        begin = sum(frame_nbytes[:frame])
        raise CorruptFrameError(_version_reason(buffer[begin:]), rank=ranks[frame])
    if reason != cpu.OK:
        table = tables[segment] if tables is not None and segment >= 0 else None
        raise CorruptFrameError(_REASONS[reason], rank=ranks[frame], table=table)
    return Encoded(buffer, at, nbytes), codecs


def compact(encoded: Encoded, segments_per_frame: Sequence[int]) -> tuple[Encoded, list[int]]:
    """Close the gaps between segments that take fewer bytes than their upper bounds.

    The frames then have their true sizes and lie one after the other, in the same order. On a CPU
    the payload moves within its buffer, on a GPU to a new one.

    Returns: the segments at their new places, and the P frame sizes.
    """
    payload = encoded.payload
    at, frame_nbytes = lay_out(encoded.nbytes, segments_per_frame, alignment_of(payload))
    if is_on_gpu(payload):
        out = payload.new_empty(sum(frame_nbytes))
        _gpu().compact(payload, encoded.at, at, encoded.nbytes, out)
        return Encoded(out, at, encoded.nbytes), frame_nbytes
    cpu.compact(payload.numpy(), encoded.at.numpy(), at.numpy(), encoded.nbytes.numpy())
    return Encoded(payload[: sum(frame_nbytes)], at, encoded.nbytes), frame_nbytes


def is_on_gpu(buffer: Tensor) -> bool:
    """Return whether frames lie in a GPU's memory, where the host must not read them."""
    return is_gpu(buffer.device)


def _fields(
    frame_nbytes: Sequence[int],
    segments_per_frame: Sequence[int],
    layouts: Sequence[int],
    call: int,
) -> tuple[Any, ...]:
    """Return the arguments that all kernels take, as numpy arrays and the call's 16 bits."""
    vectors = (np.asarray(v, np.int64) for v in (frame_nbytes, segments_per_frame, layouts))
    return (*vectors, call % 2**16)


def _on_device(
    buffer: Tensor,
    kept: Kept | None,
    frame_nbytes: Sequence[int],
    segments_per_frame: Sequence[int],
    layouts: Sequence[int],
    codecs: Tensor,
    num_rows: Tensor,
    nbytes: Tensor,
) -> Any:
    """Return gpu.FramesOnDevice of the frames; the kept one if there is one."""
    if kept and (on_device := kept.get(buffer.device)) is not None:
        return on_device
    counts, overheads, bounds, _ = _overheads(tuple(segments_per_frame))
    padded = np.asarray(frame_nbytes, np.int64)
    true_nbytes = overheads + payload_nbytes(nbytes, segments_per_frame)
    headers = torch.empty(int(overheads.sum()), dtype=torch.uint8)
    table = codecs.numpy(), num_rows.numpy(), nbytes.numpy()
    fields = _fields(true_nbytes, segments_per_frame, layouts, 0)
    cpu.seal(headers.numpy(), *fields, *table, True)
    rows = exclusive_cumsum(num_rows).numpy()[bounds]
    vectors = overheads, padded.cumsum() - padded, true_nbytes, counts + np.diff(rows)
    at, _ = lay_out(nbytes, segments_per_frame, DEVICE_ALIGNMENT)
    on_device = _gpu().FramesOnDevice.from_host(buffer.device, at, headers, *vectors)
    if kept is not None:
        kept[buffer.device] = on_device
    return on_device


def _error_at(
    word: int,
    *,
    segments_per_frame: Sequence[int],
    ranks: Sequence[int],
    tables: Sequence[str] | None,
) -> CorruptFrameError:
    """Return the error for the first word of 8 bytes that is not as expected.

    Args: word: number of the word, counted over all headers.
    """
    sizes = np.asarray([overhead_nbytes(count) // 8 for count in segments_per_frame])
    p = int(np.searchsorted(np.cumsum(sizes), word, side="right"))
    word, before = word - int(sizes[:p].sum()), sum(segments_per_frame[:p])
    if word < HEADER_NBYTES // 8:
        return CorruptFrameError(_WORDS[word], rank=ranks[p])
    segment = min((8 * word - HEADER_NBYTES) // SEGMENT_ENTRY_NBYTES, segments_per_frame[p] - 1)
    table = tables[before + segment] if tables is not None else None
    return CorruptFrameError("segment table differs from what is due", rank=ranks[p], table=table)


def _gpu() -> Any:
    return importlib.import_module("trec_qcomm.ops.frames.gpu")


def _version_reason(frame: Tensor) -> str:
    version = int(frame[4]) + 256 * int(frame[5])
    return f"wire version {version} is not read by this release, which reads version {VERSION}"


def checksum(frame: Tensor) -> int:
    """Return the checksum of one frame, in plain torch. The kernels must agree with it.

    Args: frame: [W] uint8, W a multiple of 8; bytes 24..31 do not count.
    """
    words = frame.view(torch.int32).long() & 0xFFFFFFFF
    words[6:8] = 0
    k = (torch.arange(len(words)) * 0x9E3779B1) & 0xFFFFFFFF
    k ^= k >> 16
    return int(((k * (k ^ 0x85EBCA6B) | 1) * words).sum()) % 2**64
