"""Packed ids: ids and lengths of bags in few bytes, exactly. Wire: FORMAT.md, "Messages of ids".

A segment is the bags that one rank sends one peer for one feature. Ids that do not decrease are
sent as the steps from one id to the next, with Rice's code where that is smaller. Other ids are
sent as differences from the smallest id, with equally many bits each. Lengths in a few runs of
equal lengths cost nearly nothing. Other lengths have equally many bits each.

`reference` is the definition; `cpu` writes and `cpu_read` reads the same bytes, and so does `gpu`.
Source: Rice and Plaunt 1971; frame of reference (Goldstein et al. 1998); the layout is ours.
Shapes: P messages, S segments in all, B bags, N ids, W bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import ALIGNMENT, described, int64_tensor
from trec_qcomm.ops.batch.packed_ids import cpu, cpu_read, reference
from trec_qcomm.ops.dispatch import Backend, arrays, choose_backend, gpu_kernels

_DTYPES = (torch.int32, torch.int64)
_REASONS = {
    cpu_read.BAD_SIZE: "its bytes end early",
    cpu_read.BAD_NUMBER: "a number of its header is out of range",
    cpu_read.TOO_MANY: "more bags and ids than its bytes may hold",
    cpu_read.BAD_RUNS: "its runs do not add up to its bags",
    cpu_read.BAD_BITS: "its ids or lengths have too many bits",
    cpu_read.BAD_KIND: "its ids are of an unknown kind",
    cpu_read.BAD_SUM: "its lengths do not add up to its ids",
    cpu_read.BAD_HIGH: "its high parts are not one an id",
}


@dataclass(frozen=True, eq=False)
class PackedIds:
    """Bytes of P messages, one after the other.

    Args:
        payload: [W] uint8
        nbytes: P sizes, each with the room before it; 0 for a message without segments
        num_ids: [S] int64 on CPU, number of ids of each segment
    """

    payload: Tensor
    nbytes: list[int]
    num_ids: Tensor


@dataclass(frozen=True, eq=False)
class Bags:
    """Bags of ids of S segments.

    Args:
        ids: [N] int32 or int64
        lengths: [B] int32 or int64, number of ids of each bag
        num_bags: [S] int64 on CPU, number of bags of each segment
    `ids` and `lengths` are in the same memory.
    """

    ids: Tensor
    lengths: Tensor
    num_bags: Tensor


def encode(
    bags: Bags,
    counts: Sequence[int],
    *,
    states_bags: bool,
    room: int = 0,
    alignment: int = ALIGNMENT,
) -> PackedIds:
    """Encode the bags of P messages. Waits for a GPU once.

    Args:
        counts: P ints, the number of segments of each message; they sum up to S.
        states_bags: whether the messages say how many bags each segment has.
        room: bytes to leave free before each message, a multiple of 8.
        alignment: multiple of 8. The size of each message, with its room, is a multiple of it.
    Raises: ValueError: a wrong shape, dtype or device; lengths that are negative or do not sum up
        to the ids.
    Speed: at least 2.7 GB/s of sorted int64 ids on one core, 3.4 GB/s of others; a copy has 40.
    """
    backend = _check(bags)
    if backend == "reference":
        return _encode_reference(bags, counts, states_bags, room, alignment)
    if backend == "gpu":
        return _encode_gpu(bags, counts, states_bags, room, alignment)
    ids, lengths = (tensor.to(torch.int64) for tensor in (bags.ids, bags.lengths))
    plans = np.empty(len(bags.num_bags), cpu.PLAN)
    per_message, nbytes = np.asarray(counts, np.int64), np.empty(len(counts), np.int64)
    numbers = arrays(ids, lengths)
    wrong, segment = cpu.plan_messages(
        *numbers, bags.num_bags.numpy(), per_message, states_bags, room, alignment, plans, nbytes
    )
    if wrong:
        raise ValueError(_wrong_lengths(segment, wrong == cpu.NEGATIVE))
    payload = torch.empty(int(nbytes.sum()), dtype=torch.uint8)
    cpu.write_messages(
        *numbers, per_message, states_bags, room, plans, nbytes, payload.numpy()
    )  # fmt: skip
    return PackedIds(payload, nbytes.tolist(), torch.from_numpy(plans["ids"].copy()))


def decode(
    payload: Tensor,
    begins: Sequence[int],
    ends: Sequence[int],
    num_bags: Tensor | None,
    *,
    num_segments: int,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.int64, torch.int64),
) -> tuple[Bags, Tensor]:
    """Decode P messages of `num_segments` segments each. Waits for a GPU twice.

    Args:
        payload: [W] uint8, contiguous; on a GPU it begins at a multiple of 8 bytes.
        begins, ends: P places each, where the messages begin, after their room, and where they end.
        num_bags: [S] int64, bags of each segment; None if the messages say it.
        dtypes: dtype of the ids, and dtype of the lengths.
    Returns: the bags, and [S] int64, the number of ids of each segment.
    Raises: CorruptFrameError: bytes that no encoder writes. At most `ITEMS_PER_BYTE` ids and
        lengths were then allocated for each byte.
    """
    backend = choose_backend(payload)
    if payload.dtype != torch.uint8 or payload.dim() != 1 or not payload.is_contiguous():
        raise ValueError(f"payload: expected contiguous [W] uint8, got {described(payload)}")
    places = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
    _check_places(*places, len(payload))
    if backend == "gpu":
        return _decode_gpu(payload, places, num_bags, num_segments, dtypes)
    if backend == "reference":
        bags, num_ids = _decode_reference(payload, begins, ends, num_bags, num_segments)
    else:
        bags, num_ids = _decode_cpu(payload, places, num_bags, num_segments)
    ids, lengths = (_narrowed(t, d) for t, d in zip((bags.ids, bags.lengths), dtypes, strict=True))
    return Bags(ids, lengths, bags.num_bags), num_ids


def _decode_cpu(
    payload: Tensor, places: tuple[Any, Any], num_bags: Tensor | None, num_segments: int
) -> tuple[Bags, Tensor]:
    plans = np.zeros(len(places[0]) * num_segments, cpu.PLAN)
    if num_bags is not None:
        plans["bags"] = num_bags.numpy()
    data, states_bags = payload.numpy(), num_bags is None
    _raise_wrong(*cpu_read.read_heads(data, *places, num_segments, states_bags, plans))
    counts = torch.from_numpy(plans["bags"].copy()), torch.from_numpy(plans["ids"].copy())
    lengths, ids = (torch.empty(int(count.sum()), dtype=torch.int64) for count in counts)
    out = lengths.numpy(), ids.numpy()
    _raise_wrong(*cpu_read.read_streams(data, places[1], num_segments, plans, *out))
    return Bags(ids, lengths, counts[0]), counts[1]


def _encode_gpu(
    bags: Bags, counts: Sequence[int], states_bags: bool, room: int, alignment: int
) -> PackedIds:
    if bags.num_bags.sum() != len(bags.lengths):
        raise ValueError(_wrong_lengths(len(bags.num_bags), False))
    payload, nbytes, num_ids, negative, total = gpu_kernels(__name__).encode(
        bags.ids, bags.lengths, bags.num_bags, counts, states_bags=states_bags, room=room,
        alignment=alignment,
    )  # fmt: skip
    if negative or total != len(bags.ids):
        raise ValueError(_wrong_lengths(len(bags.num_bags), negative))
    return PackedIds(payload, nbytes.tolist(), num_ids)


def _decode_gpu(
    payload: Tensor,
    places: tuple[Any, Any],
    num_bags: Tensor | None,
    num_segments: int,
    dtypes: tuple[torch.dtype, torch.dtype],
) -> tuple[Bags, Tensor]:
    kernels = gpu_kernels(__name__)
    begins, ends = (torch.from_numpy(place) for place in places)
    ids, lengths, counts, bad = kernels.decode(
        payload, begins, ends, num_bags, num_segments=num_segments, dtypes=dtypes
    )
    if bad >= 0:
        segment, wrong = divmod(bad, kernels.REASONS)
        reason = f"a number does not fit in {dtypes[0]} or {dtypes[1]}"
        reason = reason if wrong == kernels.BAD_DTYPE else _REASONS[wrong]
        raise CorruptFrameError(reason, segment=segment)
    return Bags(ids, lengths, counts[0]), counts[1]


def _raise_wrong(wrong: int, segment: int) -> None:
    if wrong != cpu_read.OK:
        raise CorruptFrameError(_REASONS[wrong], segment=segment)


def _narrowed(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return int64 numbers in another dtype. Raises CorruptFrameError where they do not fit."""
    if dtype == torch.int64:
        return numbers
    narrow = numbers.to(dtype)
    if not torch.equal(narrow.to(torch.int64), numbers):
        raise CorruptFrameError(f"a number does not fit in {dtype}")
    return narrow


