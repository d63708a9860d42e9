"""Expected bytes of the ids and lengths that one rank sends one shard of a table in a step.

As TorchRec sends them an id takes 8 bytes and the length of a bag 4. Packed, an id of a sorted
segment takes the bits of the gap to the next one (ops.packed_ids: low bits as they are, the rest in
unary), and lengths that are all equal take nothing.

Knows: numbers. Does not know: shardings, nor what ids are; they fall anywhere.
"""

import math

ID_NBYTES, LENGTH_NBYTES = 8, 4
SEGMENT_NBYTES = 8  # of a packed segment: its head, and the words that end in mid-byte
UNKNOWN_GAP = 64.0
_MOST_BITS = 56


def ids_nbytes(
    num_bags: float, num_ids: float, *, rows_share: float, num_rows: int | None, packed: bool
) -> float:
    """Return the bytes that one rank sends one shard.

    Args:
        num_bags: bags that the rank sends: distinct ones where equal ones merge.
        num_ids: ids of a bag.
        rows_share: share of the table's rows that the shard has, and so of the ids.
        num_rows: rows of the table, for packed ids; None: not known, then one in UNKNOWN_GAP of
            them is taken to be in a batch.
        packed: whether ids are packed.
    """
    ids = num_bags * num_ids * rows_share
    if not packed:
        return ids * ID_NBYTES + num_bags * LENGTH_NBYTES
    gap = UNKNOWN_GAP if num_rows is None else max(num_rows / max(num_bags * num_ids, 1.0), 1.0)
    return SEGMENT_NBYTES + ids * bits_of_gap(gap) / 8


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
