"""Packed ids: exact, the same bytes by both backends, small, and damaged bytes are refused."""

import math
import random
from itertools import accumulate

import pytest
import torch

from tests.ops.backends import assert_equal, on
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.ops.batch import packed_ids
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.ops.batch.packed_ids.reference import ITEMS_PER_BYTE, MAX_RUNS

BACKENDS = ("reference", "cpu")
LOWEST, HIGHEST = -(2**63), 2**63 - 1

# Lengths and ids of single segments: what is at the ends of a range, and beside it.
AWKWARD = {
    "nothing": ([], []),
    "empty bags": ([0] * 5, []),
    "one id": ([1], [7]),
    "the lowest id": ([1], [LOWEST]),
    "all of int64, sorted": ([1] * 3, [LOWEST, 0, HIGHEST]),
    "all of int64, in any order": ([1] * 3, [HIGHEST, LOWEST, -1]),
    "equal ids": ([1] * 9, [5] * 9),
    "neighbours": ([1] * 9, list(range(-4, 5))),
    "repeated": ([1] * 6, [-3, -3, 0, 0, 9, 9]),
    "one far away": ([1] * 40, [*range(39), 2**50]),
    "57 bits": ([1] * 5, [2**56, 0, 2**57 - 1, 3, 1]),
    "64 bits": ([1] * 17, [(-1) ** i * (2**62 + 2**61 + i) for i in range(17)]),
    "sorted and far apart": ([1] * 4, [-(2**62), -1, 2**61, 2**62]),
    "ragged": ([0, 3, 1, 0, 2, 5, 1, 1, 0, 0, 4, 2], list(range(19, 0, -1))),
    "a long bag": ([1] * 9 + [300] + [1] * 9, list(range(318))),
    "as many runs as may be": ([i % 2 for i in range(MAX_RUNS)], list(range(MAX_RUNS // 2))),
    "one run more": ([i % 2 for i in range(MAX_RUNS + 1)], list(range(MAX_RUNS // 2))),
    "a row-wise part": ([0] * 200 + [1] * 100 + [0] * 300, list(range(0, 300, 3))),
}


def random_segment(rng):
    """Return lengths and ids of any kind and width."""
    lengths = [rng.choice((0, 1, 1, 1, 2, 7)) for _ in range(rng.choice((0, 1, 3, 30)))]
    if rng.random() < 0.5:
        lengths = [1] * len(lengths)
    bits = rng.choice((0, 1, 3, 8, 20, 40, 55, 56, 57, 60, 63))
    ids = [rng.randint(-(2**bits), 2**bits - 1) for _ in range(sum(lengths))]
    return lengths, sorted(ids) if rng.random() < 0.6 else ids


def bags_of(segments, dtype=torch.int64):
    ids = torch.tensor([i for _, part in segments for i in part], dtype=dtype)
    lengths = torch.tensor([n for part, _ in segments for n in part], dtype=dtype)
    return Bags(ids, lengths, torch.tensor([len(part) for part, _ in segments], dtype=torch.int64))


def assert_same_bags(bags, expected):
    for name in ("ids", "lengths", "num_bags"):
        assert_equal([getattr(bags, name), getattr(expected, name)], name)


def check(segments, counts, *, states_bags, dtype=torch.int64):
    """Check that all backends write the same bytes and read each message; return the bytes."""
    bags = bags_of(segments, dtype)
    packed = [on(b, packed_ids.encode, bags, counts, states_bags=states_bags) for b in BACKENDS]
    assert packed[0].nbytes == packed[1].nbytes
    assert_equal([p.payload for p in packed])
    assert_equal([p.num_ids for p in packed])
    ends, first = list(accumulate(packed[1].nbytes)), 0
    for count, end, nbytes in zip(counts, ends, packed[1].nbytes, strict=True):
        assert nbytes % 8 == 0
        assert (nbytes > 0) == (count > 0)
        expected = bags_of(segments[first : first + count], dtype)
        for backend in BACKENDS if count else ():
            decoded, num_ids = on(
                backend, packed_ids.decode, packed[1].payload, [end - nbytes], [end],
                None if states_bags else expected.num_bags, num_segments=count,
                dtypes=(dtype, dtype),
            )  # fmt: skip
            assert_same_bags(decoded, expected)
            assert num_ids.tolist() == [len(ids) for _, ids in segments[first : first + count]]
        first += count
    return packed[1].payload


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_segments(name):
    for states_bags in (False, True):
        check([AWKWARD[name]], [1], states_bags=states_bags)


def test_random_messages():
    rng = random.Random(0)
    for _ in range(60):
        counts = [rng.choice((0, 1, 3)) for _ in range(3)]
        segments = [random_segment(rng) for _ in range(sum(counts))]
        check(segments, counts, states_bags=rng.random() < 0.5)


def test_int32_ids_and_lengths():
    check([([2, 0, 1], [5, -(2**31), 2**31 - 1])], [1], states_bags=True, dtype=torch.int32)
    wide = packed_ids.encode(bags_of([([1], [2**31])]), [1], states_bags=True)
    with pytest.raises(CorruptFrameError, match=r"does not fit in torch\.int32"):
        packed_ids.decode(
            wide.payload, [0], wide.nbytes, None, num_segments=1, dtypes=(torch.int32,) * 2
        )


def nbytes_of(lengths, ids):
    return len(packed_ids.encode(bags_of([(lengths, ids)]), [1], states_bags=False).payload)


def test_distinct_ids_cost_what_their_gaps_do():
    """Random gaps are geometric: their entropy is log2(e mean) bits, and Rice's code near it."""
    generator = torch.Generator().manual_seed(0)
    for limit in (10**4, 10**5, 10**6):
        ids = torch.randperm(limit, generator=generator)[:2000].sort().values
        bits = 8 * nbytes_of([1] * 2000, ids.tolist()) / 2000
        assert bits < 1.05 * math.log2(math.e * limit / 2000) + 0.1


def test_what_costs_nothing():
    """Lengths that are runs, and ids without gaps, take the least that a receiver accepts."""
    n = 6400
    assert nbytes_of([1] * n, list(range(n))) == 2 * n // ITEMS_PER_BYTE
    assert nbytes_of([3] * n, [7] * (3 * n)) == 4 * n // ITEMS_PER_BYTE
    assert nbytes_of([0] * n, []) < 2 * n // ITEMS_PER_BYTE
    assert nbytes_of([1] * n, [i * 37 % 1024 for i in range(n)]) < 10 * n // 8 + 24
    assert nbytes_of([0, 1, 1, 0] * (n // 4), list(range(n // 2))) < n // 8 + 24


def message(segments, *, states_bags=True):
    packed = packed_ids.encode(bags_of(segments), [len(segments)], states_bags=states_bags)
    return packed.payload


def decoded(data, count, num_bags=None):
    """Return what both backends make of some bytes; None where both refuse them."""
    results = []
    for backend in BACKENDS:
        try:
            bags, num_ids = on(
                backend, packed_ids.decode, data, [0], [len(data)], num_bags, num_segments=count
            )
        except CorruptFrameError:
            results.append(None)
        else:
            results.append([t.tolist() for t in (bags.ids, bags.lengths, bags.num_bags, num_ids)])
    assert results[0] == results[1]
    return results[0]


def test_every_prefix_and_every_flipped_bit():
    segments = [AWKWARD["one far away"], AWKWARD["ragged"], AWKWARD["57 bits"]]
    data = message(segments)
    whole = decoded(data, 3)
    spare = 8 + 7
    for length in range(0, len(data) - spare):
        assert decoded(data[:length].clone(), 3) is None, length
    refused = 0
    for bit in range(0, 8 * (len(data) - spare), 3):
        flipped = data.clone()
        flipped[bit // 8] ^= 1 << (bit % 8)
        other = decoded(flipped, 3)
        assert other != whole or bit // 8 > len(data) // 2
        refused += other is None
    assert refused > 50


# Heads of one segment that states its bags; what follows them is zeros.
FORGED = {
    "more bags than the bytes may hold": [0x80, 0x80, 0x80, 0x80, 8, 0, 1, 0],
    "more ids than the bytes may hold": [1, 0, 1, 0x80, 0x80, 0x80, 0x80, 8, 0, 0, 0],
    "3072 bags and as many ids in 48 bytes": [0x80, 0x18, 0, 1, 1, 1, 0, 0],
    "a product that overflows": [0x80, 2, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0, 0, 0],
    "a number of 11 bytes": [0x80] * 10 + [0],
    "a number above 2^64": [0xFF] * 9 + [2],
    "no run for a bag": [1, 0, 0],
    "a run for no bag": [0, 0, 1, 3],
    "a run of no bags": [2, 0, 2, 1, 0, 1, 0, 0, 0],
    "runs beyond the bags": [2, 0, 2, 1, 3, 1, 0, 0, 0],
    "lengths of 33 bits": [1, 33, 0, 0],
    "lengths that are not the ids": [2, 1, 0, 1, 0, 0, 0],
    "ids of kind 3": [1, 0, 1, 1, 3, 0, 0],
    "ids of kind 8": [1, 0, 1, 1, 8, 0, 0],
    "ids of 65 bits": [1, 0, 1, 1, 0, 65, 0],
    "high parts above 56 bits": [2, 0, 1, 1, 6, 57, 0, 1],
    "high parts without an end": [2, 0, 1, 1, 6, 0, 0, 1],
    "high parts beyond the bytes": [2, 0, 1, 1, 6, 0, 0, 0x80, 1],
    "high parts of no word": [1, 0, 1, 1, 6, 0, 0, 1],
}
HIGH_PARTS = [2, 0, 1, 1, 6, 0, 0]  # head of two ids, of which the second's word has a high part
FORGED |= {f"high parts {high}": [*HIGH_PARTS, len(high), *high] for high in ([8, 0], [9], [0])}


@pytest.mark.parametrize("name", FORGED)
def test_forged_heads_are_refused(name):
    sound = torch.tensor([*HIGH_PARTS, 1, 0b1000, *[0] * 8], dtype=torch.uint8)  # one word of 3
    assert decoded(sound, 1)[0] == [0, 4]
    data = torch.tensor(FORGED[name] + [0] * (48 - len(FORGED[name])), dtype=torch.uint8)
    assert decoded(data, 1) is None


def test_what_is_no_batch_is_a_value_error():
    ids, lengths, num_bags = torch.arange(3), torch.ones(3, dtype=torch.int64), torch.tensor([3])
    large = torch.full((4,), 2**62)  # whose sum overflows to 0
    for bags, text in (
        (Bags(ids.float(), lengths, num_bags), "ids: expected contiguous"),
        (Bags(ids, lengths[:, None], num_bags), "lengths: expected contiguous"),
        (Bags(ids, lengths - 2, num_bags), "lengths: some are negative"),
        (Bags(ids[:2], lengths, num_bags), "lengths: do not sum up"),
        (Bags(ids, lengths[:2], num_bags), "lengths: do not sum up"),
        (Bags(ids[:0], large, num_bags + 1), "lengths: do not sum up"),
        (Bags(ids, torch.cat([lengths, large]), num_bags + 4), "lengths: do not sum up"),
    ):
        with pytest.raises(ValueError, match=text):
            on("cpu", packed_ids.encode, bags, [1], states_bags=True)
    with pytest.raises(ValueError, match="hold the messages"):
        packed_ids.decode(torch.zeros(8, dtype=torch.uint8), [0], [9], None, num_segments=1)
