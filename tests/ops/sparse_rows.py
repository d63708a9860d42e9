"""Sparse rows coded and decoded by each backend, for the tests of ops.sparsify."""

from dataclasses import replace

import pytest
import torch

from tests.ops.backends import assert_equal, device_of
from trec_qcomm.core.segments import Encoded, Masks, Segments, exclusive_cumsum

CPU_BACKENDS = ("reference", "cpu")
ALL_BACKENDS = [*CPU_BACKENDS, pytest.param("gpu", marks=pytest.mark.triton)]
VALUES = ("fp32", "fp16", "int8")


def with_masks(segments: Segments, fill: int) -> Segments:
    dims = torch.full_like(segments.num_rows, segments.dim)
    masks = Masks.of_all_columns(segments.num_rows, dims)
    masks.bits.fill_(fill)
    return replace(segments, masks=masks)


def on_device(segments: Segments, backend: str) -> Segments:
    """Return the segments with a copy of their masks in memory that the backend can read."""
    bits = segments.masks.bits.to(device_of(backend), copy=True)
    return replace(segments, masks=Masks(bits, segments.masks.at))


def encode(op, values, segments, size, backend, fill, **options):
    """Return what `op` encodes, and its masks, from memory of just the declared size that was full
    of `fill`."""
    device = device_of(backend)
    payload = torch.full((int(size.sum()),), fill, dtype=torch.uint8, device=device)
    segments, at = on_device(segments, backend), exclusive_cumsum(size)[:-1]
    encoded = op(values.to(device), segments, payload, at, backend=backend, **options)
    return replace(encoded, payload=encoded.payload.cpu()), segments.masks.bits.cpu()


def segment_bytes(encoded: Encoded) -> list[list[int]]:
    spans = zip(encoded.at.tolist(), encoded.nbytes.tolist(), strict=True)
    return [encoded.payload[at : at + nbytes].tolist() for at, nbytes in spans]


def decode(op, encoded, segments, backend, shape):
    """Return the decoded values and masks."""
    segments = on_device(segments, backend)
    payload = encoded.payload.to(device_of(backend))
    out = torch.full(shape, 9.0, device=payload.device)
    op(replace(encoded, payload=payload), segments, out, backend=backend)
    return out.cpu(), segments.masks.bits.cpu()


def decode_by_each(op, encoded, segments, backends, shape):
    outs, masks = zip(*(decode(op, encoded, segments, b, shape) for b in backends), strict=True)
    assert_equal([out.view(torch.int32) for out in outs])
    assert_equal(masks)
    return outs[0], masks[0]
