"""Frames in a GPU's memory: the same bytes, and the same frames refused."""

import pytest
import torch

from tests.ops.backends import device_of
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded
from trec_qcomm.wire import frame

pytestmark = pytest.mark.triton

SEGMENTS = [3, 0, 1, 2500]  # the last one's table is larger than what one program adds up
DEVICE = device_of("gpu")


@pytest.fixture(autouse=True)
def frames_are_on_a_gpu(monkeypatch):
    """Without one, of those tensors whose device says so."""
    monkeypatch.setattr(frame, "is_on_gpu", lambda buffer: True)


def batch(alignment=frame.DEVICE_ALIGNMENT):
    """Sizes of 8 KiB at most, some empty; payload is noise. See frame.seal."""
    generator = torch.Generator().manual_seed(0)
    total = sum(SEGMENTS)
    nbytes = torch.randint(0, 2, (total,), generator=generator) * 16
    nbytes[0], nbytes[3] = 8192, 0
    at, sizes = frame.lay_out(nbytes, SEGMENTS, alignment)
    buffer = torch.full((sum(sizes),), 0x5A, dtype=torch.uint8)
    for begin, size in zip(at.tolist(), nbytes.tolist(), strict=True):
        noise = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        buffer[begin : begin + size] = noise
    fields = {"layouts": [0xFFFFFFFF, 2, 3, 4], "call": 70000, "num_rows": torch.arange(total)}
    return buffer, sizes, nbytes, torch.full((total,), 5), fields


def sealed(**options):
    buffer, sizes, nbytes, codecs, fields = batch()
    buffer = buffer.to(DEVICE)
    frame.seal(buffer, sizes, SEGMENTS, codecs=codecs, nbytes=nbytes, **fields, **options)
    return buffer, sizes, frame.Announced(codecs, nbytes), fields


def unseal(buffer, sizes, announced, fields):
    names = {"ranks": [4, 5, 6, 7], "tables": [f"t{i}" for i in range(sum(SEGMENTS))]}
    return frame.unseal(buffer, sizes, SEGMENTS, announced=announced, **fields, **names)


def test_seal_writes_the_frames_of_the_cpu_and_zeros_between_them(monkeypatch):
    on_gpu, sizes, announced, fields = sealed()
    monkeypatch.setattr(frame, "is_on_gpu", lambda buffer: False)
    on_cpu, cpu_sizes, *_ = batch(alignment=8)
    table = {"codecs": announced.codecs, "nbytes": announced.nbytes}
    frame.seal(on_cpu, cpu_sizes, SEGMENTS, **table, **fields)
    assert sizes != cpu_sizes
    assert all(size % 128 == 0 for size in sizes)
    pairs = zip(torch.split(on_gpu.cpu(), sizes), torch.split(on_cpu, cpu_sizes), strict=True)
    for message, expected in pairs:
        assert torch.equal(message[: len(expected)], expected)
        assert not message[len(expected) :].any()


def test_bytes_between_frames_are_not_looked_at():
    buffer, sizes, *expected = sealed()
    buffer[sizes[0] - 1] = 1
    unseal(buffer, sizes, *expected)


def test_what_is_kept_serves_calls_of_another_number_and_payload():
    kept = {}
    sealed(kept=kept)
    assert set(kept) == {torch.device(DEVICE)}
    buffer, sizes, announced, fields = batch()[0].to(DEVICE), *sealed()[1:]
    buffer[100] ^= 255  # payload
    fields |= {"call": 3, "kept": kept}
    for _ in range(2):
        frame.seal(
            buffer, sizes, SEGMENTS, codecs=announced.codecs, nbytes=announced.nbytes, **fields
        )
        unseal(buffer, sizes, announced, fields)
    expected = int(buffer[24:32].view(torch.int64)) & 0xFFFFFFFFFFFFFFFF
    assert frame.checksum(buffer[: 72 + int(announced.nbytes[:3].sum())].cpu()) == expected
    with pytest.raises(CorruptFrameError, match="number of the call"):
        unseal(buffer, sizes, announced, fields | {"call": 4})


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (0, "rank 4: magic, version or number of the call"),
        (6, "rank 4: magic, version or number of the call"),
        (9, "rank 4: the sender's tables"),
        (12, "rank 4: the sender's tables"),
        (17, "rank 4: size differs"),
        (30, "rank 4: checksum"),
        (32, "rank 4: checksum"),
        (1000, "rank 4: checksum"),
        (-1, "rank 7: checksum"),
    ],
)
def test_a_flipped_bit_anywhere_is_seen(at, message):
    buffer, *expected = sealed()
    buffer[at] ^= 4
    with pytest.raises(CorruptFrameError, match=message):
        unseal(buffer, *expected)


@pytest.mark.parametrize(
    ("segment", "rank"), [(0, 4), (2, 4), (3, 6), (4, 7), (1704, 7), (2503, 7)]
)
def test_another_batch_is_refused(segment, rank):
    buffer, sizes, announced, fields = sealed()
    num_rows = fields["num_rows"] + (torch.arange(sum(SEGMENTS)) == segment)
    with pytest.raises(CorruptFrameError, match=f"rank {rank}, table 't{segment}': segment table"):
        unseal(buffer, sizes, announced, fields | {"num_rows": num_rows})


def test_compact_closes_gaps():
    most = torch.tensor([24, 16, 40_000, 8])
    nbytes = torch.tensor([16, 0, 33_000, 8])
    at, sizes = frame.lay_out(most, [1, 3])
    payload = torch.randint(0, 256, (sum(sizes),), dtype=torch.uint8).to(DEVICE)
    compacted, frame_nbytes = frame.compact(Encoded(payload, at, nbytes), [1, 3])
    assert frame_nbytes == frame.lay_out(nbytes, [1, 3], 128)[1]
    assert compacted.payload.numel() == sum(frame_nbytes)
    for s, size in enumerate(nbytes.tolist()):
        old, new = int(at[s]), int(compacted.at[s])
        assert torch.equal(payload[old : old + size], compacted.payload[new : new + size])
