"""Encoding, decoding and comparing backends of ops.error_bound, for tests of its kernels."""

import torch

from tests.ops.backends import device_of, on
from trec_qcomm import ErrorBounded
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, exclusive_cumsum
from trec_qcomm.ops.dispatch import default_backend

GPU = device_of("gpu")
CANARY = 0xA5


def codec_of(relative=False, encoder="bitpack"):
    """Return a codec whose bounds are given with each call."""
    return ErrorBounded(0.5, "rel" if relative else "abs", encoder)


def encode(values, segments, bound, relative, backend, encoder="bitpack"):
    """Encode into a payload of exactly max_nbytes each, between canaries."""
    codec = codec_of(relative, encoder)
    max_sizes = codec.max_nbytes(segments)
    payload = torch.full((int(max_sizes.sum()) + 16,), CANARY, dtype=torch.uint8)
    bounds = torch.full((segments.num_segments,), bound, dtype=torch.float64)
    device = device_of(backend)
    at = exclusive_cumsum(max_sizes)[:-1] + 8
    with default_backend(backend):
        encoded = codec.encode(
            values.to(device), segments, payload.to(device), at, tolerances=bounds
        )
    return Encoded(encoded.payload.cpu(), encoded.at, encoded.nbytes)


def decode(encoded, segments, like, backend):
    """Return the bits of the decoded rows, and of 9 around them."""
    device = device_of(backend)
    out = torch.full_like(like, 9.0, device=device)
    where = Encoded(encoded.payload.to(device), encoded.at, encoded.nbytes)
    on(backend, codec_of().decode, where, segments, out)
    return out.cpu().view(torch.int32)


def bytes_of(encoded, segment=0):
    """Return the bytes of one segment."""
    begin = int(encoded.at[segment])
    return encoded.payload[begin : begin + int(encoded.nbytes[segment])]


def check(values, segments, bound, relative=False, encoder="bitpack"):
    """Check that gpu and cpu write the same bytes and decode the same rows.

    Returns: the encoder fields of the segments that are not empty.
    """
    ours, theirs = (encode(values, segments, bound, relative, b, encoder) for b in ("gpu", "cpu"))
    assert ours.nbytes.tolist() == theirs.nbytes.tolist()
    for s in range(segments.num_segments):
        assert torch.equal(bytes_of(ours, s), bytes_of(theirs, s)), s
    for edge in (ours.payload[:8], ours.payload[-8:]):
        assert bool((edge == CANARY).all())
    decoded = [decode(theirs, segments, values, b) for b in ("gpu", "cpu")]
    assert torch.equal(*decoded)
    return {int(bytes_of(ours, s)[4]) & 15 for s in ours.nbytes.nonzero().view(-1).tolist()}


def noise(num_rows, width, seed=0):
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed))


def verdict(encoded, segments, like, backend):
    """Return the decoded bits, or what is wrong with which segment."""
    try:
        return decode(encoded, segments, like, backend).tolist()
    except CorruptFrameError as error:
        return error.segment, str(error)
