"""Expected bytes of ids and lengths that reach a table's shards in a step.

As TorchRec sends them an id takes 8 bytes and the length of a bag 4. Packed, an id of a sorted
segment takes the bits of the gap to the next one (ops.packed_ids: low bits as they are, the rest in
unary), and lengths that are all equal take nothing.

Knows: shardings. Does not know: what ids are; they fall anywhere.
"""

import math

from trec_qcomm.control.traffic.shardings import TWO_LEVEL, Place

ID_NBYTES, LENGTH_NBYTES = 8, 4
SEGMENT_NBYTES = 8  # of a packed segment: its head, and the words that end in mid-byte
_MOST_BITS = 56


def ids_nbytes(
    sharding: str,
    place: Place,
    *,
    num_bags: float,
    num_ids: float,
    num_shards: int,
    num_rows: int | None,
    packed: bool,
) -> float:
    """Return the bytes that all ranks together send to others, for one table.

    Args:
        sharding: TorchRec's name.
        num_bags: bags that a rank sends: distinct ones where equal ones merge.
        num_ids: ids of a bag.
        num_shards: shards that the table has.
        num_rows: rows of the table, for packed ids; None: not known, and ids are as if 1 in 64 were
            in a batch.
        packed: whether ids are packed.
    """
    by_rows = sharding == "row_wise" or sharding in TWO_LEVEL
    parts = num_shards if by_rows else 1  # of the ids, each for one shard
    if sharding == "grid_shard":
        parts = place.node_size
    senders = place.num_ranks - 1  # for each shard, all but the rank that has it
    ids = num_bags * num_ids / parts
    if packed:
        gap = 64.0 if num_rows is None else max(num_rows / max(num_bags * num_ids, 1.0), 1.0)
        return senders * num_shards * (SEGMENT_NBYTES + ids * bits_of_gap(gap) / 8)
    return senders * num_shards * (ids * ID_NBYTES + num_bags * LENGTH_NBYTES)


def bits_of_gap(mean: float) -> float:
    """Return the bits of a gap between sorted ids, drawn from all: k low bits, the rest in unary.

    Args: mean: mean gap, >= 1; one less is coded, as ids differ.
    """
    rest = mean - 1.0
    best = math.inf
    for bits in range(_MOST_BITS):
        # The mean of floor(gap / 2^k), of gaps that are geometric.
        high = 0.0 if rest <= 0 else 1.0 / ((1 + 1 / rest) ** (2**bits) - 1)
        best = min(best, bits + 1 + high)
        if high < 1e-3:
            break
    return best if rest > 0 else 0.0
