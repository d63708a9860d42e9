"""Packed ids in Triton: the bytes of the other backends, and the same damage refused.

Under the interpreter a segment takes a tenth of a second, so one call has many of them.
"""

import random

import pytest
import torch

from tests.ops.backends import device_of, on
from tests.ops.interpreter import fast_interpreter
from tests.ops.test_packed_ids import AWKWARD, FORGED, assert_same_bags, bags_of, random_segment
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.ops.batch import packed_ids
from trec_qcomm.ops.batch.packed_ids import Bags

pytestmark = pytest.mark.triton
GPU = device_of("gpu")


def on_gpu(bags):
    return Bags(bags.ids.to(GPU), bags.lengths.to(GPU), bags.num_bags)


def encoded(bags, counts, **options):
    with fast_interpreter():
        return on("gpu", packed_ids.encode, on_gpu(bags), counts, **options)


def decoded(payload, begins, ends, num_bags, backend="gpu", **options):
    """Return the bags, or why they are refused."""
    payload = payload.to(device_of(backend))
    try:
        with fast_interpreter():
            return on(backend, packed_ids.decode, payload, begins, ends, num_bags, **options)[0]
    except CorruptFrameError as error:
        return error.segment, error.reason


def without_room(packed, room):
    """Return the payload with zeros in the room before each message, which nobody has written."""
    payload, begin = packed.payload.cpu(), 0
    for nbytes in packed.nbytes:
        payload[begin : begin + min(room, nbytes)] = 0
        begin += nbytes
    return payload


@pytest.mark.parametrize(
    ("states_bags", "alignment"), [(True, 128), (False, 8)], ids=["stated bags", "given bags"]
)
def test_bytes_of_the_other_backends(states_bags, alignment):
    rng = random.Random(2 - states_bags)
    awkward = list(AWKWARD.values()) if states_bags else []
    segments = [*awkward, *(random_segment(rng) for _ in range(6))]
    bags, counts = bags_of(segments), [4, 0, len(segments) - 4]
    options = {"states_bags": states_bags, "room": 32, "alignment": alignment}
    ours, theirs = encoded(bags, counts, **options), packed_ids.encode(bags, counts, **options)
    assert ours.nbytes == theirs.nbytes
    assert [nbytes % alignment for nbytes in ours.nbytes] == [0] * 3
    assert torch.equal(ours.num_ids, theirs.num_ids)
    assert torch.equal(without_room(ours, 32), without_room(theirs, 32))
    for number, first, last in ((0, 0, 4), (2, 4, len(segments))):
        expected = bags_of(segments[first:last])
        end = sum(theirs.nbytes[: number + 1])
        result = decoded(
            theirs.payload, [end - theirs.nbytes[number] + 32], [end],
            None if states_bags else expected.num_bags, num_segments=last - first,
        )  # fmt: skip
        assert result.ids.device.type == torch.device(GPU).type
        assert_same_bags(result, expected)


def test_segments_that_end_beside_a_block_and_one_of_many_blocks():
    rng = random.Random(0)
    segments = [random_segment(rng) for _ in range(15)]
    for n in (0, 1, 1023, 1024, 1025):
        lengths = [rng.choice((0, 1, 2)) for _ in range(n)]
        ids = [rng.randrange(10**6) for _ in range(max(n, sum(lengths)))]
        segments += [([1] * n, sorted(ids[:n])), (lengths, ids[: sum(lengths)])]
    bags = bags_of([*segments, ([1] * 100_000, sorted(rng.sample(range(10**6), 100_000)))])
    ours, theirs = (
        encode(bags, [26], states_bags=False) for encode in (encoded, packed_ids.encode)
    )
    assert torch.equal(ours.payload.cpu(), theirs.payload)
    result = decoded(ours.payload, [0], ours.nbytes, bags.num_bags, num_segments=26)
    assert_same_bags(result, bags)


def test_int32_and_what_does_not_fit_it():
    bags = bags_of([([2, 0, 1], [5, -(2**31), 2**31 - 1])], torch.int32)
    ours = encoded(bags, [1], states_bags=True)
    options = {"num_segments": 1, "dtypes": (torch.int32, torch.int32)}
    assert_same_bags(decoded(ours.payload, [0], ours.nbytes, None, **options), bags)
    wide = packed_ids.encode(bags_of([([1], [2**31])]), [1], states_bags=True)
    _, reason = decoded(wide.payload, [0], wide.nbytes, None, **options)
    assert "does not fit in torch.int32" in reason


@pytest.mark.parametrize("name", [*list(FORGED)[:-3:5], *list(FORGED)[-3:]])
def test_forged_heads_are_refused_alike(name):
    data = torch.tensor(FORGED[name] + [0] * (48 - len(FORGED[name])), dtype=torch.uint8)
    theirs = decoded(data, [0], [48], None, "cpu", num_segments=1)
    assert isinstance(theirs, tuple)
    assert decoded(data, [0], [48], None, num_segments=1) == theirs


def test_wrong_lengths_are_a_value_error():
    ids, lengths, num_bags = torch.arange(3), torch.ones(3, dtype=torch.int64), torch.tensor([3])
    large = torch.full((4,), 2**62)  # whose sum overflows to 0
    for bags, text in (
        (Bags(ids, lengths - 2, num_bags), "lengths: some are negative"),
        (Bags(ids[:2], lengths, num_bags), "lengths: do not sum up"),
        (Bags(ids, lengths[:2], num_bags), "lengths: do not sum up"),
        (Bags(ids[:0], large, num_bags + 1), "lengths: some are negative, or"),
        (Bags(ids, torch.cat([lengths, large]), num_bags + 4), "lengths: some are negative, or"),
    ):
        with pytest.raises(ValueError, match=text):
            encoded(bags, [1], states_bags=True)
