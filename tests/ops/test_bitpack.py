"""Bitpack: cpu writes the bytes of reference, reads them back, and refuses all others.

What a GPU refuses is in test_error_bound_gpu.py.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.backends import device_of, on
from tests.ops.index_encoders import MAX_INDEX, normal
from trec_qcomm import ErrorBounded
from trec_qcomm.core.segments import Segments
from trec_qcomm.ops.bitpack import cpu, reference
from trec_qcomm.ops.dispatch import default_backend


def encode(q: np.ndarray) -> np.ndarray:
    """Return the bytes that cpu writes into a buffer of exactly their size."""
    out = np.full(4 * len(q) + 8, 0xA5, np.uint8)
    nbytes = cpu.encode_segment(q, 1, out)
    exact = np.full(nbytes + 16, 0xA5, np.uint8)
    assert cpu.encode_segment(q, 1, exact[:nbytes]) == nbytes
    assert (exact[nbytes:] == 0xA5).all()
    assert (exact[:nbytes] == out[:nbytes]).all()
    return exact[:nbytes]


def decode(data: np.ndarray, num_values: int) -> np.ndarray | None:
    q = np.full(num_values, 77, np.int32)
    return q if cpu.decode_segment(data, 1, q) else None


def check(q: np.ndarray) -> None:
    data = encode(q)
    assert (reference.encode_segment(torch.from_numpy(q), 1).numpy() == data).all()
    assert (decode(data, len(q)) == q).all()
    assert (reference.decode_segment(torch.from_numpy(data), 1, len(q)).numpy() == q).all()


@pytest.mark.parametrize("num_values", [0, 1, 2, 7, 31, 32, 33, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("scale", [0, 0.05, 1, 30, 60, 200, 5000, 3e6])
def test_round_trip_and_parity(scale, num_values):
    check(normal(scale, num_values))


@pytest.mark.parametrize("width", range(25))
def test_every_width_alone_and_beside_narrow_ones(width):
    largest = np.int32((1 << width) - 1)
    top = reference.unzigzag(torch.tensor([largest])).numpy().clip(-MAX_INDEX, MAX_INDEX)
    q = normal(0.3, 3000)
    q[40:72] = top
    q[2999] = top[0]
    check(q)
    check(np.repeat(top, 1100).astype(np.int32))


@settings(deadline=None, max_examples=60)
@given(
    q=st.lists(
        st.one_of(st.just(0), st.integers(-3, 3), st.integers(-MAX_INDEX, MAX_INDEX)), max_size=150
    ),
    times=st.integers(1, 12),
)
def test_any_indices(q, times):
    check(np.array(q * times, np.int32))


def test_zeros_cost_a_byte_for_1024():
    assert len(encode(np.zeros(10 * 1024, np.int32))) == 10


def test_the_size_is_what_the_format_says():
    """Blocks of widths 3 and 5: a header, 2 codes of 2 bits, 12 bytes and 20 bytes."""
    q = np.zeros(64, np.int32)
    q[0], q[33] = 2, -16
    data = encode(q)
    assert len(data) == 1 + 1 + 12 + 20
    assert data[:3].tolist() == [3 | 2 << 5, 0b1000, 4]


@pytest.mark.parametrize("scale", [0, 1, 3000])
@pytest.mark.parametrize("num_values", [1, 40, 2500])
def test_every_other_length_is_refused(scale, num_values):
    data = encode(normal(scale, num_values))
    lengths = range(0, len(data), 1 + len(data) // 200)
    for wrong in [*(data[:n] for n in lengths), data[:-1], np.append(data, np.uint8(0))]:
        wrong = wrong.copy()
        assert decode(wrong, num_values) is None
        with pytest.raises(ValueError, match="invalid indices"):
            reference.decode_segment(torch.from_numpy(wrong), 1, num_values)


def test_too_little_room_is_told_and_nothing_written_beyond():
    for scale in (1, 3000):
        q = normal(scale, 3000)
        nbytes = len(encode(q))
        for room in [*range(0, nbytes, 97), nbytes - 1]:
            out = np.full(nbytes + 8, 0xA5, np.uint8)
            assert cpu.encode_segment(q, 1, out[:room]) == -1
            assert (out[room:] == 0xA5).all()


@pytest.mark.parametrize("num_values", [1, 33, 1500])
def test_backends_accept_the_same_random_bytes(num_values):
    generator = np.random.default_rng(num_values)
    data = encode(normal(2, num_values))
    accepted = 0
    for trial in range(300):
        forged = data.copy()
        if trial % 2:
            forged[generator.integers(len(data))] = generator.integers(256)
        else:
            forged[: 1 + trial % 30] = generator.integers(0, 256, len(forged[: 1 + trial % 30]))
        ours = decode(forged, num_values)
        try:
            theirs = reference.decode_segment(torch.from_numpy(forged), 1, num_values).numpy()
        except ValueError:
            theirs = None
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert (ours == theirs).all()
            accepted += 1
    assert 0 < accepted < 300 or num_values == 1


def check_on_gpu(parts: list[np.ndarray]) -> None:
    """Check the bytes of a GPU, a segment for each part.

    Only error_bound has kernels. With a bound of 1/2, indices are values.
    """
    values = torch.from_numpy(np.concatenate(parts)).float()[:, None].to(device_of("gpu"))
    segments = Segments.packed([len(q) for q in parts], 1)
    codec = ErrorBounded(0.5, "abs")
    max_sizes = codec.max_nbytes(segments)
    payload = torch.full((int(max_sizes.sum()),), 0xA5, dtype=torch.uint8, device=values.device)
    at = torch.cumsum(max_sizes, 0) - max_sizes
    with default_backend("gpu"):
        encoded = codec.encode(values, segments, payload, at)
    for q, at, nbytes in zip(parts, encoded.at.tolist(), encoded.nbytes.tolist(), strict=True):
        data = reference.encode_segment(torch.from_numpy(q), 1)
        assert nbytes == 8 + (len(data) + 7) // 8 * 8
        assert torch.equal(payload[at + 8 : at + 8 + len(data)].cpu(), data)
    out = torch.full_like(values, 77.0)
    on("gpu", codec.decode, encoded, segments, out)
    assert torch.equal(out, values)


@pytest.mark.triton
def test_every_width_on_a_gpu():
    """Each width alone in a group, between narrow blocks, and in last blocks of any length."""
    alone, beside = [], normal(0.3, 25 * 1024 + 40)
    for width in range(25):
        top = reference.unzigzag(torch.tensor([(1 << width) - 1, (1 << width) >> 1])).numpy()
        top = top.clip(-MAX_INDEX, MAX_INDEX).astype(np.int32)
        beside[1024 * width + 64 :][:32] = top[0]
        alone.append(np.resize(top, 1024))
    q = np.concatenate(alone)
    check_on_gpu([q[:-999], beside])
    check_on_gpu([normal(3.0**i, 34 + i) for i in range(13)])
