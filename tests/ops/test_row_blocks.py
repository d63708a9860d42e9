"""Blocks of rows of one segment, and places within them of 32 or 64 bits."""

import pytest
import torch

from tests.ops.backends import assert_equal, device_of
from tests.ops.interpreter import fast_interpreter
from trec_qcomm.codecs import Cast, Float6, Rowwise
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.testing import interleaved_segments

pytestmark = pytest.mark.triton


def blocks_of(segments: Segments, at: torch.Tensor):
    from trec_qcomm.ops.row_blocks import RowBlocks

    return RowBlocks.from_segments(segments, at, torch.device(device_of("gpu")))


def test_each_segment_has_a_block_and_none_has_two_segments():
    segments = Segments.packed([0, 33, 1, 32, 0, 65], 64)  # 32 rows a block
    blocks = blocks_of(segments, segments.start)
    assert blocks.first.tolist() == [0, 1, 3, 4, 5, 6, 9]
    assert blocks.num_blocks == 9


@pytest.mark.parametrize(("stride", "wide"), [(2**26 - 1, False), (2**26, True), (2**40, True)])
def test_rows_far_apart_need_64_bits(stride, wide):
    offsets, start = torch.tensor([0, 2]), torch.tensor([0])
    segments = Segments(offsets, 64, start, torch.tensor([stride]))
    assert blocks_of(segments, start).constants["WIDE"] == wide  # 32 rows a block


@pytest.mark.parametrize(
    "codec", [Rowwise(8), Rowwise(4, "stochastic"), Float6(), Cast("fp16")], ids=repr
)
def test_places_of_64_bits_are_the_same_places(codec):
    segments = interleaved_segments(9, 2, 16)
    values = torch.randn(9, 2 * (16 + 3), generator=torch.Generator().manual_seed(0))
    sizes = codec.max_nbytes(segments)
    at, payloads, decoded = exclusive_cumsum(sizes)[:-1], [], []
    values = values.to(device_of("gpu"))
    for wide in (False, True):
        blocks_of(segments, at).constants["WIDE"] = wide  # kept, and used by what follows
        payload = torch.full((int(sizes.sum()),), 7, dtype=torch.uint8, device=values.device)
        out = torch.full_like(values, 9.0)
        with default_backend("gpu"), fast_interpreter():
            codec.decode(codec.encode(values, segments, payload, at, seed=1), segments, out)
        payloads.append(payload)
        decoded.append(out.view(torch.int32))
    assert_equal(payloads)
    assert_equal(decoded)
