"""Values that are lost beside a far larger one are counted, and ordinary values are not."""

import pytest
import torch

from trec_qcomm.codecs import ErrorBounded, Rowwise
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.ops.rowwise import reference as rowwise

ROWWISE = [Rowwise(b, rounding=r) for b in (8, 4, 2) for r in ("nearest", "stochastic")]
ENCODERS = "bitpack", "rans", "vector_lz"
RELATIVE = [ErrorBounded(b, encoder=e) for b in (0.01, 0.05) for e in ENCODERS]
DIM, NUM_ROWS = 16, 100


def encode(codec, rows, num_rows=(NUM_ROWS, NUM_ROWS)):
    """Return the Encoded of packed segments, and what it decodes to."""
    segments = Segments.packed(list(num_rows), rows.shape[1])
    sizes = codec.max_nbytes(segments)
    payload = torch.empty(int(sizes.sum()), dtype=torch.uint8)
    encoded = codec.encode(rows, segments, payload, exclusive_cumsum(sizes)[:-1])
    decoded = torch.empty_like(rows)
    codec.decode(encoded, segments, decoded)
    return encoded, decoded


def flushed_of_rowwise(x, scale):
    """Return how many values are flushed in rows that a far larger value makes coarse.

    A value is flushed if it is not 0 and below 1/256 of its row's scale, so that the decoded value
    tells nothing of it. Flushed values count only if there are at least 3, and if they are three
    quarters of the row's nonzero values. Kernels look at samples first, and may count less.

    Args: x: [n, D] float32.  scale: [n, 1] float32.
    """
    is_small = x.abs() < scale / 256
    num_small, num_other = (is_small & (x != 0)).sum(1), (~is_small).sum(1)
    counts = num_small >= (3 * num_other).clamp(min=3)
    return int(num_small[counts].sum())


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_outlier(value):
    rows = noise(2 * NUM_ROWS, DIM)
    rows[NUM_ROWS + 7, 3] = value
    rows[NUM_ROWS + 8] = 0.0  # nothing is lost of a zero
    return rows


@pytest.mark.parametrize("value", [1e20, -1e8])
@pytest.mark.parametrize("codec", RELATIVE, ids=repr)
def test_error_bounded_loses_all_other_rows_of_the_segment(codec, value):
    encoded, decoded = encode(codec, with_outlier(value))
    lost = (NUM_ROWS - 1) * DIM - 1
    assert encoded.flushed.tolist() == [0, lost]
    assert int((decoded[NUM_ROWS:] != 0).sum()) == 1
    assert int((decoded[:NUM_ROWS] == 0).sum()) < NUM_ROWS * DIM / 2


@pytest.mark.parametrize("codec", ROWWISE, ids=repr)
def test_rowwise_loses_the_other_values_of_the_row(codec):
    encoded, decoded = encode(codec, with_outlier(1e6))
    assert encoded.flushed.tolist() == [0, DIM - 1]
    if codec.rounding == "nearest":
        others = torch.arange(DIM) != 3
        assert len(decoded[NUM_ROWS + 7][others].unique()) == 1


@pytest.mark.parametrize("codec", ROWWISE, ids=repr)
def test_rowwise_loses_no_other_row_beside_1e20(codec):
    encoded, decoded = encode(codec, with_outlier(1e20))
    assert encoded.flushed.tolist() == [0, DIM - 1]
    others = torch.arange(2 * NUM_ROWS) != NUM_ROWS + 7
    assert torch.equal(decoded[others], encode(codec, with_outlier(1.0))[1][others])


ORDINARY = {
    "normal": noise(2 * NUM_ROWS, DIM),
    "cubed": noise(2 * NUM_ROWS, DIM) ** 3,
    "rows of many sizes": noise(2 * NUM_ROWS, DIM) * 3 ** noise(2 * NUM_ROWS, 1, seed=1),
    "sparse": noise(2 * NUM_ROWS, DIM) * (noise(2 * NUM_ROWS, DIM, seed=1) > 1.5),
    "one of each row": torch.eye(DIM).repeat(13, 1)[: 2 * NUM_ROWS],
    "mostly empty rows": noise(2 * NUM_ROWS, DIM) * (torch.arange(2 * NUM_ROWS) % 50 == 0)[:, None],
    "far from zero": 1000 + noise(2 * NUM_ROWS, DIM),
    "constant": torch.full((2 * NUM_ROWS, DIM), 0.25),
    "zeros": torch.zeros(2 * NUM_ROWS, DIM),
    "one hot id": torch.cat([noise(2 * NUM_ROWS - 1, DIM), 100 * noise(1, DIM)]),
    "NaN and inf": noise(2 * NUM_ROWS, DIM).index_fill(1, torch.tensor([3]), torch.inf),
}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("codec", [*ROWWISE, *RELATIVE], ids=repr)
def test_ordinary_values_are_not_counted(codec, name):
    encoded, _ = encode(codec, ORDINARY[name])
    assert encoded.flushed is None


def test_an_absolute_bound_was_chosen_with_its_consequences():
    assert encode(ErrorBounded(100.0, mode="abs"), with_outlier(1e20))[0].flushed is None


@pytest.mark.parametrize("dim", [1, 3, 7, 64])
@pytest.mark.parametrize("codec", ROWWISE, ids=repr)
def test_kernel_and_reference_count_the_same_of_rowwise(codec, dim):
    """Some rows have a value that is larger by a factor of 10^0, 10^6, 10^12 and so on."""
    rows, segments = noise(160, dim), [(0, 100), (100, 100), (100, 160)]
    powers = torch.arange(160) % 7 * 6.0 * (noise(160, seed=1) > 1)
    rows[torch.arange(160), torch.arange(160) % dim] *= 10**powers
    rows[noise(160, dim, seed=2) > 2] = 0.0
    rows[5, 0] = torch.nan
    encoded, _ = encode(codec, rows, [end - begin for begin, end in segments])
    expected = []
    for begin, end in segments:
        x = rows[begin:end]
        _, header = rowwise.quantize_rows(x, bits=codec.bits, u=0.5)
        expected.append(flushed_of_rowwise(x, rowwise.grid(header, codec.bits)[1]))
    counted = [0] * 3 if encoded.flushed is None else encoded.flushed.tolist()
    assert counted == expected
    assert (counted[0] > 0) == (counted[2] > 0) == (dim > 3)


def test_one_large_column_is_counted_in_every_row():
    rows = noise(2 * NUM_ROWS, DIM)
    rows[:, 3] = 1e7
    for codec in (*ROWWISE, *RELATIVE):
        encoded, _ = encode(codec, rows)
        assert encoded.flushed.tolist() == [NUM_ROWS * (DIM - 1)] * 2


@pytest.mark.parametrize("power", range(0, 12))
def test_kernel_and_reference_count_the_same_of_error_bounded(power):
    """Beside values of 1 one is 10^power times as large; from some power on they count."""
    rows = noise(300, 7)
    rows[3, 3] = 10.0**power
    counted = []
    for backend in ("cpu", "reference"):
        with default_backend(backend):
            encoded, _ = encode(ErrorBounded(0.02), rows, num_rows=(300,))
        counted.append(0 if encoded.flushed is None else int(encoded.flushed))
    expected = counted[0]
    assert counted == [expected] * 2
    assert (expected == 300 * 7 - 1) if power >= 6 else (expected == 0 or power > 3)
