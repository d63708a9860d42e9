"""rANS of a segment's indices in plain Python integers: the definition, written to be read.

    class of q = floor((q - base) / 2^shift);  an escape where that is none of 0..A-1
    encoding a class of frequency f and start c:  x -> floor(x / f) M + x mod f + c
    decoding it:  the slot x mod M tells f and c;  x -> f floor(x / M) + x mod M - c

States lie in 2^15..2^31 - 1. One that would leave the range gives off its low 16 bits first, and
the decoder takes them back where its state falls below 2^15, so it reads the words in order while
the encoder goes through the indices, and writes the words, from the last to the first.

All share one table, but each *stream* of 2^16 indices has states and words of its own, so that they
can be coded at the same time, and so can a stream's indices of different states.
Segment bytes: FORMAT.md, "rans". N indices, A classes, C streams, M = 2^log slots.
"""

import torch
from torch import Tensor

MAX_SHIFT, MAX_LOG = 20, 12
SAMPLES = 1024
LOWER = 1 << 15
STREAM = 1 << 16


def num_lanes(num_values: int) -> int:
    """States of a stream that take turns: one up to 255 indices, four from 1024 on, one for every
    2048 from 16384 on, 32 at most. Each costs 2 bytes."""
    length = num_values.bit_length()
    return 1 << min(5, max(min(2, max(0, (length - 7) // 2)), length - 12))


def streams_of(num_values: int) -> list[slice]:
    """The indices of each stream: 2^16, and the last one has what remains, too."""
    begins = [STREAM * c for c in range(max(1, num_values // STREAM))]
    return [slice(a, b) for a, b in zip(begins, [*begins[1:], num_values], strict=True)]


def table_log(num_values: int, num_symbols: int) -> int:
    """log2 of the slots: enough for every symbol, and filled faster than the indices are read."""
    return max(num_symbols.bit_length() + 1, min(MAX_LOG, num_values.bit_length() // 2 + 4))


def most_classes(num_values: int) -> int:
    """How many an encoder begins with: 16, or up to 256 with 1024 indices or more."""
    return 1 << min(8, max(4, num_values.bit_length() - 3))


def log2(n: int) -> int:
    """log2(n) * 2^16 for n >= 1, at most 0.9 % of one bit off: integers are equal everywhere."""
    b = n.bit_length() - 1
    f = ((n << 16) >> b) - 65536
    return (b << 16) + f + (((f * (65536 - f) >> 16) * 22544) >> 16)


def zigzag(n: int) -> int:
    """0, -1, 1, -2, ... -> 0, 1, 2, 3, ..."""
    return 2 * n if n >= 0 else -2 * n - 1


def unzigzag(n: int) -> int:
    """The inverse of `zigzag`."""
    return -(n >> 1) - 1 if n & 1 else n >> 1


def coarse(count: int) -> int:
    """The weight of a class: its count to 4 significant bits, halves rounded up."""
    drop = max(0, count.bit_length() - 4)
    return ((count + ((1 << drop) >> 1)) >> drop) << drop


def weight_bits(weights: list[int]) -> list[int]:
    """Each weight: the change of its bit length as Elias gamma of zigzag + 1, then up to 3 bits
    below its leading one. Numbers begin with their lowest bit."""
    bits, before = [], 0
    for weight in weights:
        length = weight.bit_length()
        code = zigzag(length - before) + 1
        low = code.bit_length() - 1
        sent = min(3, max(0, length - 1))
        bits += [0] * low + [1] + [code >> k & 1 for k in range(low)]
        bits += [weight >> (length - 1 - sent) >> k & 1 for k in range(sent)]
        before = length
    return bits


def read_weights(bits: list[int], num_classes: int) -> tuple[list[int], int]:
    """The inverse: the weights and the number of bits they took.

    Raises: ValueError: the bits end, or a bit length lies outside 0..31.
    """
    weights, at, length = [], 0, 0

    def number(count: int) -> int:
        return sum(bit << k for k, bit in enumerate(bits[at : at + count]))

    for _ in range(num_classes):
        low = [*bits[at : at + 6], 1].index(1)
        at += low + 1
        length += unzigzag(number(low) + (1 << low) - 1)
        at += low
        if low > 5 or not 0 <= length <= 31:
            raise ValueError("rans: weight out of range")
        sent = min(3, max(0, length - 1))
        weights.append((number(sent) + (1 << sent)) << (length - 1 - sent) if length else 0)
        at += sent
        if at > len(bits):
            raise ValueError("rans: the table ends early")
    return weights, at


def frequencies_of(weights: list[int], log: int) -> list[int]:
    """Frequencies of sum 2^log in proportion to the weights, at least 1 where one is not 0.

    What rounding leaves over goes to the largest; what is missing is taken from the largest, a
    sixteenth at a time.
    """
    total = sum(weights)
    f = [max(1, ((w << log) + total // 2) // total) if w else 0 for w in weights]
    excess = sum(f) - (1 << log)
    while excess:
        s = f.index(max(f))
        change = min(excess, max(1, f[s] >> 4))
        f[s] -= change
        excess -= change
    return f


def cost(counts: list[int], shift: int, num_escapes: int) -> int:
    """Bits * 2^16 of the table, the symbols and the low bits."""
    num_values = sum(counts) + num_escapes
    fixed = (num_values * shift + len(weight_bits([coarse(n) for n in counts]))) << 16
    symbols = [n for n in [*counts, num_escapes] if n]
    if len(counts) + (num_escapes > 0) == 1:
        return fixed
    return fixed + num_values * log2(num_values) - sum(n * log2(n) for n in symbols)


def window(q: list[int]) -> tuple[int, int]:
    """(base, shift) of the classes to begin with: all indices, or what lies around the median of
    15 where outliers would make the classes of the others too wide."""
    low, high, most = min(q), max(q), most_classes(len(q))
    shift = 0
    while (high - low) >> shift >= most:
        shift += 1
    if shift == 0:
        return low, 0
    center = sorted(q[(2 * k + 1) * len(q) // 30] for k in range(15))[7]
    sample = [abs(v - center).bit_length() for v in q[:: max(1, len(q) // SAMPLES)]]
    base, best = low, sum(max(shift - b, 0) for b in sample)
    for fewer in reversed(range(shift)):
        half = (most << fewer) // 2
        bits = sum(40 if b >= half.bit_length() else max(fewer - b, 0) for b in sample)
        if bits < best:
            base, shift, best = center - half, fewer, bits
    return base, shift


def plan(q: list[int]) -> tuple[int, int, list[int], int]:
    """(base, shift, counts of the classes, number of escapes).

    Starts with the finest classes and halves their number as long as that saves 0.4 %.
    """
    base, shift = window(q)
    counts, escapes = [0] * most_classes(len(q)), 0
    for v in q:
        place = (v - base) >> shift
        if 0 <= place < len(counts):
            counts[place] += 1
        else:
            escapes += 1
    while counts[-1] == 0:
        counts.pop()
    while counts[0] == 0 and not escapes:  # with escapes no class may reach beyond the first ones
        counts.pop(0)
        base += 1 << shift
    best = cost(counts, shift, escapes)
    while len(counts) > 1 and shift < MAX_SHIFT:
        padded = [*counts, 0]
        folded = [padded[k] + padded[k + 1] for k in range(0, len(counts), 2)]
        bits = cost(folded, shift + 1, escapes)
        if bits > best - (best >> 8):  # a plane of low bits takes time: for 0.4 % at least
            break
        shift, counts, best = shift + 1, folded, bits
    return base, shift, counts, escapes


def to_bytes(bits: list[int]) -> bytes:
    """Lowest bit first, the last byte padded with 0."""
    return bytes(sum(b << k for k, b in enumerate(bits[i : i + 8])) for i in range(0, len(bits), 8))


def to_bits(data: bytes) -> list[int]:
    """The inverse of `to_bytes`."""
    return [byte >> k & 1 for byte in data for k in range(8)]


def varint(n: int) -> bytes:
    """Seven bits a byte, the lowest first; all bytes but the last have their top bit set."""
    return bytes([n & 127 | 128]) + varint(n >> 7) if n >= 128 else bytes([n])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, place after it). Raises ValueError: longer than 5 bytes, or no end."""
    value = 0
    for k, byte in enumerate(data[at : at + 5]):
        value |= (byte & 127) << 7 * k
        if byte < 128:
            return value, at + k + 1
    raise ValueError("rans: a number does not end")


def put_planes(q: list[int], base: int, shift: int) -> bytes:
    """The low bits of q - base, a plane a bit: bit t of byte j is that of index t * stride + j."""
    stride = (len(q) + 7) // 8
    bits = [0] * (8 * stride * shift)
    for i, v in enumerate(q):
        for plane in range(shift):
            bits[8 * (plane * stride + i % stride) + i // stride] = (v - base) >> plane & 1
    return to_bytes(bits)


def get_low_bits(data: bytes, shift: int, num_values: int) -> list[int]:
    """The inverse of `put_planes`: the low bits of each index."""
    stride = (num_values + 7) // 8

    def bit(i: int, plane: int) -> int:
        return data[plane * stride + i % stride] >> (i // stride) & 1

    return [sum(bit(i, p) << p for p in range(shift)) for i in range(num_values)]


def push(
    symbols: list[int], lanes: int, frequencies: list[int], log: int
) -> tuple[list[int], list[int]]:
    """(states, words) of a stream, from which `pop` reads the symbols."""
    starts = [sum(frequencies[:s]) for s in range(len(frequencies))]
    states, words = [LOWER] * lanes, []
    for i in reversed(range(len(symbols))):
        x, f = states[i % lanes], frequencies[symbols[i]]
        if x >= f << (31 - log):
            words.append(x & 0xFFFF)
            x >>= 16
        states[i % lanes] = (x // f << log) + x % f + starts[symbols[i]]
    return states, words[::-1]


def pop(
    states: list[int], words: list[int], frequencies: list[int], log: int, num_values: int
) -> list[int]:
    """The symbols of a stream. Raises ValueError: not all words are used, or a state ends
    elsewhere than the encoder began."""
    slots = [(s, f, k) for s, f in enumerate(frequencies) for k in range(f)]
    states, symbols, at = list(states), [], 0
    for i in range(num_values):
        x = states[i % len(states)]
        symbol, f, place = slots[x % (1 << log)]
        x = f * (x >> log) + place
        if x < LOWER:
            if at == len(words):
                raise ValueError("rans: the words end early")
            x = x << 16 | words[at]
            at += 1
        states[i % len(states)] = x
        symbols.append(symbol)
    if at != len(words) or any(x != LOWER for x in states):
        raise ValueError("rans: the words do not end where the indices do")
    return symbols


def encode_segment(q: Tensor, dim: int) -> Tensor:
    """[N] int32 indices -> [W] uint8. `dim` is the other encoders'."""
    values: list[int] = q.tolist()
    if not values:
        return torch.empty(0, dtype=torch.uint8)
    base, shift, counts, escapes = plan(values)
    data = bytes([shift, len(counts) - 1]) + varint(zigzag(base)) + varint(escapes)
    weights = [coarse(n) for n in counts] + [escapes] * (escapes > 0)
    if len(weights) > 1:
        data += to_bytes(weight_bits(weights[: len(counts)]))
    data += put_planes(values, base, shift)
    data += bytes(len(data) % 2)
    classes = [(v - base) >> shift for v in values]
    outside = [not 0 <= c < len(counts) for c in classes]
    for v, out in zip(values, outside, strict=True):
        data += v.to_bytes(4, "little", signed=True) if out else b""
    if len(weights) > 1:
        symbols = [len(counts) if out else c for c, out in zip(classes, outside, strict=True)]
        log, lanes = table_log(len(values), len(weights)), num_lanes(len(values))
        f = frequencies_of(weights, log)
        streams = [push(symbols[part], lanes, f, log) for part in streams_of(len(values))]
        data += b"".join(x.to_bytes(4, "little") for states, _ in streams for x in states)
        data += b"".join(len(words).to_bytes(4, "little") for _, words in streams[:-1])
        data += b"".join(w.to_bytes(2, "little") for _, words in streams for w in words)
    return torch.tensor(list(data), dtype=torch.uint8)


def decode_segment(data: Tensor, dim: int, num_values: int) -> Tensor:
    """The inverse: [W] uint8 -> [num_values] int32.

    Raises: ValueError: bytes that no encoder writes.
    """
    indices = _decode(bytes(data.tolist()), num_values)
    return torch.tensor(indices, dtype=torch.int64).to(torch.int32)


def _decode(data: bytes, num_values: int) -> list[int]:
    if num_values == 0 or len(data) < 4:
        _require(num_values == len(data), "rans: wrong size")
        return []
    shift, num_classes = data[0], data[1] + 1
    base, at = read_varint(data, 2)
    escapes, at = read_varint(data, at)
    _require(shift <= MAX_SHIFT and base < 1 << 25, "rans: class out of range")
    _require(escapes < num_values, "rans: more escapes than indices")
    weights = [num_values]
    if num_classes + (escapes > 0) > 1:
        weights, taken = read_weights(to_bits(data[at : at + 512]), num_classes)
        weights += [escapes] * (escapes > 0)
        _require(sum(weights) > 0, "rans: an empty table")
        at += (taken + 7) // 8
    low_at, at = at, at + shift * ((num_values + 7) // 8)
    at += at % 2
    states_at = at + 4 * escapes
    _require(states_at <= len(data), "rans: wrong size")
    outside = [_int(data[i : i + 4]) for i in range(at, states_at, 4)]
    symbols = _symbols(data[states_at:], weights, num_values)
    low = get_low_bits(data[low_at:], shift, num_values)
    _require(symbols.count(num_classes) == escapes, "rans: wrong number of escapes")
    q = []
    for symbol, bits in zip(symbols, low, strict=True):
        inside = symbol < num_classes
        q.append(unzigzag(base) + (symbol << shift) + bits if inside else outside.pop(0))
    return q


def _symbols(data: bytes, weights: list[int], num_values: int) -> list[int]:
    """`data`: the states and the words; neither exists where there is but one symbol."""
    if len(weights) == 1:
        _require(not data, "rans: wrong size")
        return [0] * num_values
    lanes, streams = num_lanes(num_values), streams_of(num_values)
    counts_at = 4 * lanes * len(streams)
    words_at = counts_at + 4 * (len(streams) - 1)
    _require(len(data) >= words_at and len(data) % 2 == 0, "rans: wrong size")
    states = _unsigned(data[:counts_at], 4)
    _require(all(LOWER <= x < 1 << 31 for x in states), "rans: state out of range")
    counts, words = _unsigned(data[counts_at:words_at], 4), _unsigned(data[words_at:], 2)
    last = len(words) - sum(counts)
    _require(last >= 0, "rans: more words than bytes")
    log = table_log(num_values, len(weights))
    f, symbols, at = frequencies_of(weights, log), [], 0
    for c, (part, count) in enumerate(zip(streams, [*counts, last], strict=True)):
        own = states[c * lanes : (c + 1) * lanes]
        symbols += pop(own, words[at : at + count], f, log, part.stop - part.start)
        at += count
    return symbols


def _unsigned(data: bytes, size: int) -> list[int]:
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


def _int(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(reason)
