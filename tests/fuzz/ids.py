"""Search with damaged messages of ids: a receiver gives bags, or a CorruptFrameError.

The reference and the compiled decoder must come to the same end. Three of four damaged buffers get
a new checksum, so that the damage reaches the decoders.
"""

import torch
from torch import Tensor

from tests.fuzz.frames import mutant
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.ops.batch.packed_ids.reference import ITEMS_PER_BYTE
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.wire.id_messages import pack, unpack


def subjects() -> list[tuple[Tensor, int, list[int] | None]]:
    """Return sound messages of one peer: the bytes, the segments, and the bags of each or None."""
    generator = torch.Generator().manual_seed(0)

    def below(limit: int, size: int) -> Tensor:
        return torch.randint(limit, (size,), generator=generator)

    ones, ragged = torch.ones(12, dtype=torch.int64), below(4, 12)
    parts = [
        (ones, below(10**4, 12).sort().values),
        (ones, below(2**62, 12)),
        (ragged, below(50, int(ragged.sum()))),
        (below(2, 12).sort().values, None),
        (0 * ones, below(1, 0)),
    ]
    parts = [(n, below(9, int(n.sum())).sort().values if i is None else i) for n, i in parts]
    lengths, ids = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    messages = []
    for even in (12, None):
        bags = Bags(ids, lengths, torch.full((len(parts),), 12))
        packed = pack(bags, [len(parts)], even_bags=even)
        messages.append((packed.buffer, len(parts), None if even is None else [even]))
    return messages


def outcome(buffer: Tensor, count: int, even: list[int] | None) -> list[list[int]] | None:
    """Return what a receiver makes of a buffer, None where it refuses it, by both backends."""
    results: list[list[list[int]] | None] = []
    for backend in ("reference", "cpu"):
        with default_backend(backend):
            try:
                bags = unpack(buffer, [0], ["f"] * count, even)
            except CorruptFrameError:
                results.append(None)
            else:
                results.append([bags.ids.tolist(), bags.lengths.tolist(), bags.num_bags.tolist()])
                assert len(bags.ids) + len(bags.lengths) <= ITEMS_PER_BYTE * len(buffer)
    assert results[0] == results[1], f"backends differ: {results}"
    return results[0]


def search(num_cases: int, seed: int) -> int:
    """Open `num_cases` damaged messages; return how many were refused.

    Raises: AssertionError: backends differ, or more came out than the bytes may hold. Whatever a
        decoder raises that is no CorruptFrameError.
    """
    generator, messages, refused = torch.Generator().manual_seed(seed), subjects(), 0
    for n in range(num_cases):
        buffer, count, even = messages[n % len(messages)]
        refused += outcome(mutant(buffer, generator), count, even) is None
    return refused
