"""Checks of a codec's frames: a damaged frame is refused, whatever the damage.

Knows: codecs, frames. Does not know: process groups.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Segments
from trec_qcomm.testing.codecs import CANARY
from trec_qcomm.wire import frame


def frame_of(codec: Codec, rows: Tensor, num_rows: Sequence[int]) -> tuple[Tensor, Segments]:
    """Return one sealed frame, [W] uint8, of `rows`, and the segments in it.

    Args: rows: [R, D] float32.  num_rows: rows of each segment; they sum to R.
    """
    segments = Segments.packed(num_rows, rows.shape[1])
    at, sizes = frame.lay_out(codec.max_nbytes(segments), [len(num_rows)])
    buffer = torch.full((sizes[0],), CANARY, dtype=torch.uint8)
    encoded = codec.encode(rows, segments, buffer, at)
    if not codec.fixed_size:
        encoded, sizes = frame.compact(encoded, [len(num_rows)])
    frame.seal(
        encoded.payload,
        sizes,
        [len(num_rows)],
        layouts=[0x1234],
        call=0,
        codecs=torch.full((len(num_rows),), codec.wire_id),
        num_rows=segments.num_rows,
        nbytes=encoded.nbytes,
    )
    return encoded.payload, segments


def open_frame(codec: Codec, data: Tensor, segments: Segments) -> Tensor:
    """Return the [R, D] rows of a frame that `frame_of` made.

    Args: data: [W] uint8, the frame, perhaps damaged.  segments: what the receiver expects in it.
    Raises: CorruptFrameError: the frame is damaged.
    """
    encoded, codecs = frame.unseal(
        data,
        [data.numel()],
        [segments.num_segments],
        layouts=[0x1234],
        call=0,
        num_rows=segments.num_rows,
        ranks=[0],
    )
    if bool((codecs != codec.wire_id).any()):
        raise CorruptFrameError("unknown codec")
    out = torch.zeros(int(segments.offsets[-1]), segments.dim)
    codec.decode(encoded, segments, out)
    return out


def check_frame(codec: Codec, *, dim: int = 7, num_mutations: int = 300) -> None:
    """Check that damaged frames of a codec are refused, and that no payload makes it crash.

    Every truncated prefix, every flipped bit of the header and `num_mutations` random changes must
    raise CorruptFrameError. A random payload with a right checksum may also decode to some values.

    Args: dim: values a row.  num_mutations: how many random changes.
    Raises: AssertionError: a damaged frame was accepted. Any other error that the codec raises for
        damaged bytes is passed on.
    """
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(6, dim, generator=generator)
    data, segments = frame_of(codec, rows, [2, 0, 4])
    open_frame(codec, data, segments)
    for mutant in _mutants(data, num_mutations, generator):
        assert not _opens(codec, mutant, segments), f"{codec}: accepted a damaged frame"
    begin = frame.overhead_nbytes(segments.num_segments)
    for _ in range(100):  # a right checksum: they decode to something or are refused
        noise = torch.randint(256, (data.numel() - begin,), generator=generator)
        forged = torch.cat([data[:begin], noise.to(torch.uint8)])
        reseal(forged)
        _opens(codec, forged, segments)


def _opens(codec: Codec, data: Tensor, segments: Segments) -> bool:
    """Return whether a frame is accepted."""
    try:
        open_frame(codec, data, segments)
    except CorruptFrameError:
        return False
    return True


def _mutants(data: Tensor, num_random: int, generator: torch.Generator) -> Iterator[Tensor]:
    for length in range(data.numel()):
        yield data[:length].clone()
    overhead = frame.overhead_nbytes(3)
    for bit in range(8 * overhead):
        mutant = data.clone()
        mutant[bit // 8] ^= 1 << (bit % 8)
        yield mutant
    for _ in range(num_random):
        mutant = data.clone()
        place = int(torch.randint(data.numel(), (1,), generator=generator))
        mutant[place] ^= int(torch.randint(1, 256, (1,), generator=generator))
        yield mutant


def reseal(data: Tensor) -> None:
    """Correct the checksum of a changed frame. Args: data: [W] uint8, W >= 32, a multiple of 8."""
    checksum = frame.checksum(data).to_bytes(8, "little")
    data[24:32] = torch.frombuffer(bytearray(checksum), dtype=torch.uint8)
