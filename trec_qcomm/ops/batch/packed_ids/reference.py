"""Packed ids in plain Python: the definition. Wire: FORMAT.md, "Messages of ids".

Shapes: S segments (features) of a message, n bags and m ids of one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from trec_qcomm.core.segments import ALIGNMENT

OFFSETS, GAPS, STEPS, UNARY = 0, 1, 2, 4  # kinds of words; UNARY is added to one of the others
MAX_RUNS, MAX_LENGTH_BITS, MAX_UNARY_BITS = 16, 32, 56
ITEMS_PER_BYTE, SPARE_NBYTES = 64, 8
_MOD = 2**64


class BadBytes(Exception):
    """Error: bytes that no encoder writes. Args: the reason, and the index of the segment."""


@dataclass
class Plan:
    """Parameters of one segment's bytes, as its header states them.

    Args:
        runs: (length, number of bags) of each run of equal lengths; None if lengths are packed
        length_bits, length_base: bits of a packed length, and the number that is added to it
        kind: one of OFFSETS, GAPS and STEPS, with or without UNARY
        bits: low bits of a word
        base: the smallest id; with gaps and steps the first id
        unary_nbytes: bytes of the words' high parts
    """

    num_bags: int
    num_ids: int = 0
    runs: list[tuple[int, int]] | None = field(default_factory=list)
    length_bits: int = 0
    length_base: int = 0
    kind: int = OFFSETS
    bits: int = 0
    base: int = 0
    unary_nbytes: int = 0

    @property
    def num_words(self) -> int:
        """Number of words: one for each id, or one from each id to the next."""
        return self.num_ids - (self.num_ids > 0 and self.kind & 3 != OFFSETS)


def encode_message(bags: Sequence[Sequence[Sequence[int]]], *, states_bags: bool) -> bytes:
    """Return the bytes of one message after its header: heads, streams and padding.

    Args:
        bags: for each of S segments, for each of its bags, its ids.
        states_bags: whether each segment says how many bags it has.
    """
    heads, streams, items = b"", b"", 0
    for segment in bags:
        lengths, ids = [len(bag) for bag in segment], [i for bag in segment for i in bag]
        plan = Plan(len(lengths), len(ids))
        _plan_lengths(plan, lengths)
        if ids:
            _plan_ids(plan, ids)
        heads += _head(plan, states_bags)
        if plan.runs is None:
            streams += _packed([n - plan.length_base for n in lengths], plan.length_bits)
        streams += _id_streams(plan, ids)
        items += len(lengths) + len(ids)
    data = heads + streams
    nbytes = max(len(data) + SPARE_NBYTES, -(-items // ITEMS_PER_BYTE))
    return data.ljust(-(-nbytes // ALIGNMENT) * ALIGNMENT, b"\0")


def _plan_lengths(plan: Plan, lengths: list[int]) -> None:
    runs = [(value, len(list(group))) for value, group in groupby(lengths)]
    low = min(lengths, default=0)
    bits = (max(lengths, default=0) - low).bit_length()
    packed_nbytes = len(_varint(low) + _varint(plan.num_ids)) + _nbytes(bits * plan.num_bags)
    if len(runs) <= MAX_RUNS and len(_runs(runs)) <= packed_nbytes:
        plan.runs = runs
    else:
        plan.runs, plan.length_bits, plan.length_base = None, bits, low


def _plan_ids(plan: Plan, ids: list[int]) -> None:
    """Choose the words and their bits: the fewest bytes, and of equals the first of those here."""
    gaps = [b - a for a, b in pairwise(ids)]
    if min(gaps, default=0) < 0:
        plan.kind, plan.base = OFFSETS, min(ids)
        plan.bits = (max(ids) - plan.base).bit_length()
        return
    step = min(gaps, default=1) > 0
    plan.kind, plan.base, words = STEPS if step else GAPS, ids[0], [gap - step for gap in gaps]
    plan.bits = max(words, default=0).bit_length()
    if not words:
        return
    fewest = _nbytes(plan.bits * len(words))
    middle = max((sum(words) // len(words)).bit_length() - 1, 0)
    for bits in range(max(middle - 1, 0), min(middle + 1, MAX_UNARY_BITS) + 1):
        unary_nbytes = _nbytes(len(words) + sum(word >> bits for word in words))
        nbytes = _nbytes(bits * len(words)) + unary_nbytes
        if nbytes < fewest:
            plan.kind, plan.bits, plan.unary_nbytes = plan.kind | UNARY, bits, unary_nbytes
            fewest = nbytes


def _head(plan: Plan, states_bags: bool) -> bytes:
    head = _varint(plan.num_bags) if states_bags else b""
    if plan.runs is not None:
        head += bytes([0]) + _runs(plan.runs)
    else:
        head += bytes([plan.length_bits]) + _varint(plan.length_base) + _varint(plan.num_ids)
    if plan.num_ids:
        head += bytes([plan.kind, plan.bits]) + _varint(_zigzag(plan.base))
        head += _varint(plan.unary_nbytes) if plan.kind & UNARY else b""
    return head


def _runs(runs: list[tuple[int, int]]) -> bytes:
    """Return the runs; the last one has all bags that are left."""
    parts = [_varint(value) + _varint(count) for value, count in runs[:-1]]
    return b"".join([_varint(len(runs)), *parts, *(_varint(value) for value, _ in runs[-1:])])


def _id_streams(plan: Plan, ids: list[int]) -> bytes:
    words = [i - plan.base for i in ids]
    if plan.kind & 3 != OFFSETS:
        step = int(plan.kind & 3 == STEPS)
        words = [b - a - step for a, b in pairwise(ids)]
    low = _packed([word % (1 << plan.bits) for word in words], plan.bits)
    if not plan.kind & UNARY:
        return low
    number, at = 0, 0
    for word in words:
        at += word >> plan.bits
        number |= 1 << at
        at += 1
    return low + number.to_bytes(plan.unary_nbytes, "little")


def decode_message(
    data: bytes, num_segments: int, num_bags: Sequence[int] | None
) -> list[tuple[list[int], list[int]]]:
    """Return the lengths and ids of each segment.

    Args:
        data: the message without its header.
        num_bags: bags of each segment; None if the message says it.
    Raises: BadBytes: bytes that no encoder writes.
    """
    limit = ITEMS_PER_BYTE * len(data)
    reader = _Reader(data)
    plans = []
    for s in range(num_segments):
        reader.segment = s
        plans.append(_read_plan(reader, None if num_bags is None else num_bags[s], limit))
    result, items = [], sum(plan.num_bags + plan.num_ids for plan in plans)
    for s, plan in enumerate(plans):
        reader.segment = s
        reader.require(items <= limit, "more bags and ids than its bytes may hold")
        result.append((_read_lengths(reader, plan), _read_ids(reader, plan)))
    reader.require(len(data) - reader.at >= SPARE_NBYTES, "its bytes end early")
    return result


class _Reader:
    """Place in a message's bytes, and the segment that is being read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.segment = data, 0, 0

    def require(self, condition: bool, reason: str) -> None:
        if not condition:
            raise BadBytes(reason, self.segment)

    def take(self, nbytes: int) -> bytes:
        self.require(nbytes <= len(self.data) - self.at, "its bytes end early")
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            number |= (byte & 127) << shift
            if byte < 128:
                self.require(number < _MOD, "a number of its header is out of range")
                return number
        raise BadBytes("a number of its header is out of range", self.segment)

    def packed(self, count: int, bits: int) -> list[int]:
        number = int.from_bytes(self.take(_nbytes(count * bits)), "little")
        return [number >> (bits * i) & ((1 << bits) - 1) for i in range(count)]


