"""All backends refuse the same damaged bytes, for the same segment."""

from dataclasses import replace

import pytest
import torch

from tests.ops.backends import BACKENDS
from tests.ops.sparse_rows import (
    ALL_BACKENDS,
    CPU_BACKENDS,
    VALUES,
    decode,
    encode,
    with_masks,
)
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Masks, Segments, aligned
from trec_qcomm.ops import sparsify
from trec_qcomm.ops.sparsify import reference


def outcome(op, encoded, segments, backend):
    try:
        shape = (int(segments.offsets[-1]), segments.dim)
        out, bits = decode(op, encoded, segments, backend, shape)
    except CorruptFrameError as error:
        return error.segment, error.reason
    segments = replace(segments, masks=Masks(bits, segments.masks.at))
    masks = [reference.read_mask(segments, s).tolist() for s in range(segments.num_segments)]
    return out.view(torch.int32).tolist(), masks


def check_damage(dim, stored, backends, num_damages) -> int:
    """Check that backends agree on changed bytes and on sizes other than the header implies;
    return how many damaged encodings were refused."""
    generator = torch.Generator().manual_seed(dim)
    values = torch.randn(9, dim, generator=generator)
    segments = with_masks(Segments.packed([4, 5], dim), 0)
    most, refused = sparsify.max_nbytes(segments, stored), 0
    choices = [{"k": max(1, dim // 16)}, {"k": max(1, dim // 2)}]  # columns, and a bitmap
    for threshold in (1.9, 0.7):
        choices.append({"thresholds": torch.full((2,), threshold, dtype=torch.float64)})
    for choice in choices:
        op = sparsify.encode_top_k if "k" in choice else sparsify.encode_above
        sound = encode(op, values, segments, most, "cpu", 0, stored=stored, **choice)[0]
        for _ in range(num_damages):
            payload, nbytes = sound.payload.clone(), sound.nbytes.clone()
            s = int(torch.randint(2, (1,), generator=generator))
            place = int(torch.randint(int(nbytes[s]), (1,), generator=generator))
            if torch.rand(1, generator=generator) < 0.4:
                place %= reference.HEADER_NBYTES
            flips = torch.randint(1, 256, (1,), generator=generator).to(torch.uint8)
            payload[int(sound.at[s]) + place] ^= flips[0]
            if torch.rand(1, generator=generator) < 0.2:
                nbytes[s] = 8 * int(torch.randint(int(nbytes[s]) // 8, (1,), generator=generator))
            damaged = Encoded(payload, sound.at, nbytes)
            for op in (sparsify.decode, sparsify.decode_masked):
                results = [outcome(op, damaged, segments, b) for b in backends]
                assert all(result[0] == results[0][0] for result in results)
                if not isinstance(results[0][0], int):
                    assert all(result[1] == results[0][1] for result in results)
                elif "gpu" in backends:  # the reference finds another fault first
                    assert results[backends.index("gpu")] == results[backends.index("cpu")]
                refused += op is sparsify.decode and isinstance(results[0][0], int)
    return refused


@pytest.mark.parametrize("dim", [1, 7, 64, 300])
@pytest.mark.parametrize("stored", VALUES)
def test_all_backends_refuse_the_same_damage(stored, dim):
    assert check_damage(dim, stored, CPU_BACKENDS, 100) >= 60


@pytest.mark.triton
@pytest.mark.parametrize(("dim", "stored"), [(1, "int8"), (20, "fp16")])
def test_a_gpu_refuses_the_same_damage(stored, dim):
    assert check_damage(dim, stored, BACKENDS, 3) > 0


def frame_bytes(kind, form, scale, num_kept, values, positions):
    head = torch.tensor([kind, form, 0, 0], dtype=torch.uint8)
    words = torch.tensor([scale]).view(torch.uint8), torch.tensor([num_kept], dtype=torch.int32)
    data = torch.cat([head, words[0], words[1].view(torch.uint8), values, positions])
    size = aligned(torch.tensor([data.numel()]))
    padded = torch.zeros(int(size), dtype=torch.uint8)
    padded[: data.numel()] = data
    return Encoded(padded, torch.zeros(1, dtype=torch.int64), size)


@pytest.mark.parametrize("backend", ALL_BACKENDS)
@pytest.mark.parametrize(
    ("form", "num_kept", "positions", "reason"),
    [
        (reference.COLUMNS, 2, [0x10], None),  # columns 0 and 2 of width 3, of one row each
        (reference.COLUMNS, 2, [0x30], "positions"),  # column 6 of 5
        (reference.COLUMNS, 1, [0x00], "positions"),  # one value for two rows
        (reference.COLUMNS, 4, [0x88, 0x06], None),  # 0 1 | 2 3
        (reference.COLUMNS, 4, [0x81, 0x06], "positions"),  # 1 0 | 2 3
        (reference.COUNTED_COLUMNS, 2, [0x02, 0x08], None),  # 2 and 0: columns 0, 1
        (reference.COUNTED_COLUMNS, 2, [0x03, 0x08], "positions"),  # 3 and 0
        (reference.COUNTED_COLUMNS, 2, [0x02, 0x00], "positions"),  # column 0 twice
        (reference.BITMAP, 2, [0x01, 0x10], None),
        (reference.BITMAP, 2, [0x01, 0x20], "positions"),  # a bit beyond the last column
        (reference.BITMAP, 2, [0x01, 0x11], "positions"),  # three bits
        (3, 2, [0x00], "kind"),
        (reference.BITMAP, 11, [0x1F, 0x1F], "more values"),
    ],
)
def test_positions_that_no_encoder_writes(backend, form, num_kept, positions, reason):
    segments = with_masks(Segments.packed([2], 5), 0)
    values = torch.zeros(num_kept, dtype=torch.uint8)
    encoded = frame_bytes(
        reference.INT8, form, 1.0, num_kept, values, torch.tensor(positions, dtype=torch.uint8)
    )
    if reason is None:
        out, _ = decode(sparsify.decode, encoded, segments, backend, (2, 5))
        assert torch.equal(out, torch.zeros(2, 5))
    else:
        with pytest.raises(CorruptFrameError, match=reason) as raised:
            decode(sparsify.decode, encoded, segments, backend, (2, 5))
        assert raised.value.segment == 0


@pytest.mark.parametrize("backend", ALL_BACKENDS)
@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-40, torch.inf, torch.nan])
def test_scales_that_no_encoder_writes(backend, scale):
    bitmap = torch.tensor([1], dtype=torch.uint8)
    encoded = frame_bytes(reference.INT8, reference.BITMAP, scale, 1, bitmap, bitmap)
    segments = with_masks(Segments.packed([1], 5), 0)
    with pytest.raises(CorruptFrameError, match="scale"):
        decode(sparsify.decode, encoded, segments, backend, (1, 5))
