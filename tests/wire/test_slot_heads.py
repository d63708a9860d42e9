"""Heads of slots in a GPU's memory: what they state, and every damage to them is refused.

Without a GPU the kernels are interpreted, and tensors count as ones that the host cannot read.
"""

import numpy as np
import pytest
import torch

from tests.ops.backends import device_of
from tests.ops.interpreter import fast_interpreter
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.transfer import download
from trec_qcomm.wire import frame, slot
from trec_qcomm.wire.slot.heads import Heads

pytestmark = pytest.mark.triton

DEVICE = device_of("gpu")
COUNTS = (2, 0, 1)  # segments of the frames of ranks 4, 5 and 6
RANKS = (4, 5, 6)
CODECS, NBYTES = torch.tensor([7, 5, 7]), torch.tensor([24, 16, 8])
NUM_ROWS = torch.tensor([3, 1, 2])
LIMITS = torch.tensor([40, 40, 40])
CAPACITIES = np.array([128, 0, 128])
CALL = 70000
FIELDS = {"layouts": [8, 9, 10], "call": CALL, "num_rows": NUM_ROWS}
FRAME = slot.HEADER_NBYTES  # where a frame begins in its slot
TABLE = FRAME + frame.HEADER_NBYTES


@pytest.fixture(autouse=True)
def frames_are_on_a_gpu(monkeypatch):
    monkeypatch.setattr(frame, "is_on_gpu", lambda buffer: True)
    with fast_interpreter():
        yield


@pytest.fixture
def slots():
    """Return sound slots, all of whose frames fit."""
    at, sizes = frame.lay_out(NBYTES, COUNTS, frame.DEVICE_ALIGNMENT)
    buffer = torch.zeros(sum(sizes), dtype=torch.uint8)
    for begin, nbytes in zip(at.tolist(), NBYTES.tolist(), strict=True):
        buffer[begin : begin + nbytes] = torch.arange(1, nbytes + 1)
    buffer = buffer.to(DEVICE)
    frame.seal(buffer, sizes, COUNTS, codecs=CODECS, nbytes=NBYTES, **FIELDS)
    _, unpadded = frame.lay_out(NBYTES, COUNTS)
    return slot.fill(buffer, unpadded, CAPACITIES, call=CALL)


def announced(slots):
    """Return what the heads state, and the sizes of the frames."""
    heads = Heads.from_counts(COUNTS)
    gathered = download(heads.gather(slots, CAPACITIES))
    limits = np.array([128, 0, 128])
    options = {"call": CALL, "limits": limits, "ranks": RANKS}
    nbytes = slot.sizes_of(heads.words(gathered), CAPACITIES, **options)
    return heads.tables(gathered, nbytes, limits=LIMITS, ranks=RANKS), nbytes


def opened(slots):
    """Return the codecs and sizes of frames that were taken out of their slots and checked."""
    stated, nbytes = announced(slots)
    frames = slot.take_out(slots, CAPACITIES, nbytes)
    sizes, tables = slot.padded(nbytes, frames), ("a", "b", "c")
    options = {"ranks": RANKS, "tables": tables, "announced": stated}
    frame.unseal(frames, sizes, COUNTS, **FIELDS, **options)
    return stated.codecs.tolist(), stated.nbytes.tolist()


def set_field(slots, at, value):
    """Write a 32-bit field of a slot."""
    slots[at : at + 4] = torch.tensor([value]).view(torch.uint8)[:4].to(slots.device)


def test_heads_state_what_the_senders_wrote(slots):
    assert opened(slots) == (CODECS.tolist(), NBYTES.tolist())


def test_any_flipped_bit_of_a_stated_size_is_refused(slots):
    for field, rank in ((TABLE + 8, 4), (TABLE + 20, 4), (128 + TABLE + 8, 6)):
        for bit in range(32):
            slots[field + bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptFrameError, match=f"rank {rank}: segment sizes"):
                announced(slots)
            slots[field + bit // 8] ^= 1 << bit % 8


SIZES = [(44, -4), (20, 20), (12, 28), (48, -8), (0, 40), (16, 24)]


@pytest.mark.parametrize(("first", "second"), SIZES)
def test_sizes_that_no_segments_have_are_refused(slots, first, second):
    """Sizes add up to the frame's, some modulo 2^32; the last two could be those of others."""
    set_field(slots, TABLE + 8, first)
    set_field(slots, TABLE + 20, second % 2**32)
    with pytest.raises(CorruptFrameError, match="rank 4"):
        opened(slots)


def test_a_codec_that_no_id_names_is_refused(slots):
    for codec in (256, 2**31, 2**32 - 1):
        set_field(slots, 128 + TABLE, codec)
        with pytest.raises(CorruptFrameError, match="rank 6: segment sizes"):
            announced(slots)


def test_every_damaged_byte_of_a_head_is_refused(slots):
    """Damage to the frames' headers and segment tables is seen, by whichever check."""
    generator = torch.Generator().manual_seed(0)
    for begin, count, rank in ((0, 2, 4), (128, 1, 6)):
        for at in range(begin, begin + FRAME + frame.overhead_nbytes(count)):
            damaged = slots.clone()
            damaged[at] ^= 1 << int(torch.randint(8, (), generator=generator))
            with pytest.raises(CorruptFrameError, match=f"rank {rank}"):
                opened(damaged)
