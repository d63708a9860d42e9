"""A codec of variable size, for tests: zlib over the float32 bytes. EXACT."""

import zlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from trec_qcomm import CorruptFrameError, register_codec
from trec_qcomm.core.codec import Contract
from trec_qcomm.core.segments import Encoded, Segments, aligned


@dataclass(frozen=True)
class Deflate:
    """Length [8 bytes], then the zlib stream of the rows."""

    name: ClassVar[str] = "deflate"
    fixed_size: ClassVar[bool] = False
    tolerance: ClassVar[None] = None
    wire_id: ClassVar[int] = 240
    contract: ClassVar[Contract] = Contract.EXACT

    def max_nbytes(self, segments: Segments) -> Tensor:
        raw = segments.num_rows * segments.dim * 4
        return aligned(8 + raw + raw // 1000 + 64)

    def encode(
        self,
        values: Tensor,
        segments: Segments,
        payload: Tensor,
        at: Tensor,
        *,
        seed: int = 0,
        tolerances: Tensor | None = None,
    ) -> Encoded:
        nbytes = torch.zeros_like(at)
        for s in range(segments.num_segments):
            stream = zlib.compress(segments.block(values, s).contiguous().numpy().tobytes())
            data = len(stream).to_bytes(8, "little") + stream
            data += bytes(-len(data) % 8)
            nbytes[s] = len(data)
            payload[int(at[s]) : int(at[s]) + len(data)] = torch.frombuffer(
                bytearray(data), dtype=torch.uint8
            )
        return Encoded(payload, at, nbytes)

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        for s in range(segments.num_segments):
            begin, size = int(encoded.at[s]), int(encoded.nbytes[s])
            data = bytes(encoded.payload[begin : begin + size].tolist())
            rows = segments.block(out, s)
            try:
                raw = zlib.decompress(data[8 : 8 + int.from_bytes(data[:8], "little")])
            except zlib.error as error:
                raise CorruptFrameError(str(error), segment=s) from error
            if len(raw) != rows.numel() * 4:
                raise CorruptFrameError("wrong length", segment=s)
            if raw:
                rows.copy_(torch.frombuffer(bytearray(raw), dtype=torch.float32).view(rows.shape))


register_codec(Deflate, Deflate())
