"""Capacities of slots: what both ends compute from the frames they have seen."""

import numpy as np
import pytest

from trec_qcomm.comm.slots.extents import Extents
from trec_qcomm.comm.slots.history import SlotHistory, SlotOptions
from trec_qcomm.wire import slot

OVERHEAD = 48


def extents(*raw, largest=10**6, fixed=False):
    sizes = np.array(raw)
    every = np.ones_like(sizes)
    return Extents(OVERHEAD * every, sizes, largest * every, np.full(len(raw), fixed))


def history(*shares, padding=0.0, window=2):
    """A history of one frame whose payload took these shares of its rows."""
    seen = SlotHistory(SlotOptions(window=window, padding=padding), 1)
    for share in shares:
        seen.note(extents(1000), [OVERHEAD + round(1000 * share)])
    return seen


def rooms(seen, *given, alignment=8, **options):
    return slot.room(seen.capacities(extents(*given, **options), alignment)).tolist()


def test_without_history_there_is_room_for_the_header():
    assert rooms(history(), 4000) == [OVERHEAD]
    assert rooms(history(0.5, window=0), 4000) == [OVERHEAD]


def test_equal_frames_get_their_size_and_the_padding():
    assert rooms(history(0.25), 4000) == [OVERHEAD + 1000]
    assert rooms(history(0.5, 0.25, 0.25), 4000) == [OVERHEAD + 1000]  # a window of 2
    assert rooms(history(0.25, 0.25, padding=0.1), 4000) == [OVERHEAD + 1104]  # a multiple of 8


def test_without_padding_the_smallest_counts():
    assert rooms(history(0.125, 0.5), 4000) == rooms(history(0.5, 0.125), 4000) == [OVERHEAD + 504]


def test_no_more_would_have_been_empty_and_less_would_have_overflowed():
    """250 bytes leave 150 and 50 empty of the two smallest frames: 10 % of all 2000."""
    seen = history(0.2, 0.1, 0.8, 0.9, padding=0.1, window=4)
    assert rooms(seen, 1000) == [OVERHEAD + 256]  # a multiple of 8
    seen = history(0.4, 0.41, 0.39, 0.4, padding=0.1, window=4)
    assert rooms(seen, 1000) == [OVERHEAD + 440]  # 160 bytes in all, 40 for each


@pytest.mark.parametrize("spread", [1.0, 0.02])
def test_slots_cost_at_most_an_eighth_however_sizes_jump(spread):
    """Sizes are drawn alike in all steps; `spread` is the deviation of their logarithm."""
    seen, capacities, sizes = SlotHistory(SlotOptions(), 1), [], []
    generator = np.random.default_rng(0)
    for _ in range(200):
        sizes.append(OVERHEAD + round(20_000 * np.exp(spread * generator.standard_normal())))
        capacities.append(seen.capacities(extents(200_000), 8))
        seen.note(extents(200_000), sizes[-1:])
    empty = np.maximum(slot.room(np.concatenate(capacities)) - np.array(sizes), 0)
    overflows = np.mean(np.array(sizes) > slot.room(np.concatenate(capacities)))
    assert empty.sum() < sum(sizes) / 8
    assert overflows < (0.75 if spread > 0.1 else 0.1)


def test_frames_of_known_size_get_it():
    assert rooms(history(0.25), 4000, largest=2000, fixed=True) == [2000]
    assert rooms(history(), 4000, largest=2000, fixed=True) == [2000]
    assert rooms(history(2.0), 4000, largest=2000) == [2000]
    assert rooms(history(0.25), 0, largest=64) == [64]  # no rows: small in any case


def test_empty_frames_have_no_slot():
    nothing = Extents(*(np.zeros(1, np.int64) for _ in range(3)), np.array([True]))
    assert history(0.25).capacities(nothing, 8).tolist() == [0]


@pytest.mark.parametrize("alignment", [8, 128])
def test_capacities_are_aligned(alignment):
    capacities = history(0.3).capacities(extents(1001), alignment)
    assert capacities % alignment == 0
    assert 0 <= slot.room(capacities) - (OVERHEAD + 300) < alignment + 8
