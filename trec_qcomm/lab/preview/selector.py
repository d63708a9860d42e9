"""Selector: the codec, of several candidates, that is fastest for a table's rows on a given link.

    speed-up = 1 / (1/CR + B (1/Tc + 1/Td))

is the time to send float32 rows, divided by the time to encode, send and decode them. CR is the
compression ratio, B the link, Tc and Td the throughputs of the encoder and the decoder, all three
in GB/s of float32 rows. Below 1 a codec costs more time than it saves.

Knows: any Codec, its bytes and seconds. Does not know: tables, error bounds. In this model nothing
overlaps with encoding, so the real speed-up of a codec may be larger.
Source: SC'24 (Feng, Zhang et al.), choice of the encoder by table.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES, MEASURED_REPEATS, Throughput

_TIMED_NBYTES = 2**20  # least bytes of float32 rows: below, the call itself takes most of the time


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Ratio and speed of one codec on the rows of one table.

    Args:
        compression_ratio: float32 bytes / encoded bytes, frame headers excluded, > 0.
        throughput: speed of encoding and decoding; math.inf if the codec takes no time.
    """

    compression_ratio: float
    throughput: Throughput

    def __post_init__(self) -> None:
        _check_positive("compression_ratio", self.compression_ratio)

    def speed_up(self, link_gb_s: float) -> float:
        """Return the speed-up over float32 on a link of so many GB/s."""
        _check_positive("link_gb_s", link_gb_s)
        codec_s = 1 / self.throughput.encode_gb_s + 1 / self.throughput.decode_gb_s
        return 1 / (1 / self.compression_ratio + link_gb_s * codec_s)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The fastest of several candidates.

    Args: name, speed_up: name and speed-up of the fastest.  speed_ups: {name: speed-up} of all.
    """

    name: str
    speed_up: float
    speed_ups: Mapping[str, float]


def select(candidates: Mapping[str, Measurement], *, link_gb_s: float) -> Selection:
    """Return the candidate with the largest speed-up, the first one of equals.

    Args: candidates: {name: measurement}, one or more.  link_gb_s: B, GB/s one rank can send, > 0.
    Raises: ValueError: no candidates, or B is not a finite number > 0.
    """
    if not candidates:
        raise ValueError("candidates: expected one or more")
    speed_ups = {name: m.speed_up(link_gb_s) for name, m in candidates.items()}
    best = max(speed_ups, key=lambda name: speed_ups[name])
    return Selection(name=best, speed_up=speed_ups[best], speed_ups=speed_ups)


def measure(codec: Codec, batches: Sequence[Tensor]) -> Measurement:
    """Measure the codec on one thread of this machine's CPU, each batch as one segment.

    The ratio is that of all batches together, and is repeatable. The throughput is the median of 7
    calls for all of them. If they are less than 1 MiB, a call codes as many copies as make 1 MiB,
    since in training, too, small tables share their calls with others.

    Args: codec: the codec.  batches: one or more of [n_i >= 1, D >= 1] float32 on CPU, of one D.
    Raises: ValueError: batches of another shape, dtype or device.
    """
    shapes = {(rows.dim(), rows.shape[-1], rows.dtype, rows.numel() > 0) for rows in batches}
    dim = batches[0].shape[-1] if batches else 0
    if shapes != {(2, dim, torch.float32, True)}:
        raise ValueError("batches: expected one or more of [n >= 1, D >= 1] float32, of one D")
    rows = torch.cat(list(batches))
    copies = -(-_TIMED_NBYTES // (FLOAT32_NBYTES * rows.numel()))
    segments = Segments.packed([len(batch) for batch in batches] * copies, dim)
    rows = rows.repeat(copies, 1)
    encoded_nbytes, encode_s, decode_s = _time(codec, rows, segments)
    raw_nbytes = FLOAT32_NBYTES * rows.numel()
    return Measurement(
        compression_ratio=raw_nbytes / encoded_nbytes,
        throughput=Throughput(
            encode_gb_s=raw_nbytes / 1e9 / encode_s, decode_gb_s=raw_nbytes / 1e9 / decode_s
        ),
    )


def _time(codec: Codec, rows: Tensor, segments: Segments) -> tuple[int, float, float]:
    """Return the encoded bytes, and the median seconds of encoding and of decoding."""
    room = codec.max_nbytes(segments)
    at = exclusive_cumsum(room)[:-1]
    payload = torch.empty(int(room.sum()), dtype=torch.uint8)
    out = torch.empty_like(rows)
    encoded = codec.encode(rows, segments, payload, at)  # this call and the next compile
    codec.decode(encoded, segments, out)
    encode_s, decode_s = [], []
    for _ in range(MEASURED_REPEATS):
        begin = time.perf_counter()
        encoded = codec.encode(rows, segments, payload, at)
        middle = time.perf_counter()
        codec.decode(encoded, segments, out)
        encode_s.append(middle - begin)
        decode_s.append(time.perf_counter() - middle)
    return int(encoded.nbytes.sum()), statistics.median(encode_s), statistics.median(decode_s)


def _check_positive(where: str, value: object) -> None:
    if type(value) not in (int, float) or not 0 < value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{where}: {value!r} is not a finite number > 0")
