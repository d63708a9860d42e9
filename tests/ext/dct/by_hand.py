"""Segments of topk, forward_mask and threshold written one by one from FORMAT.md, in plain Python.

The bytes of the library's operators are held against these.
"""

import math
import struct

import torch
from torch import Tensor

SIZES = {"fp32": 4, "fp16": 2, "int8": 1}
CODES = {"fp32": 0, "fp16": 1, "int8": 2}
BITMAP, COLUMNS, COUNTED_COLUMNS, BITMAP_OF_PLACES = 0, 1, 2, 255
TINY = 2.0**-126


def magnitude(x: float) -> tuple[bool, float]:
    """Return a number by which magnitudes are ordered: NaN above inf above all finite ones."""
    return math.isnan(x), abs(x)


def largest(row: Tensor, k: int) -> list[int]:
    """Return the k columns of largest magnitude in order, the lowest ones where equal."""
    numbers = row.view(torch.int32) & 0x7FFFFFFF  # tells NaN from NaN, too
    order = sorted(range(len(row)), key=lambda d: (-int(numbers[d]), d))
    return sorted(order[:k])


def above(row: Tensor, threshold: float) -> list[int]:
    """Return the columns with |x| >= threshold, and NaN."""
    numbers = row.double().tolist()
    return [d for d, x in enumerate(numbers) if math.isnan(x) or abs(x) >= threshold]


def packed(numbers: list[int], width: int) -> bytes:
    """Return numbers of `width` bits each, without gaps, lowest bits first."""
    joined = sum(number << (place * width) for place, number in enumerate(numbers))
    return joined.to_bytes((len(numbers) * width + 7) // 8, "little")


def bitmap(places: list[int], num_bits: int) -> bytes:
    return sum(1 << place for place in places).to_bytes((num_bits + 7) // 8, "little")


def stored_values(kept: Tensor, stored: str) -> tuple[float, bytes]:
    """Return the scale and the bytes of the values. kept: [K] float32."""
    if stored == "fp32":
        return 0.0, kept.numpy().tobytes()
    top = max((abs(x) for x in kept.tolist() if math.isfinite(x)), default=0.0)
    if stored == "fp16":
        exponent = math.frexp(top)[1] - 14 if top else -126
        scale = max(2.0**exponent, TINY)
        halves = []
        for x in kept:
            half = (x / scale).to(torch.float16).view(torch.int16)
            nan = 0xFE00 if int(x.view(torch.int32)) < 0 else 0x7E00
            halves.append(nan if math.isnan(x) else int(half) & 0xFFFF)
        return scale, struct.pack(f"<{len(halves)}H", *halves)
    scale = torch.tensor(top) / torch.tensor(126.0)
    scale = torch.maximum(scale, torch.tensor(TINY))
    codes = []
    for x in kept:
        special = -128 if math.isnan(x) else 127 if x > 0 else -127
        codes.append(int((x / scale).round()) if math.isfinite(x) else special)
    return float(scale), struct.pack(f"<{len(codes)}b", *codes)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def topk_segment(rows: Tensor, kept: list[list[int]], stored: str, *, counted: bool) -> bytes:
    """Return the bytes of a segment. kept: the columns of each row of [n, D]."""
    dim, columns = rows.shape[1], [d for row in kept for d in row]
    form, positions = COLUMNS, packed(columns, (dim - 1).bit_length())
    if counted:
        counts = packed([len(row) for row in kept], dim.bit_length())
        form, positions = COUNTED_COLUMNS, counts + positions
    if len(positions) >= len(rows) * ((dim + 7) // 8):
        form, positions = BITMAP, b"".join(bitmap(row, dim) for row in kept)
    values = [rows[i, d] for i, row in enumerate(kept) for d in row]
    scale, data = stored_values(torch.stack(values) if values else torch.empty(0), stored)
    head = struct.pack("<BBHfI", CODES[stored], form, 0, scale, len(columns))
    return padded(head + data + positions)


def masked_segment(rows: Tensor, kept: list[list[int]], stored: str) -> bytes:
    values = [rows[i, d] for i, row in enumerate(kept) for d in row]
    scale, data = stored_values(torch.stack(values) if values else torch.empty(0), stored)
    return padded(struct.pack("<BBHf", CODES[stored], 0, 0, scale) + data)


def threshold_segment(values: Tensor, threshold: float, stored: str) -> bytes:
    """Return the bytes of a segment of N values, [N]."""
    places = above(values, threshold)
    gaps = [place - before - 1 for before, place in zip([-1, *places], places, strict=False)]
    width = max(gaps, default=0).bit_length()
    data = packed(gaps, width)
    if len(data) > (len(values) + 7) // 8:
        width, data = BITMAP_OF_PLACES, bitmap(places, len(values))
    scale, kept = stored_values(values[places], stored)
    head = struct.pack("<BBHfI", CODES[stored], width, 0, scale, len(places))
    return padded(head + kept + data)
