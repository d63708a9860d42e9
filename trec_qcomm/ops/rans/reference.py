"""rANS of a segment's indices in plain Python integers: the definition.

    class of q = floor((q - base) / 2^shift); q is escaped if that is none of 0..A-1
    encoding a class of frequency f and start c:  x -> floor(x / f) M + x mod f + c
    decoding it:  the slot x mod M tells f and c;  x -> f floor(x / M) + x mod M - c

A state x lies in 2^15..2^31 - 1. If encoding would leave this range, the low 16 bits of x are first
moved to a *word*. The decoder takes a word back when its state falls below 2^15. The decoder reads
the words in order, so the encoder goes through the indices, and writes the words, backwards.

All indices share one table. Each stream of 2^16 indices has its own states and words, so that
streams can be coded at the same time. In a stream the states take turns, one index each, so that
their indices can be coded at the same time, too.
Bytes: FORMAT.md, "rans". Shapes: N indices, A classes, C streams, M = 2^log slots.
"""

import torch
from torch import Tensor

MAX_SHIFT, MAX_LOG = 20, 12
SAMPLES = 1024
LOWER = 1 << 15
STREAM = 1 << 16


def num_lanes(num_values: int) -> int:
    """Return how many states of a stream take turns. Each costs 2 bytes.

    One up to 255 indices, four from 1024 on, one for every 2048 from 16384 on, at most 32.
    """
    length = num_values.bit_length()
    return 1 << min(5, max(min(2, max(0, (length - 7) // 2)), length - 12))


def streams_of(num_values: int) -> list[slice]:
    """Return the indices of each stream: 2^16 a stream; the last one also has the rest."""
    begins = [STREAM * c for c in range(max(1, num_values // STREAM))]
    return [slice(a, b) for a, b in zip(begins, [*begins[1:], num_values], strict=True)]


def table_log(num_values: int, num_symbols: int) -> int:
    """Return log2 of the number of slots.

    There are enough slots for every symbol, and filling the table takes less time than reading the
    indices.
    """
    return max(num_symbols.bit_length() + 1, min(MAX_LOG, num_values.bit_length() // 2 + 4))


def num_initial_classes(num_values: int) -> int:
    """Return with how many classes an encoder begins: at least 16, and 256 from 1024 indices on."""
    return 1 << min(8, max(4, num_values.bit_length() - 3))


def log2(n: int) -> int:
    """Return log2(n) * 2^16 for n >= 1, at most 0.9 % of one bit off.

    It uses integers, which give the same result on every machine.
    """
    b = n.bit_length() - 1
    f = ((n << 16) >> b) - 65536
    return (b << 16) + f + (((f * (65536 - f) >> 16) * 22544) >> 16)


def zigzag(n: int) -> int:
    """Map 0, -1, 1, -2 ... to 0, 1, 2, 3 ..."""
    return 2 * n if n >= 0 else -2 * n - 1


def unzigzag(n: int) -> int:
    """Invert `zigzag`."""
    return -(n >> 1) - 1 if n & 1 else n >> 1


def coarse(count: int) -> int:
    """Return the weight of a class: its count to 4 significant bits, halves rounded up."""
    drop = max(0, count.bit_length() - 4)
    return ((count + ((1 << drop) >> 1)) >> drop) << drop


def weight_bits(weights: list[int]) -> list[int]:
    """Return the bits that code the weights; numbers begin with their lowest bit.

    For each weight: the change of its bit length, as Elias gamma of zigzag + 1, then up to 3 bits
    below its leading one.
    """
    bits, before = [], 0
    for weight in weights:
        length = weight.bit_length()
        code = zigzag(length - before) + 1
        num_low = code.bit_length() - 1
        sent = min(3, max(0, length - 1))
        bits += [0] * num_low + [1] + [code >> k & 1 for k in range(num_low)]
        bits += [weight >> (length - 1 - sent) >> k & 1 for k in range(sent)]
        before = length
    return bits


def read_weights(bits: list[int], num_classes: int) -> tuple[list[int], int]:
    """Invert `weight_bits`. Return the weights and the number of bits they took.

    Raises: ValueError: the bits end, or a bit length lies outside 0..31.
    """
    weights, at, length = [], 0, 0

    def number(count: int) -> int:
        return sum(bit << k for k, bit in enumerate(bits[at : at + count]))

    for _ in range(num_classes):
        num_low = [*bits[at : at + 6], 1].index(1)
        at += num_low + 1
        length += unzigzag(number(num_low) + (1 << num_low) - 1)
        at += num_low
        if num_low > 5 or not 0 <= length <= 31:
            raise ValueError("rans: weight out of range")
        sent = min(3, max(0, length - 1))
        weights.append((number(sent) + (1 << sent)) << (length - 1 - sent) if length else 0)
        at += sent
        if at > len(bits):
            raise ValueError("rans: the table ends early")
    return weights, at


def frequencies_of(weights: list[int], log: int) -> list[int]:
    """Return frequencies of sum 2^log in proportion to the weights, at least 1 where one is not 0.

    If the rounded sum is too small, the largest frequency gets the rest. If it is too large, the
    largest is reduced, by at most a sixteenth of it at a time.
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
    """Return the bits, times 2^16, of the table, the symbols and the low bits."""
    num_values = sum(counts) + num_escapes
    fixed = (num_values * shift + len(weight_bits([coarse(n) for n in counts]))) << 16
    symbols = [n for n in [*counts, num_escapes] if n]
    if len(counts) + (num_escapes > 0) == 1:
        return fixed
    return fixed + num_values * log2(num_values) - sum(n * log2(n) for n in symbols)


def initial_classes(q: list[int]) -> tuple[int, int]:
    """Return (base, shift) of the classes with which an encoder begins.

    They cover all indices. If outliers would make them too wide, they cover a range around the
    median of 15 indices.
    """
    low, high, num_classes = min(q), max(q), num_initial_classes(len(q))
    shift = 0
    while (high - low) >> shift >= num_classes:
        shift += 1
    if shift == 0:
        return low, 0
    center = sorted(q[(2 * k + 1) * len(q) // 30] for k in range(15))[7]
    sample = [abs(v - center).bit_length() for v in q[:: max(1, len(q) // SAMPLES)]]
    base, best_bits = low, sum(max(shift - b, 0) for b in sample)
    for smaller in reversed(range(shift)):
        half = (num_classes << smaller) // 2
        bits = sum(40 if b >= half.bit_length() else max(smaller - b, 0) for b in sample)
        if bits < best_bits:
            base, shift, best_bits = center - half, smaller, bits
    return base, shift


def choose_classes(q: list[int]) -> tuple[int, int, list[int], int]:
    """Return (base, shift, counts of the classes, number of escaped indices).

    It begins with the finest classes, and merges pairs of them as long as that saves 0.4 %.
    """
    base, shift = initial_classes(q)
    counts, num_escapes = [0] * num_initial_classes(len(q)), 0
    for v in q:
        place = (v - base) >> shift
        if 0 <= place < len(counts):
            counts[place] += 1
        else:
            num_escapes += 1
    while counts[-1] == 0:
        counts.pop()
    # Merged classes may not reach beyond the initial ones, where escaped indices are. Dropping
    # classes in front would shift the pairs, so it is done only without escaped indices.
    while counts[0] == 0 and not num_escapes:
        counts.pop(0)
        base += 1 << shift
    best_cost = cost(counts, shift, num_escapes)
    while len(counts) > 1 and shift < MAX_SHIFT:
        padded = [*counts, 0]
        merged = [padded[k] + padded[k + 1] for k in range(0, len(counts), 2)]
        merged_cost = cost(merged, shift + 1, num_escapes)
        # A plane of low bits costs time: only for 0.4 %.
        if merged_cost > best_cost - (best_cost >> 8):
            break
        shift, counts, best_cost = shift + 1, merged, merged_cost
    return base, shift, counts, num_escapes


def to_bytes(bits: list[int]) -> bytes:
    """Pack eight bits a byte, lowest bit first; the last byte is padded with 0."""
    return bytes(sum(b << k for k, b in enumerate(bits[i : i + 8])) for i in range(0, len(bits), 8))


def to_bits(data: bytes) -> list[int]:
    """Invert `to_bytes`."""
    return [byte >> k & 1 for byte in data for k in range(8)]


def varint(n: int) -> bytes:
    """Code n, seven bits a byte, the lowest first; all bytes but the last have the top bit set."""
    return bytes([n & 127 | 128]) + varint(n >> 7) if n >= 128 else bytes([n])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, place after it). Raise ValueError if it does not end within 5 bytes."""
    value = 0
    for k, byte in enumerate(data[at : at + 5]):
        value |= (byte & 127) << 7 * k
        if byte < 128:
            return value, at + k + 1
    raise ValueError("rans: a number does not end")


def put_low_bits(q: list[int], base: int, shift: int) -> bytes:
    """Return the low bits of q - base, a plane for each bit.

    Bit t of byte j of a plane belongs to index t * stride + j.
    """
    stride = (len(q) + 7) // 8
    bits = [0] * (8 * stride * shift)
    for i, v in enumerate(q):
        for plane in range(shift):
            bits[8 * (plane * stride + i % stride) + i // stride] = (v - base) >> plane & 1
    return to_bytes(bits)


def get_low_bits(data: bytes, shift: int, num_values: int) -> list[int]:
    """Invert `put_low_bits`: return the low bits of each index."""
    stride = (num_values + 7) // 8

    def bit(i: int, plane: int) -> int:
        return data[plane * stride + i % stride] >> (i // stride) & 1

    return [sum(bit(i, p) << p for p in range(shift)) for i in range(num_values)]


def push_stream(
    symbols: list[int], lanes: int, frequencies: list[int], log: int
) -> tuple[list[int], list[int]]:
    """Encode the symbols of a stream. Return (states, words), which `pop_stream` reads."""
    starts = [sum(frequencies[:s]) for s in range(len(frequencies))]
    states, words = [LOWER] * lanes, []
    for i in reversed(range(len(symbols))):
        x, f = states[i % lanes], frequencies[symbols[i]]
        if x >= f << (31 - log):
            words.append(x & 0xFFFF)
            x >>= 16
        states[i % lanes] = (x // f << log) + x % f + starts[symbols[i]]
    return states, words[::-1]


def pop_stream(
    states: list[int], words: list[int], frequencies: list[int], log: int, num_values: int
) -> list[int]:
    """Decode the symbols of a stream.

    Raises: ValueError: words are missing or left over, or a state does not end where it began.
    """
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
    """Encode indices [N] int32 to [W] uint8.

    `dim` is not used; encoders share one signature.
    """
    values: list[int] = q.tolist()
    if not values:
        return torch.empty(0, dtype=torch.uint8)
    base, shift, counts, num_escapes = choose_classes(values)
    data = bytes([shift, len(counts) - 1]) + varint(zigzag(base)) + varint(num_escapes)
    weights = [coarse(n) for n in counts] + [num_escapes] * (num_escapes > 0)
    if len(weights) > 1:
        data += to_bytes(weight_bits(weights[: len(counts)]))
    data += put_low_bits(values, base, shift)
    data += bytes(len(data) % 2)
    classes = [(v - base) >> shift for v in values]
    outside = [not 0 <= c < len(counts) for c in classes]
    for v, out in zip(values, outside, strict=True):
        data += v.to_bytes(4, "little", signed=True) if out else b""
    if len(weights) > 1:
        symbols = [len(counts) if out else c for c, out in zip(classes, outside, strict=True)]
        log, lanes = table_log(len(values), len(weights)), num_lanes(len(values))
        f = frequencies_of(weights, log)
        streams = [push_stream(symbols[part], lanes, f, log) for part in streams_of(len(values))]
        data += b"".join(x.to_bytes(4, "little") for states, _ in streams for x in states)
        data += b"".join(len(words).to_bytes(4, "little") for _, words in streams[:-1])
        data += b"".join(w.to_bytes(2, "little") for _, words in streams for w in words)
    return torch.tensor(list(data), dtype=torch.uint8)


def decode_segment(data: Tensor, dim: int, num_values: int) -> Tensor:
    """Decode [W] uint8 to [num_values] int32.

    Raises: ValueError: bytes that no encoder writes.
    """
    indices = _decode(bytes(data.tolist()), num_values)
    return torch.tensor(indices, dtype=torch.int64).to(torch.int32)


def _decode(data: bytes, num_values: int) -> list[int]:
    if num_values == 0 or len(data) < 4:
        _require(num_values == 0 and not data, "rans: wrong size")
        return []
    shift, num_classes = data[0], data[1] + 1
    zigzag_base, at = read_varint(data, 2)
    num_escapes, at = read_varint(data, at)
    _require(shift <= MAX_SHIFT and zigzag_base < 1 << 25, "rans: class out of range")
    _require(num_escapes < num_values, "rans: more escapes than indices")
    weights = [num_values]
    if num_classes + (num_escapes > 0) > 1:
        weights, taken = read_weights(to_bits(data[at : at + 512]), num_classes)
        weights += [num_escapes] * (num_escapes > 0)
        _require(sum(weights) > 0, "rans: an empty table")
        at += (taken + 7) // 8
    low_bits_at, at = at, at + shift * ((num_values + 7) // 8)
    at += at % 2
    states_at = at + 4 * num_escapes
    _require(states_at <= len(data), "rans: wrong size")
    escapes = [data[i : i + 4] for i in range(at, states_at, 4)]
    outside = [int.from_bytes(escape, "little", signed=True) for escape in escapes]
    symbols = _symbols(data[states_at:], weights, num_values)
    low_bits = get_low_bits(data[low_bits_at:], shift, num_values)
    _require(symbols.count(num_classes) == num_escapes, "rans: wrong number of escapes")
    q = []
    for symbol, bits in zip(symbols, low_bits, strict=True):
        inside = symbol < num_classes
        q.append(unzigzag(zigzag_base) + (symbol << shift) + bits if inside else outside.pop(0))
    return q


def _symbols(data: bytes, weights: list[int], num_values: int) -> list[int]:
    """Return the symbols of all indices.

    Args: data: states, word counts and words; empty where the table has a single symbol.
    """
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
        stream_states = states[c * lanes : (c + 1) * lanes]
        symbols += pop_stream(stream_states, words[at : at + count], f, log, part.stop - part.start)
        at += count
    return symbols


def _unsigned(data: bytes, size: int) -> list[int]:
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(reason)
