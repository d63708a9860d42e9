"""Cost of a codec: the bytes it puts on the wire and the seconds it takes.

Knows: any Codec, frames. Does not know: plans, which table has which codec.
Shapes: F segments in a frame, n_f rows in each, D values a row. Throughputs are GB/s of the float32
rows (4 n D bytes), not of the encoded bytes; 1 GB = 1e9 bytes.
"""

import math
import statistics
import timeit
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ext.dct.masks import Masks
from trec_qcomm.wire.frame import overhead_nbytes

FLOAT32_NBYTES = 4
MEASURED_NBYTES = 2**23  # float32 bytes of rows in a call: a few tables, more than caches hold
MEASURED_REPEATS = 7


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Speed of a codec on one device.

    Args: encode_gb_s, decode_gb_s: GB/s of float32 rows, > 0; math.inf if coding takes no time.
    """

    encode_gb_s: float
    decode_gb_s: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) not in (int, float) or math.isnan(value) or value <= 0:
                raise ValueError(f"throughput.{field.name}: {value!r} is not a number > 0")

    def codec_s(self, *, encoded_nbytes: float, decoded_nbytes: float) -> float:
        """Return the seconds to encode and then to decode rows of so many float32 bytes."""
        return (encoded_nbytes / self.encode_gb_s + decoded_nbytes / self.decode_gb_s) / 1e9


@cache
def wire_nbytes(codec: Codec, num_rows: tuple[int, ...], dim: int) -> int:
    """Return the size of a frame that holds a segment of n_f rows for each f, headers included.

    The size is exact if the codec is of fixed size, else an upper bound (`Codec.max_nbytes`).
    """
    payload = codec.max_nbytes(Segments.packed(num_rows, dim)).sum()
    return int(payload) + overhead_nbytes(len(num_rows))


@cache
def measure_throughput(codec: Codec, dim: int) -> Throughput:
    """Measure the codec on one thread of this machine's CPU, on 8 MiB of normal rows.

    The result is the median of 7 calls. Each codec and dim is measured once a process, which takes
    about 0.1 s after compiling.
    """
    num_rows = MEASURED_NBYTES // (FLOAT32_NBYTES * dim)
    segments = Segments.packed((num_rows,), dim)
    if codec.follows_forward:  # as after a forward pass that kept all columns
        masks = Masks.of_all_columns(segments.num_rows, torch.full_like(segments.num_rows, dim))
        segments = segments.with_notes(masks)
    rows = torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(0))
    encode_s, decode_s = coding_s(codec, rows, segments)
    raw_gb = rows.numel() * FLOAT32_NBYTES / 1e9
    return Throughput(encode_gb_s=raw_gb / encode_s, decode_gb_s=raw_gb / decode_s)


def coding_s(codec: Codec, rows: Tensor, segments: Segments) -> tuple[float, float]:
    """Return the median seconds of 7 calls that encode rows, and of 7 that decode them.

    An untimed call of each compiles first. Args: rows: float32 on a CPU, contiguous.
    """
    nbytes, out = codec.max_nbytes(segments), torch.empty_like(rows)
    payload = torch.empty(int(nbytes.sum()), dtype=torch.uint8)
    at = exclusive_cumsum(nbytes)[:-1]
    encoded = codec.encode(rows, segments, payload, at)
    codec.decode(encoded, segments, out)
    return (
        _median_s(lambda: codec.encode(rows, segments, payload, at)),
        _median_s(lambda: codec.decode(encoded, segments, out)),
    )


def _median_s(call: Callable[[], object]) -> float:
    return statistics.median(timeit.repeat(call, repeat=MEASURED_REPEATS, number=1))
