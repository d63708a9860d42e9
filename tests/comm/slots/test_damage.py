"""Slots, overflows and sizes that are not what a sender wrote, or that never come."""

from datetime import timedelta
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.comm.rows.test_device import as_on_a_gpu
from tests.comm.slots.test_exchange import make, rows_of
from tests.ops.backends import device_of
from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.comm.slots.on_device import EncodedOnDevice
from trec_qcomm.core.errors import CorruptFrameError, LostPeerError
from trec_qcomm.testing import run_ranks
from trec_qcomm.wire import frame, slot

CALL = 70000
CAPACITIES = np.array([0, 32, 64, 16])
SIZES = [0, 40, 24, 8]
FRAMES = torch.arange(sum(SIZES), dtype=torch.uint8)
RANKS = [4, 5, 6, 7]
LIMITS = np.array([0, 40, 64, 4096])


def filled():
    return slot.fill(FRAMES, SIZES, CAPACITIES, call=CALL)


def stated(slots, call=CALL):
    words = slot.words_of(slots, CAPACITIES)
    return slot.sizes_of(words, CAPACITIES, call=call, limits=LIMITS, ranks=RANKS)


def test_frames_come_out_as_they_went_in():
    """One frame is empty, one fits with room to spare, two overflow, of one all but its size."""
    slots = filled()
    assert len(slots) == CAPACITIES.sum()
    assert not slots[32 + 16 + 24 : 32 + 64].any()  # padding
    sent = slot.overflows(FRAMES, SIZES, CAPACITIES)
    assert [(p, len(message)) for p, message in sent] == [(1, 24), (3, 8)]
    assert stated(slots) == SIZES
    frames = slot.take_out(slots, CAPACITIES, SIZES)
    places = slot.overflows(frames, SIZES, CAPACITIES)
    for (p, place), (q, message) in zip(places, sent, strict=True):
        assert p == q
        place.copy_(message)
    assert torch.equal(frames, FRAMES)


def test_frames_that_fit_are_moved_in_place():
    capacities = np.array([64, 0, 40])
    sizes = [24, 0, 24]
    slots = slot.fill(FRAMES[:48], sizes, capacities, call=CALL)
    frames = slot.take_out(slots, capacities, sizes)
    assert frames.data_ptr() == slots.data_ptr()
    assert torch.equal(frames, FRAMES[:48])


@pytest.mark.parametrize("place", [0, 32, 96])
def test_any_flipped_bit_of_a_size_is_refused(place):
    for bit in range(128):
        slots = filled()
        slots[place + bit // 8] ^= 1 << bit % 8
        rank = {0: 5, 32: 6, 96: 7}[place]
        with pytest.raises(CorruptFrameError, match=f"rank {rank}: a slot's two words"):
            stated(slots)


@pytest.mark.parametrize("size", [48, -8, 12, 2**40])
def test_a_size_that_no_frame_has_is_refused(size):
    slots = filled()
    word = slot.size_words(np.int64(size) & (2**slot.SIZE_BITS - 1), CALL)
    slots.view(torch.int64)[0], slots.view(torch.int64)[1] = int(word), ~int(word)
    with pytest.raises(CorruptFrameError, match="rank 5: a size that no frame of this batch has"):
        stated(slots)


def test_slots_of_another_call_are_refused():
    assert stated(filled(), CALL + 2**16) == SIZES
    with pytest.raises(CorruptFrameError, match="rank 5: of another call: the ranks are out of"):
        stated(filled(), CALL + 1)


def exchanged():
    op = make("all-to-all", slots=True)
    op.start(rows_of(0, (30, op.layout.dim_sum(op.rank))), (10, 20)).wait()


def damaging_an_overflow():
    """Rank 0 changes a byte of what it sends beside its slot."""
    real, calls = slot.overflows, []

    def damage(frames, nbytes, capacities):
        calls.append(frames)
        if dist.get_rank() == 0 and len(calls) == 1:  # the second call is about what came
            frames[sum(nbytes[:2]) - 1] ^= 1
        return real(frames, nbytes, capacities)

    with mock.patch.object(slot, "overflows", damage):
        return raised(exchanged)


def first_half(message):
    return message[: len(message) // 16 * 8]


def truncating_an_overflow():
    """Rank 0 sends less beside its slot than the slot says."""
    real, calls = slot.overflows, []

    def truncate(frames, nbytes, capacities):
        calls.append(frames)
        messages = real(frames, nbytes, capacities)
        if dist.get_rank() == 0 and len(calls) == 1:
            return [(p, first_half(message) if p == 1 else message) for p, message in messages]
        return messages

    with mock.patch.object(slot, "overflows", truncate):
        return raised(exchanged)


def truncating_an_overflow_on_a_gpu():
    """Rank 0 sends less beside its slot in a GPU's memory; without one, kernels are interpreted."""
    real = EncodedOnDevice.overflows

    def truncate(encoded, nbytes, capacities):
        messages = real(encoded, nbytes, capacities)
        if dist.get_rank() == 0:
            messages[1] = first_half(messages[1])
        return messages

    def exchanged_on_a_gpu():
        op = make("all-to-all", slots=True, bounded=ErrorBounded(0.02))
        op.start(rows_of(0, (5, op.layout.dim_sum(op.rank))).to(device_of("gpu")), (3, 2)).wait()
        op.checks.raise_found(wait=True)

    with (
        mock.patch.object(EncodedOnDevice, "overflows", truncate),
        mock.patch.object(slot, "DEVICE_ALIGNMENT", 8),  # a larger one leaves room for all
        mock.patch.object(frame, "is_on_gpu", frame.is_on_gpu),  # which the next line changes
        as_on_a_gpu(),
    ):
        return raised(exchanged_on_a_gpu)


def losing_an_overflow():
    """Rank 0 states a size and never sends the rest."""
    pg = dist.new_group(timeout=timedelta(seconds=2))
    op = make("all-to-all", slots=True, pg=pg)
    rows = rows_of(0, (30, op.layout.dim_sum(op.rank)))
    if dist.get_rank() == 1:
        return raised(lambda: op.start(rows, (10, 20)).wait())
    with mock.patch.object(slot, "overflows", return_value=[]):
        pending = op.start(rows, (10, 20))
        pending._call.pending._work.wait()
    return ""


def raised(action):
    try:
        action()
    except (CorruptFrameError, LostPeerError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def everything():
    """The faults one after the other; ranks leave together, as gone ranks would be lost, too."""
    results = []
    faults = (
        damaging_an_overflow,
        truncating_an_overflow,
        truncating_an_overflow_on_a_gpu,
        losing_an_overflow,
    )
    for fault in faults:
        results.append(fault())
        dist.barrier()
    return results


@pytest.mark.dist
@pytest.mark.triton
def test_a_bad_or_missing_overflow_is_an_error_that_names_the_rank():
    (*of_senders, nothing), (*errors, lost) = run_ranks(everything, 2)
    assert errors == ["CorruptFrameError: frame from rank 0: checksum differs"] * 3
    assert of_senders == [""] * 3
    assert lost.startswith("LostPeerError: rank 1: rank 0 did not answer in")
    assert "overflow of the forward all-to-all of rows, step 0" in lost
    assert nothing == ""
