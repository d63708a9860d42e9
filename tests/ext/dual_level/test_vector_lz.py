"""Vector-LZ: the kernels write the bytes of plain Python, find every equal row, refuse the rest."""

import numpy as np
import pytest

from tests.ext.dual_level import vector_lz_by_hand as by_hand
from tests.ops.index_encoders import (
    IndexEncoder,
    awkward,
    normal,
    rows_with_copies,
    with_outliers,
)
from trec_qcomm.ext.dual_level.vector_lz import cpu
from trec_qcomm.ops.bitpack import cpu as bitpack

ENCODERS = {dim: IndexEncoder(cpu, by_hand, dim) for dim in (1, 2, 7, 16)}
WINDOW = by_hand.WINDOW

# Literals alone, and copies: of narrow rows, wide rows, and rows of one index.
KINDS = [
    (16, normal(5, 480)),
    (16, rows_with_copies(5, 100, 16)),
    (7, rows_with_copies(1e5, 61, 7)),
    (1, np.repeat(normal(1e6, 20), 30)),
]


def literals_nbytes(q):
    return bitpack.encode_segment(q, 1, np.zeros(4 * q.size + 100, np.uint8))


@pytest.mark.parametrize("dim", [1, 7, 16])
def test_awkward_indices(dim):
    for q in awkward(dim):
        data = ENCODERS[dim].check(q)
        assert data.size <= 1 + literals_nbytes(q)


@pytest.mark.parametrize(("dim", "q"), KINDS)
def test_smaller_buffers_are_refused(dim, q):
    ENCODERS[dim].check_room(q)


@pytest.mark.parametrize(("dim", "q"), KINDS)
def test_every_other_length_is_refused(dim, q):
    ENCODERS[dim].check_lengths(q)


@pytest.mark.parametrize(("dim", "q"), KINDS)
def test_forged_bytes(dim, q):
    ENCODERS[dim].check_forged(q, 500)


@pytest.mark.parametrize("distance", [1, 2, WINDOW, WINDOW + 1])
def test_the_window_is_255_rows(distance):
    """The second half repeats the first: it is copied if the window reaches back so far."""
    first = normal(1000, 16 * distance)
    data = ENCODERS[16].check(np.tile(first, 2))
    copies = 1 + (2 * distance + 7) // 8 + distance
    if distance <= WINDOW:
        assert data.size == copies + literals_nbytes(first)
        assert (data[copies - distance : copies] == distance).all()
    else:
        assert data[0] == 0


def test_rows_without_copies_cost_one_byte():
    for q in (normal(4, 16 * 500), with_outliers(4, 16 * 500)):
        assert ENCODERS[16].encode(q).size == 1 + literals_nbytes(q)


def test_rows_of_one_hash_are_told_apart():
    """255 random rows in 1024 slots: many share a slot, and none is taken for another."""
    rows = normal(1e5, 2 * 5000).reshape(-1, 2)
    ENCODERS[2].check(np.concatenate([rows, rows[-100:]]).ravel())


def test_the_bytes_of_the_format_page():
    """Rows 2 and 3 are copies, from 2 rows and 1 row before; the rest is bit-packed."""
    q = np.array([100, -200, 3, 0, 100, -200, 100, -200], np.int32)
    assert ENCODERS[2].check(q).tobytes().hex(" ") == "01 0c 02 01 09 c8 1e 1b 00 00"


def test_forged_distances_are_refused():
    row = normal(1000, 16)
    data = ENCODERS[16].check(np.tile(row, 5))
    assert data[:6].tolist() == [1, 0b11110, 1, 1, 1, 1]
    for place, value in [(0, 2), (1, 0b11111), (1, 0b111110), (1, 0b1110), (2, 0), (2, 2), (5, 5)]:
        forged = data.copy()
        forged[place] = value
        assert ENCODERS[16].decode(forged, 80) is None
        assert ENCODERS[16].decode_reference(forged, 80) is None
