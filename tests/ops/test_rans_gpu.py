"""rANS on a GPU, within error_bound: the same bytes, and the same segments refused, as on a CPU.

test_rans.py compares cpu with reference.
"""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.ops.error_bound_kernels import GPU, bytes_of, check, decode, encode, noise, verdict
from tests.ops.index_encoders import normal, with_outliers
from tests.ops.interpreter import fast_interpreter
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ops.error_bound import cpu
from trec_qcomm.ops.rans import reference
from trec_qcomm.ops.rans.gpu import arithmetic, coding_tables

pytestmark = pytest.mark.triton


@pytest.fixture(autouse=True)
def quick_interpreter():
    with fast_interpreter():
        yield


def check_rans(values, segments, bound, relative=False):
    return check(values, segments, bound, relative, "rans")


def check_indices(*parts):
    """Encode a segment of each part, [N] of indices or of what is rounded to them."""
    values = torch.from_numpy(np.concatenate(parts).astype(np.float32))[:, None]
    return check_rans(values, Segments.packed([len(part) for part in parts], 1), 0.5)


@triton.jit
def _numbers(n, lanes, logs, bits, SYMBOLS: tl.constexpr):
    i = tl.program_id(0)
    num_values = tl.load(n + i)
    tl.store(lanes + i, arithmetic.num_lanes(num_values))
    tl.store(logs + i, arithmetic.table_log(num_values, tl.full((), SYMBOLS, tl.int32)))
    tl.store(bits + i, arithmetic.bit_count(num_values.to(tl.uint32)))


