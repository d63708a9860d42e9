import pytest
import torch

from trec_qcomm.codecs import Identity
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded
from trec_qcomm.testing import frame_of
from trec_qcomm.wire import frame

ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def unseal(data, **changes):
    expected = {
        "frame_nbytes": [data.numel()], "segments_per_frame": [3], "layouts": [0x1234], "call": 0,
        "num_rows": torch.tensor([2, 0, 4]), "ranks": [7], "tables": ["a", "b", "c"],
    }  # fmt: skip
    return frame.unseal(data, **(expected | changes))


def test_unseal_finds_what_seal_wrote():
    data, _segments = frame_of(Identity(), ROWS, [2, 0, 4])
    encoded, codecs = unseal(data)
    assert codecs.tolist() == [1, 1, 1]
    assert encoded.nbytes.tolist() == [32, 0, 64]
    assert encoded.at.tolist() == [72, 104, 104]
    assert data.numel() == 168


# Below, at and beyond the ends of a block.
@pytest.mark.parametrize("nbytes", [8, 8192 - 48, 8192 - 40, 3 * 8192 - 48, 3 * 8192])
def test_checksum_is_its_definition(nbytes):
    payload = torch.randint(256, (nbytes,), dtype=torch.uint8)
    data = torch.cat([torch.zeros(48, dtype=torch.uint8), payload])
    sizes = {"num_rows": torch.tensor([1]), "nbytes": torch.tensor([nbytes])}
    frame.seal(data, [len(data)], [1], layouts=[1], call=0, codecs=torch.tensor([1]), **sizes)
    stored = int.from_bytes(bytes(data[24:32].tolist()), "little")
    assert stored == frame.checksum(data)


@pytest.mark.parametrize("words", [2, 4, 8])
@pytest.mark.parametrize("bit", [0, 17, 31])
def test_checksum_sees_one_bit_line(words, bit):
    """In neighbouring words of all signs, of which weights 1, 2, 3 would cancel some."""
    data, _ = frame_of(Identity(), ROWS, [2, 0, 4])
    for pattern in range(2**words):
        mask = torch.zeros(168 // 4, dtype=torch.int32)
        mask[20 : 20 + words] = -(2**31) if bit == 31 else 1 << bit
        sound = data.clone()
        line = sound.view(torch.int32)
        ones = torch.tensor([pattern >> i & 1 for i in range(words)], dtype=torch.bool)
        line[20 : 20 + words] &= ~mask[20 : 20 + words]
        line[20 : 20 + words] |= mask[20 : 20 + words] * ones
        faulty = (sound.view(torch.int32) ^ mask).view(torch.uint8)
        assert frame.checksum(sound) != frame.checksum(faulty)


def test_checksum_sees_two_top_bits_flip():
    data, _ = frame_of(Identity(), ROWS, [2, 0, 4])
    data[75] ^= 0x80
    data[83] ^= 0x80
    with pytest.raises(CorruptFrameError, match="checksum"):
        unseal(data)


@pytest.mark.parametrize("version", [2, 4, 0x1234])
def test_another_version_is_refused_by_name(version):
    frames = [frame_of(Identity(), ROWS, [2, 0, 4])[0] for _ in range(2)]
    frames[1][4:6] = torch.tensor([version % 256, version // 256])
    expected = {"segments_per_frame": [3, 3], "layouts": [0x1234] * 2, "ranks": [7, 9]}
    expected |= {"num_rows": torch.tensor([2, 0, 4] * 2), "tables": None}
    message = f"frame from rank 9: wire version {version} is not read by this release"
    with pytest.raises(CorruptFrameError, match=message):
        unseal(torch.cat(frames), **expected, frame_nbytes=[168, 168])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"call": 1}, "frame from rank 7: of another call: the ranks are out of step"),
        ({"layouts": [0x1235]}, "frame from rank 7: the sender's tables"),
        ({"segments_per_frame": [2], "num_rows": torch.tensor([2, 4])}, "number of segments"),
        ({"num_rows": torch.tensor([2, 1, 4])}, "rank 7, table 'b': number of rows"),
        ({"frame_nbytes": [160]}, "168 bytes where 160 were due"),
    ],
)
def test_unexpected_frames_are_refused(changes, message):
    data, _ = frame_of(Identity(), ROWS, [2, 0, 4])
    with pytest.raises(CorruptFrameError, match=message):
        unseal(data, **changes)


def test_a_frame_may_be_shorter_than_its_room():
    data, _ = frame_of(Identity(), ROWS, [2, 0, 4])
    encoded, _ = unseal(torch.cat([data, data[:64]]), frame_nbytes=[168 + 64])
    assert encoded.nbytes.tolist() == [32, 0, 64]
    for size in (24, 164, 176, 2**40):
        data.view(torch.int64)[2] = size
        with pytest.raises(CorruptFrameError, match="beyond the bytes received, or no multiple"):
            unseal(data)


def test_a_peer_without_segments_sends_no_byte():
    assert frame.overhead_nbytes(0) == 0
    at, sizes = frame.lay_out(torch.tensor([8, 16, 8]), [1, 0, 2])
    assert sizes == [56, 0, 80]
    assert at.tolist() == [48, 112, 128]
    buffer = torch.zeros(sum(sizes), dtype=torch.uint8)
    rows, nbytes = torch.tensor([1, 2, 1]), torch.tensor([8, 16, 8])
    shape = {"layouts": [1, 2, 3], "call": 65536 + 5, "num_rows": rows}
    frame.seal(buffer, sizes, [1, 0, 2], codecs=torch.ones(3).long(), nbytes=nbytes, **shape)
    encoded, _ = frame.unseal(buffer, sizes, [1, 0, 2], ranks=[0, 1, 2], **shape)
    assert encoded.at.tolist() == at.tolist()


def test_segments_beyond_the_format_are_refused():
    with pytest.raises(ValueError, match="less than 2\\^32"):
        frame.lay_out(torch.tensor([2**32]), [1])


def test_compact_closes_gaps_in_order():
    most = torch.tensor([16, 24, 16])
    at, sizes = frame.lay_out(most, [2, 1])
    buffer = torch.zeros(sum(sizes), dtype=torch.uint8)
    used = torch.tensor([8, 16, 8])
    for s in range(3):
        buffer[int(at[s]) : int(at[s] + used[s])] = s + 1
    encoded, sizes = frame.compact(Encoded(buffer, at, used), [2, 1])
    assert sizes == [80, 56]
    assert encoded.payload.numel() == 136
    for s in range(3):
        part = encoded.payload[int(encoded.at[s]) : int(encoded.at[s] + used[s])]
        assert bool((part == s + 1).all())
