"""Error-bounded quantization in Triton, with the encoder bitpack. Same bytes as reference.py.

Encoding is five launches. Three read all rows: for the range of each segment; for the widths of
blocks and the sizes of groups; then, when a program a segment has added these up and written its
header, to write the groups. The last is for verbatim values, which few groups have. The sizes of
segments are known after the third launch, and the host waits for no more.

Decoding is two launches: a program a segment reads the headers of its groups, one by one, as each
says where the next one is; then all groups are unpacked. Nothing waits.

A program of the others has one warp and a chunk: some groups of 1024 values of one segment, one
after the other.
Shapes: S segments, C chunks, G groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.core.transfer import Download, upload
from trec_qcomm.ops.device import launch, no_segment, words
from trec_qcomm.ops.error_bound.gpu import reading, writing
from trec_qcomm.ops.error_bound.gpu.reading import NUM_REASONS
from trec_qcomm.ops.error_bound.quantizer.gpu import NO_KEY

_GROUP, _BLOCKS = 1024, 32
_MOST = 2**31 - 2**13  # values a segment, and between rows: their numbers are int32
_MANY_CHUNKS = 2**14  # enough to keep a GPU busy: where there are more, they get several groups
# Registers of a thread: the compiler would take 143 to measure and 226 to pack, for what is rare in
# the latter. With these, programs that read rows by 16 bytes spill only there.
_REGISTERS, _REGISTERS_TO_MEASURE = 128, 80
_FEW_GROUPS, _MANY_GROUPS = 32, 2048  # that a program of `lay_out` takes at a time


@dataclass(frozen=True, eq=False)
class _Groups:
    """Args: vectors: num_values, start, gaps (between rows), at, extra: [S]; groups, chunks:
    [S + 1], the first of each segment; all int64 on the device.  num_segments: S.
    num_groups: G.  num_chunks: C.  most_groups: of a segment.  per_chunk: groups a chunk.
    dim: D.  vector: 4 or 1, a divisor of dim and of where rows begin.
    """

    vectors: tuple[Tensor, ...]
    num_segments: int
    num_groups: int
    num_chunks: int
    most_groups: int
    per_chunk: int
    dim: int
    vector: int

    @classmethod
    def of(cls, segments: Segments, at: Tensor, extra: Tensor, device: torch.device) -> "_Groups":
        """Args: at, extra: [S] int64 on CPU."""
        start, dim, num_values = segments.start, segments.dim, segments.num_rows * segments.dim
        gaps = torch.where(segments.num_rows > 1, segments.stride - dim, 0)
        for name, numbers in (("num_rows", num_values), ("stride", gaps)):
            if bool((numbers > _MOST).any()):
                most = int(numbers.max())
                raise ValueError(f"Segments.{name}: {most} values, and at most {_MOST} on a GPU")
        groups = -(-num_values // _GROUP)
        num_groups = int(groups.sum())
        per_chunk = min(max(num_groups // _MANY_CHUNKS, 1), 8)
        chunks = -(-groups // per_chunk)
        misplaced = (start | gaps) % 4
        vectors = upload(
            device, num_values, start, gaps, at, extra, exclusive_cumsum(groups),
            exclusive_cumsum(chunks),
        )  # fmt: skip
        return cls(
            vectors, len(groups), num_groups, int(chunks.sum()),
            int(groups.max()) if len(groups) else 0, per_chunk, dim,
            4 if dim % 4 == 0 and not bool(misplaced.any()) else 1,
        )  # fmt: skip

    @property
    def layout(self) -> Sequence[Any]:
        """num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim: what every
        kernel takes."""
        num_values, start, gaps, at, _, groups, chunks = self.vectors
        sizes = self.num_segments, self.per_chunk, self.dim
        return num_values, start, gaps, at, groups, chunks, *sizes

    @property
    def extra(self) -> Tensor:
        """[S] int64."""
        return self.vectors[4]


def encode(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, bounds: Tensor, relative: bool
) -> Tensor:
    """Write the segments; returns their nbytes, [S] int64 on CPU. bounds: [S] float64 on CPU."""
    device = values.device
    on = _Groups.of(segments, at, bounds.view(torch.int64), device)
    limits, payload32 = on.extra.view(torch.float64), words(payload, torch.int32)
    found = torch.full((3, on.num_segments), NO_KEY, dtype=torch.int32, device=device)
    segment_of_chunk = torch.empty(on.num_chunks, dtype=torch.int32, device=device)
    sizes, counts = torch.empty((2, on.num_groups), dtype=torch.int32, device=device)
    places, ranks = torch.empty((2, on.num_groups), dtype=torch.int64, device=device)
    widths = torch.empty(on.num_groups * _BLOCKS, dtype=torch.uint8, device=device)
    kinds, nbytes = torch.empty((2, on.num_segments), dtype=torch.int64, device=device)
    many: dict[str, Any] = {"VECTOR": on.vector, "num_warps": 1, "maxnreg": _REGISTERS}
    few = many | ({"maxnreg": _REGISTERS_TO_MEASURE} if on.vector == 4 else {})
    launch(
        writing.find_ranges, on.num_chunks, values, found, segment_of_chunk, *on.layout,
        STEPS=on.num_segments.bit_length(), **few,
    )  # fmt: skip
    launch(
        writing.measure, on.num_chunks, values, found, limits, segment_of_chunk, sizes, counts,
        widths, *on.layout, RELATIVE=relative, **few,
    )  # fmt: skip
    is_short = on.most_groups <= _FEW_GROUPS
    launch(
        writing.lay_out, on.num_segments, values, payload, payload32, found, limits, sizes, counts,
        places, ranks, kinds, nbytes, *on.layout, RELATIVE=relative,
        BLOCK=_FEW_GROUPS if is_short else _MANY_GROUPS, num_warps=1 if is_short else 4,
    )  # fmt: skip
    on_host = Download(nbytes)
    launch(
        writing.write, on.num_chunks, values, payload, payload32, found, limits, segment_of_chunk,
        kinds, sizes, counts, places, widths, *on.layout, RELATIVE=relative, **many,
    )  # fmt: skip
    launch(
        writing.write_verbatim, on.num_chunks, values, payload32, found, limits, segment_of_chunk,
        kinds, counts, ranks, nbytes, *on.layout, RELATIVE=relative, **many,
    )  # fmt: skip
    return on_host.wait()


def decode(encoded: Encoded, segments: Segments, out: Tensor) -> Tensor:
    """Write the rows back; returns [1] int32, NUM_REASONS times the first invalid segment plus its
    reason, or -1."""
    device = out.device
    on = _Groups.of(segments, encoded.at, encoded.nbytes, device)
    segment_of_chunk = torch.empty(on.num_chunks, dtype=torch.int32, device=device)
    places = torch.empty(on.num_groups, dtype=torch.int64, device=device)
    widths = torch.empty(on.num_groups * _BLOCKS, dtype=torch.uint8, device=device)
    kinds, used = torch.empty((2, on.num_segments), dtype=torch.int32, device=device)
    wrong, payload32 = no_segment(device), words(encoded.payload, torch.int32)
    launch(
        reading.read_headers, on.num_segments, encoded.payload, payload32, on.extra, wrong, kinds,
        used, segment_of_chunk, places, widths, *on.layout, num_warps=1,
    )  # fmt: skip
    launch(
        reading.read, on.num_chunks, payload32, payload32.numel(), out, on.extra, wrong, kinds,
        segment_of_chunk, places, widths, *on.layout, VECTOR=on.vector, num_warps=1,
        maxnreg=_REGISTERS,
    )  # fmt: skip
    return wrong


__all__ = ["NUM_REASONS", "decode", "encode"]
