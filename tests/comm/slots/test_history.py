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


def history(*shares, margin=0.0, window=2):
    """A history of one frame whose payload took these shares of its rows."""
    seen = SlotHistory(SlotOptions(window=window, margin=margin), 1)
    for share in shares:
        seen.note(extents(1000), [OVERHEAD + round(1000 * share)])
    return seen


def rooms(seen, *given, alignment=8, **options):
    return slot.room(seen.capacities(extents(*given, **options), alignment)).tolist()


def test_without_history_there_is_room_for_the_header():
    assert rooms(history(), 4000) == [OVERHEAD]
    assert rooms(history(0.5, window=0), 4000) == [OVERHEAD]


def test_the_largest_of_the_last_frames_counts_by_rows():
    assert rooms(history(0.25), 4000) == [OVERHEAD + 1000]
    assert rooms(history(0.5, 0.25, 0.22), 4000) == [OVERHEAD + 1000]
    assert rooms(history(0.25, margin=0.1), 4000) == [OVERHEAD + 1104]  # a multiple of 8


def test_of_frames_that_differ_much_the_smallest_counts():
    assert rooms(history(0.5, 0.25, 0.125), 4000) == [OVERHEAD + 504]  # a multiple of 8
    assert rooms(history(0.125, 0.5), 4000) == [OVERHEAD + 504]


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
