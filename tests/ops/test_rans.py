"""rANS: cpu writes the bytes of reference, near the entropy, and refuses what it did not write."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.index_encoders import (
    MAX_INDEX,
    as_indices,
    awkward,
    forgeries,
    normal,
    with_outliers,
)
from trec_qcomm.jit import kernel
from trec_qcomm.ops.rans import cpu, reference, stream


@kernel
def encode_segment(q, out):
    return np.int64(cpu.encode(q, out, cpu.encoder_scratch(q.size)))


@kernel
def decode_segment(data, q):
    return cpu.decode(data, q, np.float32(0), cpu.decoder_scratch())


def encode(q):
    """Return the bytes that cpu writes into a buffer of exactly their size."""
    out = np.full(6 * q.size + 2000, 0xA5, np.uint8)
    nbytes = encode_segment(q, out)
    exact = np.full(nbytes + 16, 0x5A, np.uint8)
    assert encode_segment(q, exact[:nbytes]) == nbytes
    assert (exact[nbytes:] == 0x5A).all()
    assert (exact[:nbytes] == out[:nbytes]).all()
    return exact[:nbytes].copy()


def decode(data, num_values):
    q = np.full(num_values, 77, np.int32)
    return q if decode_segment(data, q) else None


def decode_reference(data, num_values):
    try:
        return reference.decode_segment(torch.from_numpy(data), 1, num_values).numpy()
    except ValueError:
        return None


def check(q):
    """Check that cpu and reference write the same bytes and read them back. Return them."""
    data = encode(q)
    expected = reference.encode_segment(torch.from_numpy(q), 1)
    assert expected.dtype == torch.uint8
    assert np.array_equal(expected.numpy(), data)
    assert np.array_equal(decode(data, q.size), q)
    assert np.array_equal(decode_reference(data, q.size), q)
    return data


# Indices for each kind of bytes: 1, 2, 4, 8 states; low bits; escapes; one class; nothing to gain.
KINDS = [
    normal(2, 50),
    normal(2, 500),
    normal(300, 1500),
    normal(4, 5001),
    normal(0.4, 16_500),
    with_outliers(3, 5000),
    np.full(300, -9, np.int32),
    np.arange(48, dtype=np.int32) * 1000,
]


def entropy_nbytes(q):
    counts = np.unique(q, return_counts=True)[1]
    return float((counts * np.log2(q.size / counts)).sum() / 8)


@pytest.mark.parametrize("dim", [1, 7, 16])
def test_awkward_indices(dim):
    for q in awkward(dim):
        check(q)


@settings(deadline=None, max_examples=60)
@given(
    num_values=st.integers(1, 6000),
    sigma=st.floats(0.05, 1e4),
    center=st.integers(-(2**21), 2**21),
    share=st.sampled_from([0, 0.001, 0.1, 0.6]),
)
def test_any_distribution(num_values, sigma, center, share):
    check(with_outliers(sigma, num_values, share) // 2 + np.int32(center))


@pytest.mark.parametrize("q", KINDS)
def test_smaller_buffers_are_refused(q):
    """Nothing is written behind them."""
    nbytes = encode(q).size
    for room in [*range(0, nbytes, 1 + nbytes // 200), nbytes - 1]:
        out = np.full(nbytes + 8, 0x5A, np.uint8)
        assert encode_segment(q, out[:room]) == -1
        assert (out[room:] == 0x5A).all()


@pytest.mark.parametrize("q", KINDS)
def test_every_other_length_is_refused(q):
    data = encode(q)
    for n in range(data.size):
        assert decode(data[:n].copy(), q.size) is None
        if n % (1 + data.size // 40) == 0:
            assert decode_reference(data[:n].copy(), q.size) is None
    for extra in range(1, 5):
        longer = np.append(data, np.zeros(extra, np.uint8))
        assert decode(longer, q.size) is None
        assert decode_reference(longer, q.size) is None


@pytest.mark.parametrize("q", KINDS)
def test_forged_bytes(q):
    """Both backends decode them to the same indices, or both refuse them."""
    data, accepted = encode(q), 0
    for k, forged in enumerate(forgeries(data, 2000, seed=0)):
        ours = decode(forged, q.size)
        accepted += ours is not None
        if k % 51 == 0:
            theirs = decode_reference(forged, q.size)
            assert (ours is None) == (theirs is None)
            assert ours is None or np.array_equal(ours, theirs)
    assert accepted < 2000


def test_forged_headers_never_ask_for_more_than_is_there():
    data = encode(with_outliers(3, 500))
    assert data[0] <= reference.MAX_SHIFT
    for place, value in [(0, reference.MAX_SHIFT + 1), (0, 255), (1, 255), (2, 255), (3, 255)]:
        forged = data.copy()
        forged[place] = value
        assert decode(forged, 500) is None
        assert decode_reference(forged, 500) is None


def test_states_of_long_segments():
    """Segments of 16 and 32 states; of one stream and of two, the last one longer."""
    for num_values in (32_768, 65_535, 65_536, 131_071, 131_072, 180_001):
        check(with_outliers(30, num_values, 0.001))
    for sigma, num_values in ((3, 33_001), (0.2, 20_007), (7, 70_003)):  # tables of few symbols
        check(normal(sigma, num_values))


def test_streams_of_every_number_of_states():
    """In Python, state by state and as the reference has them."""
    q, log = with_outliers(1, 403), 12
    counts = np.bincount(np.minimum(q + 4, 9), minlength=10)
    frequencies = np.array(reference.frequencies_of(counts.tolist(), log))
    symbols = [min(int(v) + 4, 9) for v in q]
    tables = np.empty(257, np.uint64), np.empty((257, 4), np.uint16)
    stream.fill_encoder_table(frequencies, log, *tables)
    table = np.empty(1 << log, np.uint64)
    stream.fill_decoder_table(frequencies, -4, 0, 9, table)
    for lanes in (1, 2, 4, 8, 16, 32):
        states, words = np.full(lanes, 1 << 15, np.uint32), np.empty(500, np.uint16)
        scratch = np.empty(q.size, np.uint16)
        used = stream.push_stream(q, -4, 0, 9, tables, log, scratch, words, states)
        expected = reference.push_stream(symbols, lanes, frequencies.tolist(), log)
        assert (states.tolist(), words[:used][::-1].tolist()) == expected
        decoded = np.empty_like(q)
        assert stream.pop_stream(words[:used][::-1].copy(), table, log, states, decoded)
        assert np.array_equal(np.where(decoded < -4, q.max(), decoded), q)


def test_quotients_without_a_division():
    """At and around multiples of f."""
    generator = np.random.default_rng(0)
    for log in (5, 12):
        f = np.arange(1, 1 << log)
        inverses, updates = np.empty(f.size, np.uint64), np.empty((f.size, 4), np.uint16)
        stream.fill_encoder_table(f, log, inverses, updates)
        top = 1 << (31 - log)
        for quotient in (0, 1, top - 1, *generator.integers(0, top, 40).tolist()):
            for x in (quotient * f, quotient * f + f - 1):
                exact = (x.astype(np.uint64) * inverses) >> np.uint64(31 + log)
                assert (exact == quotient).all()


def test_streams_end_where_their_words_do():
    num_values = 131_072
    data = check(normal(1, num_values))
    assert data[0] == data[3] == 0  # neither low bits nor escapes
    taken = reference.read_weights(reference.to_bits(bytes(data[4:516])), data[1] + 1)[1]
    states_at = (4 + (taken + 7) // 8 + 1) // 2 * 2
    count_at = states_at + 4 * 2 * 32
    count = int(data[count_at : count_at + 4].view(np.uint32)[0])
    max_words = (data.size - count_at - 4) // 2
    assert 0 < count < max_words
    forged = [(count_at, n) for n in (count - 1, count + 1, 0, max_words, max_words + 1, 2**32 - 1)]
    for place, word in [*forged, (states_at, 2**15 - 1), (count_at - 4, 2**31)]:
        other = data.copy()
        other[place : place + 4].view(np.uint32)[0] = word
        assert decode(other, num_values) is None
        assert decode_reference(other, num_values) is None


def test_frequencies_fill_the_table_and_drop_no_class():
    generator = np.random.default_rng(0)
    for _ in range(200):
        size = int(generator.integers(1, 257))
        weights = (generator.pareto(0.3, size) * generator.integers(0, 2, size)).clip(0, 2e9)
        weights = [int(w) for w in weights]
        weights[0] += 1
        log = reference.table_log(int(generator.integers(2, 10**6)), size)
        f = reference.frequencies_of(weights, log)
        assert sum(f) == 1 << log
        assert all((n > 0) == (w > 0) for n, w in zip(f, weights, strict=True))


def test_total_of_trained_like_tables_is_within_3_percent_of_their_entropies():
    """26 tables of 3 to 2000 rows; two dims; normal and Laplace of 2 to 20 steps."""
    generator = np.random.default_rng(5)
    total = entropy = 0.0
    for table, num_rows in enumerate(np.geomspace(3, 2000, 26)):
        for dim in (16, 64):
            sigma, n = generator.uniform(2, 20), int(num_rows) * dim
            draw = generator.normal if table % 2 else generator.laplace
            q = as_indices(draw(0, sigma / (1 if table % 2 else np.sqrt(2)), n))
            nbytes = encode(q).size
            assert nbytes <= entropy_nbytes(q) + 48 + 0.02 * entropy_nbytes(q)
            total, entropy = total + nbytes, entropy + entropy_nbytes(q)
    assert total <= 1.03 * entropy


def test_the_bytes_of_the_format_page():
    """The header r, A - 1, base, E; weights 2, 12 and 2; padding; a state; a word."""
    q = np.array([0, 0, 0, 1, 0, -1, 0, 0] * 2, np.int32)
    assert check(q).tobytes().hex(" ") == "00 02 01 00 0c 23 01 00 95 fc 00 00 78 20"


def test_equal_indices_cost_a_few_bytes():
    assert encode(np.zeros(100_000, np.int32)).size == 4
    assert encode(np.full(100_000, -MAX_INDEX, np.int32)).size <= 8
