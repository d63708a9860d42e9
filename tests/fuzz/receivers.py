"""Search over pairs of a receiver's codec and the wire ids that its peers sent.

A frame of three tables is sound, or has damage and its checksum made right again: payload bytes,
or the wire id of a segment, registered or not. Some receivers keep masks and some do not.
Promise: rows as the sender's own config decodes them (any rows, of a damaged frame), or a
CorruptFrameError that names the sender; no value beside the rows is touched.
"""

from itertools import product
from typing import get_args

import torch
from torch import Tensor

from tests.fuzz.frames import CODECS
from trec_qcomm.codecs import Cast, Float6, Float8, Identity
from trec_qcomm.comm.frames.coding import SealedFrames, encode_frames
from trec_qcomm.comm.frames.decoding import decode_frames
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rows.layout import FeatureShard, Layout, in_matrix
from trec_qcomm.core import registry
from trec_qcomm.core.codec import Codec, check_dim
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.ext.dct import ForwardMask, TopK
from trec_qcomm.ext.dct.masks import Masks, new_masks, with_masks
from trec_qcomm.ext.fbgemm.codec import Fbgemm, Precision
from trec_qcomm.ext.fbgemm.operators import is_installed
from trec_qcomm.testing import reseal

DIMS = {"a": 4, "b": 16, "c": 7}
GUARD, GUARD_VALUE = 64, -7.0625  # values before and after the rows
NUM_TABLES, WIDTH, CALL, PEER = len(DIMS), sum(DIMS.values()), 3, 7
LAYOUT = Layout((tuple(FeatureShard(name, f"of_{name}", 0, DIMS[name]) for name in DIMS),))
EVERY: tuple[Codec, ...] = (
    *CODECS,
    TopK(density=1.0),
    ForwardMask(),
    Cast("fp16"),
    Float6("e3m2"),
    Float8("e5m2"),
    *(Fbgemm(precision) for precision in get_args(Precision) if is_installed()),
)
PAIRS = tuple(product(EVERY, EVERY))  # (receiver's, sender's)
if is_installed():
    assert {codec.wire_id for codec in EVERY} == set(filter(registry.decoder, range(1, 240)))


def _placed(codecs: list[Codec], num_rows: int) -> PlacedFrames:
    """Return the frame of three tables. One whose dim a codec does not take has the identity."""
    taken: dict[str, Codec] = {}
    for (table, dim), codec in zip(DIMS.items(), codecs, strict=True):
        try:
            check_dim(codec, dim, table)
            taken[table] = codec
        except ValueError:
            taken[table] = Identity()
    plan = LAYOUT.plan_frames([0], 0, taken)
    return plan.place(*in_matrix(plan, [num_rows], WIDTH))


def _receive(frames: SealedFrames, placed: PlacedFrames, num_rows: int) -> Tensor:
    whole = torch.full((num_rows * WIDTH + 2 * GUARD,), GUARD_VALUE)
    out = whole[GUARD:-GUARD].view(num_rows, WIDTH)
    try:
        decode_frames(frames, placed, out, ranks=[PEER], traffic=_traffic())
    finally:
        guards = torch.cat([whole[:GUARD], whole[-GUARD:]])
        assert bool((guards == GUARD_VALUE).all()), "a decoder wrote where no row is"
    return out.clone()


def _traffic() -> Traffic:
    return Traffic("embedding_forward", LAYOUT.tables())


def _damaged(buffer: Tensor, generator: torch.Generator) -> Tensor:
    """Return a copy with the wire id of a segment changed, or payload bytes, or both."""

    def below(limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=generator))

    data, kind = buffer.clone(), below(3)
    overhead = 32 + 12 * NUM_TABLES + 4
    if kind != 0:
        data[32 + 12 * below(NUM_TABLES)] = below(256) if below(4) == 0 else below(24)
    if kind != 1 and len(data) > overhead:
        for _ in range(1 + below(4)):
            data[overhead + below(len(data) - overhead)] = below(256)
    reseal(data)
    return data


def _case(pairs: list[tuple[Codec, Codec]], sound: bool, generator: torch.Generator) -> bool:
    """Send one frame; return whether it was decoded."""
    num_rows = int(torch.randint(6, (1,), generator=generator))
    rows = torch.randn(num_rows, WIDTH, generator=generator)
    theirs = _placed([pair[1] for pair in pairs], num_rows)
    masks = new_masks(theirs, rows.device)
    noise = torch.randint(256, masks.bits.shape, generator=generator)
    masks = Masks(noise.to(torch.uint8), masks.at)
    theirs = with_masks(theirs, masks)
    sent = encode_frames(rows, theirs, call=CALL, seed=1, traffic=_traffic())
    buffer = sent.buffer if sound else _damaged(sent.buffer, generator)
    ours = _placed([pair[0] for pair in pairs], num_rows)
    # A receiver whose own codec reads masks always has them.
    reads = any(pair[0].follows_forward for pair in pairs)
    if reads or int(torch.randint(2, (1,), generator=generator)):
        ours = with_masks(ours, masks)
    frames = SealedFrames(buffer, sent.nbytes, CALL)
    try:
        out = _receive(frames, ours, num_rows)
    except CorruptFrameError as error:
        if error.rank != PEER:
            raise AssertionError("the error does not name the sender") from error
        return False
    if sound:
        expected = _receive(frames, theirs, num_rows)
        assert torch.equal(out.view(torch.int32), expected.view(torch.int32)), pairs
    return True


def search(num_pairs: int, seed: int) -> tuple[int, int]:
    """Send frames until `num_pairs` pairs, of PAIRS in a random order, have met; return how many
    frames were decoded and how many refused.

    Every other round over PAIRS has damaged frames; the first one has sound ones.
    Raises: AssertionError: other rows, or no sender named. Whatever a decoder raises that is no
        CorruptFrameError.
    """
    generator = torch.Generator().manual_seed(seed)
    outcomes, done, round_ = [0, 0], 0, 0
    while done < num_pairs:
        order = torch.randperm(len(PAIRS), generator=generator).tolist()
        order += order[: -len(order) % NUM_TABLES]
        for first in range(0, len(order), NUM_TABLES):
            pairs = [PAIRS[number] for number in order[first : first + NUM_TABLES]]
            outcomes[0 if _case(pairs, round_ % 2 == 0, generator) else 1] += 1
        done, round_ = done + len(PAIRS), round_ + 1
    return outcomes[0], outcomes[1]