def _read_plan(reader: _Reader, num_bags: int | None, limit: int) -> Plan:
    plan = Plan(reader.varint() if num_bags is None else num_bags)
    reader.require(plan.num_bags <= limit, "more bags and ids than its bytes may hold")
    plan.length_bits = reader.byte()
    if plan.length_bits == 0:
        _read_runs(reader, plan, limit)
    else:
        reader.require(plan.length_bits <= MAX_LENGTH_BITS, "its lengths have too many bits")
        plan.runs, plan.length_base, plan.num_ids = None, reader.varint(), reader.varint()
    small = plan.num_ids <= limit and plan.length_base <= limit
    reader.require(small, "more bags and ids than its bytes may hold")
    if plan.num_ids:
        plan.kind, plan.bits = reader.byte(), reader.byte()
        unary = plan.kind & UNARY
        reader.require(plan.kind & 3 <= STEPS and plan.kind < 8, "its ids are of an unknown kind")
        reader.require(plan.bits <= (MAX_UNARY_BITS if unary else 64), "its ids have too many bits")
        zigzag = reader.varint()
        plan.base = zigzag >> 1 ^ -(zigzag & 1)
        plan.unary_nbytes = reader.varint() if unary else 0
    return plan


def _read_runs(reader: _Reader, plan: Plan, limit: int) -> None:
    num_runs, left = reader.varint(), plan.num_bags
    reader.require(num_runs <= plan.num_bags, "its runs do not add up to its bags")
    reader.require((num_runs > 0) == (plan.num_bags > 0), "its runs do not add up to its bags")
    plan.runs = []
    for run in range(num_runs):
        value = reader.varint()
        count = reader.varint() if run < num_runs - 1 else left
        reader.require(0 < count <= left, "its runs do not add up to its bags")
        plan.num_ids, left = plan.num_ids + value * count, left - count
        reader.require(plan.num_ids <= limit, "more bags and ids than its bytes may hold")
        plan.runs.append((value, count))
    reader.require(left == 0, "its runs do not add up to its bags")


