"""Values above a threshold in Triton. Same bytes as reference.py.

Encoding, step by step: read all values, mark in a bitmap what each chunk keeps, and count it; add
up the counts; read the kept values again and store them and their places; find the widest gap;
write headers; write places.
Decoding: check the headers; add up, for each chunk, the bits set in its bitmap or its gaps; write
the values of bitmaps, and zeros elsewhere; write the values that come with gaps.
Only `download`, which the binding calls for the sizes, waits for the device.
"""

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.device import no_segment
from trec_qcomm.ops.sparsify.gpu.values import views_of
from trec_qcomm.ops.threshold.gpu import read, write
from trec_qcomm.ops.threshold.gpu.value_chunks import ValueChunks

MAX_NUMEL = 2**31 - 2**16  # values of a segment; their places are int32
_WARPS = 4  # warps of a program that decodes: few chunks have gaps, and these need many registers


def encode(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, *, kind: int, levels: Tensor
) -> Tensor:
    """Write the segments; return [S] int64 nbytes on the device. Arguments: reference.py."""
    device, x = values.device, values.detach().view(torch.int32)
    chunks, levels = ValueChunks.from_segments(segments, at, device, levels)
    amax, widest, widths = torch.zeros((3, len(at)), dtype=torch.int32, device=device)
    bitmaps = torch.empty(chunks.num * chunks.size // 8, dtype=torch.uint8, device=device)
    places = torch.empty(chunks.num * chunks.size, dtype=torch.int32, device=device)
    counts = torch.zeros(chunks.num + 1, dtype=torch.int64, device=device)
    nbytes = torch.empty_like(levels)
    _, halves, words = views_of(payload)
    chunks.launch(write.mark, x, levels, bitmaps, counts, amax, KIND=kind)
    kept, bits = torch.cumsum(counts, 0), bitmaps.view(torch.int32)
    chunks.launch(write.gather, x, bits, kept, amax, places, payload, halves, words, KIND=kind)
    chunks.launch(write.widest_gaps, places, kept, widest)
    chunks.launch_headers(
        write.headers, kept, amax, widest, widths, nbytes, payload, words, KIND=kind
    )
    chunks.launch(write.positions, bitmaps, places, kept, widths, payload, KIND=kind)
    return nbytes


def decode(encoded: Encoded, segments: Segments, out: Tensor) -> Tensor:
    """Write the rows; return [1] int32: 8 times the first segment that is bad, plus what is wrong
    with it (cpu.BAD_...), or -1."""
    device, x = out.device, out.detach().view(torch.int32)
    chunks, nbytes = ValueChunks.from_segments(segments, encoded.at, device, encoded.nbytes)
    num_kept, wrong = torch.empty_like(nbytes), no_segment(device)
    kinds, widths = torch.empty((2, len(nbytes)), dtype=torch.int32, device=device)
    fields, memory = (num_kept, kinds, widths), views_of(encoded.payload)
    chunks.launch_headers(read.check_headers, memory[2], nbytes, *fields, wrong)
    counts = torch.zeros(chunks.num + 1, dtype=torch.int64, device=device)
    chunks.launch(read.add_up, encoded.payload, *fields, counts, num_warps=_WARPS)
    before = torch.cumsum(counts, 0)
    chunks.launch(read.fill, *memory, x, before, *fields, wrong, num_warps=_WARPS)
    chunks.launch(read.scatter, *memory, x, before, *fields, num_warps=_WARPS)
    return wrong


__all__ = ["MAX_NUMEL", "decode", "encode"]