def test_numbers_of_the_format():
    lengths = [n for k in range(31) for n in (2**k - 1, 2**k, 3 * 2**k // 2) if 0 < n < 2**31]
    n = torch.tensor(lengths, device=GPU)
    for symbols in (2, 17, 256, 257):
        lanes, logs, bits = torch.zeros(3, len(n), dtype=torch.int32, device=GPU)
        _numbers[(len(n),)](n, lanes, logs, bits, SYMBOLS=symbols)
        assert lanes.tolist() == [reference.num_lanes(k) for k in lengths]
        assert logs.tolist() == [reference.table_log(k, symbols) for k in lengths]
        assert bits.tolist() == [k.bit_count() for k in lengths]


@triton.jit
def _frequencies(weights, escapes, logs, frequencies):
    i, s = tl.program_id(0), tl.arange(0, 256)
    f, escape = coding_tables.frequencies_of(
        tl.load(weights + 256 * i + s), tl.load(escapes + i), tl.load(logs + i)
    )
    tl.store(frequencies + 257 * i + s, f)
    tl.store(frequencies + 257 * i + 256, escape)


def test_of_equal_frequencies_the_first_is_reduced():
    """The escape symbol is the last one, also where it is as frequent as a class."""
    cases = [([64, 64], 64, 6), ([1, 5, 5], 5, 9), ([7, 7], 8, 5), ([1] * 40 + [90], 90, 7)]
    weights = torch.zeros(len(cases), 256, dtype=torch.int64, device=GPU)
    for row, (class_weights, _, _) in zip(weights, cases, strict=True):
        row[: len(class_weights)] = torch.tensor(class_weights)
    escapes = torch.tensor([escapes for _, escapes, _ in cases], device=GPU)
    logs = torch.tensor([log for _, _, log in cases], dtype=torch.int32, device=GPU)
    frequencies = torch.zeros(len(cases), 257, dtype=torch.int32, device=GPU)
    _frequencies[(len(cases),)](weights, escapes, logs, frequencies)
    for row, (class_weights, escape_weight, log) in zip(frequencies.tolist(), cases, strict=True):
        assert [*row[: len(class_weights)], row[-1]] == reference.frequencies_of(
            [*class_weights, escape_weight], log
        )


def test_all_kinds_of_bytes():
    """One, two and four states; low bits of narrow and wide windows; escapes; 256 classes."""
    assert check_indices(normal(2, 50), normal(2, 500), normal(300, 300)) == {cpu.RANS}
    wide = with_outliers(40, 1100)  # so that the first classes depend on the median
    assert check_indices(with_outliers(3, 1500), wide, normal(0.2, 1030)) == {cpu.RANS}


def test_segments_of_one_symbol():
    """All indices 0 though values differ; indices far apart that differ in low bits only."""
    small = np.random.default_rng(0).uniform(-0.4, 0.4, 300)
    far = np.arange(32, dtype=np.float32) * 1024
    assert check_indices(small, far) == {cpu.RANS}
    rows = torch.tensor(far)[:, None]
    encoded = encode(rows, Segments.packed([32], 1), 0.5, False, "cpu", "rans")
    shift, size = bytes_of(encoded)[8:10].tolist()
    assert shift > 8
    assert size == 0


def test_verbatim_values_of_several_groups():
    values = noise(1500, 2, seed=1)
    values[::50, 0], values[900:920, 1] = math.nan, math.inf
    values[7] = 3e38
    values[2:1000, 1] = 0.1
    assert check_rans(values, Segments.packed([1500], 2), 0.2) == {cpu.RANS}


def test_raw_and_constant_beside_rans():
    values = noise(60, 4)
    values[20:30], values[30:40] = 0.5, values[30:40] * 1e30
    values[25, 1] = math.nan
    segments = Segments.packed([20, 10, 0, 10, 20], 4)
    assert check_rans(values, segments, 0.1) == {cpu.RANS, cpu.CONSTANT, cpu.RAW}


def test_segments_of_any_encoder_are_decoded_together():
    rows, segments = noise(50, 5), Segments.packed([30, 0, 20], 5)
    parts = [encode(rows, segments, 0.1, False, "cpu", name) for name in ("rans", "bitpack")]
    nbytes = torch.cat([part.nbytes for part in parts])
    data = [bytes_of(part, s) for part in parts for s in range(3)]
    both = Encoded(torch.cat(data), exclusive_cumsum(nbytes)[:-1], nbytes)
    twice, segments = torch.cat([rows, rows]), Segments.packed([30, 0, 20] * 2, 5)
    expected = decode(both, segments, twice, "cpu")
    assert torch.equal(decode(both, segments, twice, "gpu"), expected)
    assert torch.equal(expected[:50], expected[50:])


def forged_verdicts(rows, segments, data):
    where = Encoded(data, torch.tensor([0]), torch.tensor([len(data)]))
    return [verdict(where, segments, rows, backend) for backend in ("gpu", "cpu")]


def test_forged_segments_get_the_verdict_of_cpu():
    """Change every byte of header and table, and some of all other parts."""
    rows = torch.from_numpy(with_outliers(200, 60, 0.1).astype(np.float32))[:, None]
    rows[7] = math.nan
    segments = Segments.packed([60], 1)
    data = bytes_of(encode(rows, segments, 0.5, False, "cpu", "rans"))
    assert data[4] & 15 == cpu.RANS
    assert data[8] > 0
    generator = torch.Generator().manual_seed(1)
    places = [(8, 0), (8, 21), (8, 255), (9, 0), (9, 255), (10, 255), (11, 255), (12, 0), (12, 60)]
    places += [(i, v) for i in range(10, 24) for v in (0, 0x7F)]
    for place in torch.randint(len(data), (12,), generator=generator).tolist():
        places.append((place, int(torch.randint(256, (1,), generator=generator))))
    refused = 0
    for place, value in places:
        forged = data.clone()
        forged[place] = value
        ours, theirs = forged_verdicts(rows, segments, forged)
        assert ours == theirs, (place, value)
        refused += isinstance(ours, tuple)
    assert 0 < refused < len(places)


def test_fewer_bytes_than_a_header_get_the_verdict_of_cpu():
    for num_values in (1, 2, 3):
        words = [np.float32(1).view(np.int32), cpu.RANS | (8 - num_values) << 4, 0, 0]
        data = torch.from_numpy(np.array(words, dtype=np.int32)).view(torch.uint8)
        rows = torch.zeros(num_values, 1)
        ours, theirs = forged_verdicts(rows, Segments.packed([num_values], 1), data)
        assert ours == theirs
        assert isinstance(ours, tuple)


@pytest.mark.slow
@pytest.mark.timeout(900)  # 4096 steps each way are interpreted
def test_two_streams():
    """The second stream is longer; escaped indices in both; a word count that is wrong."""
    num_values = 2 * 65_536 + 77
    q = with_outliers(0.5, num_values, 0.0005)
    values, segments = torch.from_numpy(q.astype(np.float32))[:, None], Segments.packed([len(q)], 1)
    assert check_rans(values, segments, 0.5) == {cpu.RANS}
    data = bytes_of(encode(values, segments, 0.5, False, "cpu", "rans"))
    escapes, at = reference.read_varint(bytes(data), reference.read_varint(bytes(data), 10)[1])
    assert data[8] == 0
    assert escapes > 0
    table = reference.to_bits(bytes(data[at : at + 512]))
    at += (reference.read_weights(table, int(data[9]) + 1)[1] + 7) // 8
    count_at = at + at % 2 + 4 * escapes + 4 * 2 * 32
    count = int(data[count_at : count_at + 4].view(torch.int32)[0])
    data[count_at : count_at + 4].view(torch.int32)[0] = count - 1
    ours, theirs = forged_verdicts(values, segments, data)
    assert ours == theirs
    assert isinstance(ours, tuple)