def _read_lengths(reader: _Reader, plan: Plan) -> list[int]:
    if plan.runs is not None:
        return [value for value, count in plan.runs for _ in range(count)]
    packed = reader.packed(plan.num_bags, plan.length_bits)
    lengths = [plan.length_base + length for length in packed]
    reader.require(sum(lengths) == plan.num_ids, "its lengths do not add up to its ids")
    return lengths


def _read_ids(reader: _Reader, plan: Plan) -> list[int]:
    words = reader.packed(plan.num_words, plan.bits)
    if plan.kind & UNARY:
        high = _high_parts(reader, reader.take(plan.unary_nbytes), len(words))
        words = [word + (part << plan.bits) for word, part in zip(words, high, strict=True)]
    if plan.num_ids == 0:
        return []
    if plan.kind & 3 == OFFSETS:
        return [_signed(plan.base + word) for word in words]
    ids = [plan.base]
    for word in words:
        ids.append(_signed(ids[-1] + word + (plan.kind & 3 == STEPS)))
    return ids


def _high_parts(reader: _Reader, data: bytes, count: int) -> list[int]:
    """Return how many zeros are before each one bit, of which there are `count`."""
    number = int.from_bytes(data, "little")
    ones = [at for at in range(number.bit_length()) if number >> at & 1]
    reader.require(len(ones) == count, "its high parts are not one an id")
    last = ones[-1] if ones else -1
    reader.require(len(data) == _nbytes(last + 1), "its high parts are not one an id")
    return [b - a - 1 for a, b in pairwise([-1, *ones])]


def _nbytes(num_bits: int) -> int:
    return (num_bits + 7) // 8


def _packed(values: list[int], bits: int) -> bytes:
    """Return numbers of `bits` bits one behind the other, the lowest bit of the first one first."""
    number = sum(value << (bits * i) for i, value in enumerate(values))
    return number.to_bytes(_nbytes(bits * len(values)), "little")


def _varint(number: int) -> bytes:
    """Return 7 bits a byte, the lowest first; all bytes but the last have the top bit set."""
    data = []
    while number >= 128:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def _zigzag(number: int) -> int:
    return 2 * number if number >= 0 else -2 * number - 1


def _signed(number: int) -> int:
    """Return the number modulo 2^64, in -2^63..2^63 - 1."""
    return (number + 2**63) % _MOD - 2**63