def _encode_reference(
    bags: Bags, counts: Sequence[int], states_bags: bool, room: int, alignment: int
) -> PackedIds:
    lengths, ids = bags.lengths.tolist(), iter(bags.ids.tolist())
    if min(lengths, default=0) < 0 or sum(lengths) != len(bags.ids):
        raise ValueError(_wrong_lengths(0, min(lengths, default=0) < 0))
    all_bags = iter([[next(ids) for _ in range(length)] for length in lengths])
    segments = iter([[next(all_bags) for _ in range(n)] for n in bags.num_bags.tolist()])
    messages, num_ids = [], []
    for count in counts:
        message = [next(segments) for _ in range(count)]
        num_ids += [sum(map(len, segment)) for segment in message]
        data = reference.encode_message(message, states_bags=states_bags)
        size = -(-(room + len(data)) // alignment) * alignment
        messages.append((bytes(room) + data).ljust(size, b"\0") if count else b"")
    payload = torch.tensor(list(b"".join(messages)), dtype=torch.uint8)
    return PackedIds(payload, [len(m) for m in messages], int64_tensor(num_ids))


def _decode_reference(
    payload: Tensor,
    begins: Sequence[int],
    ends: Sequence[int],
    num_bags: Tensor | None,
    num_segments: int,
) -> tuple[Bags, Tensor]:
    data = bytes(payload.tolist())
    ids: list[list[int]] = []
    lengths: list[list[int]] = []
    for p, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        first = p * num_segments
        expected = None if num_bags is None else num_bags[first : first + num_segments].tolist()
        try:
            segments = reference.decode_message(data[begin:end], num_segments, expected)
        except reference.BadBytes as error:
            reason, segment = error.args
            raise CorruptFrameError(reason, segment=first + segment) from error
        lengths += [segment_lengths for segment_lengths, _ in segments]
        ids += [segment_ids for _, segment_ids in segments]
    flat_ids, flat_lengths = (int64_tensor(chain.from_iterable(parts)) for parts in (ids, lengths))
    bags = Bags(flat_ids, flat_lengths, int64_tensor(map(len, lengths)))
    return bags, int64_tensor(map(len, ids))


def _check(bags: Bags) -> Backend:
    for name, tensor in (("ids", bags.ids), ("lengths", bags.lengths)):
        if tensor.dtype not in _DTYPES or tensor.dim() != 1 or not tensor.is_contiguous():
            got = described(tensor)
            raise ValueError(f"{name}: expected contiguous 1-D int32 or int64, got {got}")
        if tensor.numel() >= 2**reference.MAX_LENGTH_BITS:
            raise ValueError(f"{name}: {tensor.numel()} are too many; allowed: less than 2^32")
    if bags.lengths.device != bags.ids.device:
        raise ValueError(f"lengths: on {bags.lengths.device}, and the ids on {bags.ids.device}")
    return choose_backend(bags.ids)


def _check_places(begins: Any, ends: Any, nbytes: int) -> None:
    if len(begins) != len(ends) or (begins < 0).any() or (begins > ends).any():
        raise ValueError("begins, ends: expected for each message a begin >= 0 and an end after it")
    if (ends > nbytes).any():
        raise ValueError(f"payload: {nbytes} bytes do not hold the messages")


def _wrong_lengths(segment: int, negative: bool) -> str:
    what = "some are negative, or more than all ids" if negative else "do not sum up to the ids"
    return f"lengths: {what}, at segment {segment}"
