"""Vector-LZ writes and reads the bytes of plain Python, finds every equal row, refuses the rest."""

import numpy as np
import pytest
import torch

from tests.ops.index_encoders import awkward, forgeries, normal, rows_with_copies
from trec_qcomm.ext.dual_level import vector_lz
from trec_qcomm.ops.bitpack import reference as bitpack

WINDOW = 255
# Literals alone, and copies: of narrow rows, wide rows, and rows of one index.
KINDS = [
    (16, normal(5, 480)),
    (16, rows_with_copies(5, 100, 16)),
    (7, rows_with_copies(1e5, 61, 7)),
    (1, np.repeat(normal(1e6, 20), 30)),
]


def pack(rows):
    q = torch.tensor(rows, dtype=torch.int32).reshape(-1)
    return bytes(bitpack.encode_segment(q, 1).tolist())


def as_tensor(data):
    return torch.tensor(list(data), dtype=torch.uint8)


def encode_by_hand(rows):
    last, copied, distances, literals = {}, 0, [], []
    for i, row in enumerate(map(tuple, rows)):
        distance = i - last.get(row, -np.inf)
        last[row] = i
        if distance <= WINDOW:
            copied |= 1 << i
            distances.append(distance)
        else:
            literals.append(row)
    bitmap = copied.to_bytes((len(rows) + 7) // 8, "little")
    with_copies = b"\x01" + bitmap + bytes(distances) + pack(literals)
    literals_only = b"\x00" + pack(rows) if rows else b""
    return with_copies if copied and len(with_copies) <= len(literals_only) else literals_only


def decode_by_hand(data, dim, num_rows):
    """Return the rows, or None for bytes that no encoder writes."""
    bitmap_end = 1 + (num_rows + 7) // 8 if data[:1] == b"\x01" else 1
    copied = int.from_bytes(data[1:bitmap_end], "little")
    distances_end = bitmap_end + copied.bit_count()
    if not data or data[0] > 1 or distances_end > len(data) or copied >> num_rows:
        return None
    num_values = (num_rows - copied.bit_count()) * dim
    try:
        q = bitpack.decode_segment(as_tensor(data[distances_end:]), 1, num_values)
    except ValueError:
        return None
    literals, rows, distances = iter(q.tolist()), [], list(data[bitmap_end:distances_end])
    for i in range(num_rows):
        if not copied >> i & 1:
            rows.append([next(literals) for _ in range(dim)])
        elif 1 <= distances[0] <= i:
            rows.append(rows[-distances.pop(0)])
        else:
            return None
    return rows


def decode(data, dim, num_values):
    """Return the rows; None if the bytes are refused."""
    try:
        return vector_lz.decode_segment(as_tensor(data), dim, num_values).reshape(-1, dim).tolist()
    except ValueError:
        return None


def check(q, dim):
    """Check that the bytes are those written by hand, and that they are read back. Return them."""
    rows = q.reshape(-1, dim).tolist()
    data = bytes(vector_lz.encode_segment(torch.from_numpy(q), dim).tolist())
    assert data == encode_by_hand(rows)
    assert decode(data, dim, q.size) == rows
    return data


@pytest.mark.parametrize("dim", [1, 7, 16])
def test_awkward_indices(dim):
    for q in awkward(dim):
        assert len(check(q, dim)) <= 1 + len(pack(q))


@pytest.mark.parametrize(("dim", "q"), KINDS)
def test_every_other_length_is_refused(dim, q):
    data = check(q, dim)
    assert all(decode(data[:n], dim, q.size) is None for n in range(len(data)))
    assert all(decode(data + bytes(n), dim, q.size) is None for n in range(1, 5))
    assert decode(data, dim, 0) is None


@pytest.mark.parametrize(("dim", "q"), KINDS)
def test_forged_bytes(dim, q):
    """Forged bytes give the rows that they give by hand, or both refuse them."""
    data, refused = check(q, dim), 0
    for forged in forgeries(np.frombuffer(data, np.uint8), 300, seed=0):
        rows = decode(forged.tobytes(), dim, q.size)
        assert rows == decode_by_hand(forged.tobytes(), dim, q.size // dim)
        refused += rows is None
    assert 0 < refused < 300


@pytest.mark.parametrize("distance", [1, 2, WINDOW, WINDOW + 1])
def test_the_window_is_255_rows(distance):
    """The second half repeats the first: it is copied if the window reaches back so far."""
    data = check(np.tile(normal(1000, 16 * distance), 2), 16)
    assert data[0] == (distance <= 255)


def test_the_bytes_of_the_format_page():
    """Rows 2 and 3 are copies, from 2 rows and 1 row before; the rest is bit-packed."""
    q = np.array([100, -200, 3, 0, 100, -200, 100, -200], np.int32)
    assert check(q, 2).hex(" ") == "01 0c 02 01 09 c8 1e 1b 00 00"


def test_forged_distances_are_refused():
    data = check(np.tile(normal(1000, 16), 5), 16)
    assert list(data[:6]) == [1, 0b11110, 1, 1, 1, 1]
    for place, value in [(0, 2), (1, 0b11111), (1, 0b111110), (1, 0b1110), (2, 0), (2, 2), (5, 5)]:
        forged = bytearray(data)
        forged[place] = value
        assert decode(bytes(forged), 16, 80) is None
