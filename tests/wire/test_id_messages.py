"""Messages of ids: several peers' in one buffer, and every damage to one is seen."""

import pytest
import torch

from tests.fuzz import ids as fuzz
from tests.ops.fake_gpu import fake_gpu
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.ops.id_messages.cpu import HEADER_NBYTES
from trec_qcomm.testing import reseal
from trec_qcomm.wire.id_messages import pack, unpack

IDS, LENGTHS = torch.tensor([5, 9, 10, 7, 7, 1, 30]), torch.tensor([1, 1, 1, 2, 0, 0, 1, 1])
NAMES = ["a", "b"]


def sent(*, even=True, dtype=torch.int64):
    """Return messages to three peers, the second one of which looks up nothing."""
    bags = Bags(IDS, LENGTHS.to(dtype), torch.tensor([2, 2, 2, 2]))
    return pack(bags, [2, 0, 2], even_bags=2 if even else None)


def received(*, even=True, dtype=torch.int64):
    """Return what a rank gets from two peers that sent it the same."""
    first = sent(even=even, dtype=dtype)
    return first.buffer[: first.nbytes[0]].repeat(2), [2, 2] if even else None


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_messages_of_two_peers(even, dtype):
    packed = sent(even=even)
    assert packed.nbytes[1] == 0
    assert sum(packed.nbytes) == len(packed.buffer)
    buffer, even_bags = received(even=even, dtype=dtype)
    bags = unpack(buffer, [0, 1], NAMES, even_bags, (torch.int64, dtype))
    assert bags.ids.tolist() == IDS[:5].tolist() * 2
    assert bags.lengths.tolist() == LENGTHS[:4].tolist() * 2
    assert bags.lengths.dtype == dtype
    assert bags.ids.dtype == torch.int64
    assert bags.num_bags.tolist() == [2] * 4


def test_a_rank_that_looks_up_nothing():
    nothing = torch.zeros(0, dtype=torch.uint8)
    assert len(unpack(nothing, [0, 1], [], [2, 2]).ids) == 0
    with pytest.raises(CorruptFrameError, match="8 bytes of ids where none were due"):
        unpack(torch.zeros(8, dtype=torch.uint8), [0, 1], [], [2, 2])


def test_every_flipped_bit_and_every_prefix_is_seen():
    buffer, even_bags = received()
    for length in range(len(buffer)):
        with pytest.raises(CorruptFrameError):
            unpack(buffer[:length].clone(), [0, 1], NAMES, even_bags)
    for bit in range(0, 8 * len(buffer), 5):
        damaged = buffer.clone()
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(CorruptFrameError):
            unpack(damaged, [0, 1], NAMES, even_bags)


def forged(place, value):
    """Return the second of two messages with one byte changed and a right checksum."""
    buffer, even_bags = received()
    second = buffer[len(buffer) // 2 :]
    second[place] = value
    reseal(second)
    return buffer, even_bags


FORGED = {
    "magic": (0, 0, r"frame from rank 1: not a message of ids \(magic\)"),
    "version": (4, 1, "message of ids of another wire version; this release reads version 3"),
    "unknown flag": (6, 8, "flags of a message of ids are unknown"),
    "other flags": (6, 1, "rank 1: flags of a message of ids .* differ from this rank's"),
    "features": (8, 3, "number of features in a message of ids differs"),
    "bags": (12, 3, "frame from rank 1: 3 bags where 2 were announced"),
    "size": (16, 44, "size of a message of ids differs"),
    "head": (HEADER_NBYTES, 40, "rank 1: ids of feature 'a': .* too many bits"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_is_wrong_is_said(name):
    place, value, text = FORGED[name]
    buffer, even_bags = forged(place, value)
    with pytest.raises(CorruptFrameError, match=text):
        unpack(buffer, [0, 1], NAMES, even_bags)


@pytest.mark.parametrize("flag", [1, 2, 4])
def test_flags_of_the_first_message_name_its_sender(flag):
    buffer, even_bags = received()
    first = buffer[: len(buffer) // 2]
    first[6] ^= flag
    reseal(first)
    with pytest.raises(CorruptFrameError, match="frame from rank 5: flags of a message of ids"):
        unpack(buffer, [5, 7], NAMES, even_bags)


def test_even_and_stated_bags_do_not_mix():
    buffer, _ = received(even=False)
    with pytest.raises(CorruptFrameError, match="batch with sizes by feature"):
        unpack(buffer, [0, 1], NAMES, [2, 2])


@pytest.mark.triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="takes the host's memory for a GPU's")
@pytest.mark.parametrize("even", [True, False])
def test_messages_on_a_gpu(even):
    """Both sides read what the other one sent; on a GPU messages begin at multiples of 128."""
    theirs = sent(even=even)
    with fake_gpu():
        ours = sent(even=even)
        assert [nbytes % 128 for nbytes in ours.nbytes] == [0] * 3
        assert ours.num_ids == theirs.num_ids
        buffer, even_bags = received(even=even)
        on_gpu = unpack(theirs.buffer[: theirs.nbytes[0]].repeat(2), [0, 1], NAMES, even_bags)
    assert ours.nbytes[0] > theirs.nbytes[0]
    on_cpu = unpack(buffer, [0, 1], NAMES, even_bags)
    for bags in (on_gpu, on_cpu):
        assert bags.ids.tolist() == IDS[:5].tolist() * 2
        assert bags.lengths.tolist() == LENGTHS[:4].tolist() * 2
        assert bags.num_bags.tolist() == [2] * 4


def refusal(buffer, even_bags):
    with pytest.raises(CorruptFrameError) as error:
        unpack(buffer, [0, 1], NAMES, even_bags)
    return str(error.value)


@pytest.mark.triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="takes the host's memory for a GPU's")
def test_a_gpu_refuses_what_a_cpu_does():
    whole, even_bags = received()
    damaged = [forged(*FORGED[name][:2])[0] for name in FORGED]
    damaged += [whole[:length].clone() for length in (8, len(whole) - 8)]
    for bit in range(0, 8 * len(whole), 307):
        flipped = whole.clone()
        flipped[bit // 8] ^= 1 << (bit % 8)
        damaged.append(flipped)
    for buffer in damaged:
        expected = refusal(buffer, even_bags)
        with fake_gpu():
            assert refusal(buffer, even_bags) == expected


def test_forged_messages():
    assert 100 < fuzz.search(250, 0) < 250
