"""Damaged bytes of topk, forward_mask and threshold are refused, or decode to something."""

import struct

import pytest
import torch

from tests.ext.dct.test_bytes import DEVICES, VALUES, with_masks
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ext.dct import places, rows

GUARD = 9.0


def encoded_by_each(values, segments, stored):
    """Yield what each format writes, in each form of positions, and what decodes it."""
    count = segments.num_segments
    for k in (1, max(1, segments.dim // 16), max(1, segments.dim // 2)):
        yield rows.encode_top_k, rows.decode, {"k": k}
    for threshold in (1.9, 0.7):
        thresholds = torch.full((count,), threshold, dtype=torch.float64)
        yield rows.encode_above, rows.decode, {"thresholds": thresholds}
        yield places.encode, places.decode, {"thresholds": thresholds}
    yield rows.encode_masked, rows.decode_masked, {}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim", [1, 130])
@pytest.mark.parametrize("stored", VALUES)
def test_damage_is_refused_or_decodes_to_something(stored, dim, device):
    """Nothing but rows is written, and the error names a segment."""
    generator, refused = torch.Generator().manual_seed(dim), 0
    values = torch.randn(10, dim, generator=generator).to(device)
    segments = with_masks(Segments.packed([4, 5], dim), device)
    most = rows.max_nbytes(segments, stored) + places.max_nbytes(segments, stored)
    for encode, decode, options in encoded_by_each(values, segments, stored):
        payload = torch.zeros(int(most.sum()), dtype=torch.uint8, device=device)
        at = exclusive_cumsum(most)[:-1]
        sound = encode(values, segments, payload, at, stored=stored, **options)
        for _ in range(60):
            data, nbytes = sound.payload.clone(), sound.nbytes.clone()
            s = int(torch.randint(2, (1,), generator=generator))
            place = int(torch.randint(int(nbytes[s]), (1,), generator=generator))
            if torch.rand(1, generator=generator) < 0.4:
                place %= 12
            data[int(at[s]) + place] ^= int(torch.randint(1, 256, (1,), generator=generator))
            if torch.rand(1, generator=generator) < 0.2:
                nbytes[s] = int(torch.randint(int(nbytes[s]), (1,), generator=generator))
            out = torch.full_like(values, GUARD)
            try:
                decode(Encoded(data, at, nbytes), segments, out)
            except CorruptFrameError as error:
                refused += error.segment in (0, 1)
            assert bool((out[9] == GUARD).all())
    assert refused >= 60


def segment(kind, form, num_kept, positions, *, scale=1.0, values=None):
    """Return [W] uint8, a segment of a size that its fields imply."""
    body = bytes(num_kept if values is None else values)
    data = struct.pack("<BBHfI", kind, form, 0, scale, num_kept & 0xFFFFFFFF) + body
    data += bytes(positions)
    return torch.tensor([*data, *bytes(-len(data) % 8)], dtype=torch.uint8)


def decoded(decode, data, num_rows, dim):
    out = torch.full((num_rows, dim), GUARD)
    encoded = Encoded(data, torch.tensor([0]), torch.tensor([data.numel()]))
    decode(encoded, Segments.packed([num_rows], dim), out)
    return out


@pytest.mark.parametrize(
    ("form", "num_kept", "positions", "reason"),
    [
        (rows.COLUMNS, 2, [0x10], None),  # columns 0 and 2 of width 3, of one row each
        (rows.COLUMNS, 2, [0x30], "positions"),  # column 6 of 5
        (rows.COLUMNS, 1, [0x00], "positions"),  # one value for two rows
        (rows.COLUMNS, 4, [0x88, 0x06], None),  # 0 1 | 2 3
        (rows.COLUMNS, 4, [0x81, 0x06], "positions"),  # 1 0 | 2 3
        (rows.COUNTED_COLUMNS, 2, [0x02, 0x08], None),  # 2 and 0: columns 0, 1
        (rows.COUNTED_COLUMNS, 2, [0x03, 0x08], "positions"),  # 3 and 0
        (rows.COUNTED_COLUMNS, 2, [0x02, 0x00], "positions"),  # column 0 twice
        (rows.BITMAP, 2, [0x01, 0x10], None),
        (rows.BITMAP, 2, [0x01, 0x20], "positions"),  # a bit beyond the last column
        (rows.BITMAP, 2, [0x01, 0x11], "positions"),  # three bits
        (3, 2, [0x00], "kind"),
        (rows.BITMAP, 11, [0x1F, 0x1F], "more values"),
    ],
)
def test_positions_of_columns(form, num_kept, positions, reason):
    data = segment(2, form, num_kept, positions)
    if reason is None:
        assert torch.equal(decoded(rows.decode, data, 2, 5), torch.zeros(2, 5))
        return
    with pytest.raises(CorruptFrameError, match=reason) as raised:
        decoded(rows.decode, data, 2, 5)
    assert raised.value.segment == 0


ONE_TWO = struct.pack("<2f", 1, 2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (segment(0, 8, 2, [3, 3], values=ONE_TWO), None),
        (segment(0, 8, 2, [3, 4], values=ONE_TWO), "positions"),  # the second would be the ninth
        (segment(0, 31, 2, [3, 0, 0, 0x80, 1, 0, 0, 0], values=ONE_TWO), None),  # gaps of 3 and 3
        (segment(0, 31, 2, [255] * 8, values=ONE_TWO), "positions"),
        (segment(0, 0, 2, [], values=ONE_TWO), None),
        (segment(0, 255, 2, [3], values=ONE_TWO), None),
        (segment(0, 255, 2, [7], values=ONE_TWO), "positions"),
        (segment(0, 255, 2, [1], values=ONE_TWO), "positions"),
        (segment(0, 32, 2, [0] * 8, values=ONE_TWO), "unknown kind"),
        (segment(0, 254, 2, [0] * 8, values=ONE_TWO), "unknown kind"),
        (segment(0, 8, 9, [0] * 9, values=bytes(36)), "more values kept"),
        (segment(0, 8, -1, [0] * 9, values=bytes(36)), "more values kept"),
        (segment(0, 8, 2, [3, 3, 0, 0, 0, 0, 0], values=ONE_TWO), "size"),
        (segment(2, 0, 2, [], scale=0.0), "scale"),
        (segment(3, 0, 2, []), "unknown kind"),
        (torch.zeros(8, dtype=torch.uint8), "size"),
        (torch.zeros(0, dtype=torch.uint8), "size"),
    ],
)
def test_places_of_a_threshold(data, reason):
    if reason is None:
        out = decoded(places.decode, data, 2, 4)
        assert sorted(out.flatten().tolist()) == [0] * 6 + [1, 2]
        return
    with pytest.raises(CorruptFrameError, match=reason) as raised:
        decoded(places.decode, data, 2, 4)
    assert raised.value.segment == 0


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-40, torch.inf, torch.nan])
def test_scales_that_no_encoder_writes(scale):
    with pytest.raises(CorruptFrameError, match="scale"):
        decoded(rows.decode, segment(2, rows.BITMAP, 1, [1], scale=scale), 1, 5)


def test_senders_may_store_values_in_other_formats():
    """Each segment says how its own values are stored."""
    at, segments = torch.tensor([0, 512]), Segments.packed([3, 3], 4)
    values = torch.randint(-9, 9, (6, 4), generator=torch.Generator().manual_seed(0)).float()
    payload, sizes = torch.zeros(1024, dtype=torch.uint8), []
    for s, stored in enumerate(("fp32", "fp16")):
        part, one = Segments.packed([3], 4), torch.ones(1, dtype=torch.float64)
        encoded = rows.encode_above(
            values[3 * s : 3 * s + 3], part, payload, at[s : s + 1], thresholds=one, stored=stored
        )
        sizes.append(encoded.nbytes)
    out = torch.empty(6, 4)
    rows.decode(Encoded(payload, at, torch.cat(sizes)), segments, out)
    assert torch.equal(out, values)
