"""Messages of ids on a GPU: headers and checksums. Same bytes as cpu.py.

One program goes from message to message to find where they begin. As many programs as the buffer
could have blocks add up the checksums. The host waits once, and looks at the headers itself.
Shapes: P messages, W bytes.
"""

# mypy: ignore-errors

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.ops.device import download, segment_of
from trec_qcomm.ops.frames import gpu as frames
from trec_qcomm.ops.frames.gpu import BLOCK, FramesOnDevice, terms_of_words
from trec_qcomm.ops.id_messages import cpu
from trec_qcomm.ops.id_messages.cpu import HEADER_NBYTES

_HEADER = tl.constexpr(HEADER_NBYTES // 8)


def seal(buffer: Tensor, nbytes: Any, counts: Any, num_bags: int, flags: int) -> None:
    """Write the headers of messages that lie one after the other.

    The arguments are those of cpu.py. Sizes must be multiples of 128.
    """
    sent = nbytes > 0
    fields = np.zeros((int(sent.sum()), 8), np.uint32)
    fields[:, 0], fields[:, 1] = cpu.MAGIC, cpu.VERSION | np.uint32(flags << 16)
    fields[:, 2], fields[:, 3] = counts[sent], num_bags
    fields[:, 4:6] = nbytes[sent][:, None].view(np.uint32)
    sizes, headers = nbytes[sent], torch.from_numpy(fields.reshape(-1).view(np.uint8))
    none = torch.zeros(0, dtype=torch.int64)
    where = np.full_like(sizes, HEADER_NBYTES), sizes.cumsum() - sizes, sizes
    on_device = FramesOnDevice.from_host(buffer.device, none, headers, *where)
    frames.seal(buffer, on_device, 0)


def unseal(buffer: Tensor, count: int, due_flags: int, places: Any) -> tuple[int, int]:
    """Check P messages of `count` segments each, and write their places.

    Args: places: [3, P] int64, written: begins, ends, num_bags.  The other arguments are those of
        cpu.py.
    Returns: (OK or the kind of error, the message).
    """
    num_messages, num_words = places.shape[1], buffer.numel() // 8
    words = buffer[: 8 * num_words].view(torch.int64)
    size = 4 * num_messages
    read = torch.zeros(size + 3 * num_messages + 2, dtype=torch.int64, device=buffer.device)
    headers, sums, begins, first_block = read.split(
        [size, num_messages, num_messages + 1, num_messages + 1]
    )
    _find[(1,)](words, begins, first_block, headers, num_words, num_messages, BLOCK=BLOCK)
    programs = -(-num_words // BLOCK) + num_messages
    _add_up[(programs,)](
        words, begins, first_block, sums, num_messages, STEPS=num_messages.bit_length(),
        BLOCK=BLOCK,
    )  # fmt: skip
    host = download(read).numpy()
    headers, sums = host[:size].reshape(num_messages, 4), host[size : size + num_messages]
    begins = 8 * host[size + num_messages :][: num_messages + 1]
    return _check(headers, sums, begins, buffer.numel(), count, due_flags, places)


def _check(
    headers: Any, sums: Any, begins: Any, nbytes: int, count: int, due_flags: int, places: Any
) -> tuple[int, int]:
    """Return (OK or what is wrong, the message), in the order in which cpu.py looks."""
    fields, sizes = headers.view(np.uint32), headers[:, 2]
    flags, left = (fields[:, 1] >> 16).astype(np.int64), nbytes - begins[:-1]
    places[:] = begins[:-1] + HEADER_NBYTES, begins[:-1] + sizes, fields[:, 3]
    wrong = (
        (cpu.BAD_SIZE, left < HEADER_NBYTES),
        (cpu.BAD_MAGIC, fields[:, 0] != cpu.MAGIC),
        (cpu.BAD_VERSION, fields[:, 1] & 0xFFFF != cpu.VERSION),
        (cpu.BAD_SIZE, (sizes % 8 != 0) | (sizes < HEADER_NBYTES) | (sizes > left)),
        (cpu.BAD_CHECKSUM, sums != headers[:, 3]),
        (cpu.BAD_FLAGS, flags != due_flags),
        (cpu.BAD_COUNT, fields[:, 2] != count),
    )
    reasons = np.select([condition for _, condition in wrong], [reason for reason, _ in wrong], 0)
    bad = np.flatnonzero(reasons)
    if len(bad):
        return int(reasons[bad[0]]), int(bad[0])
    return (cpu.OK, -1) if begins[-1] == nbytes else (cpu.BAD_SIZE, len(sizes) - 1)


@triton.jit(do_not_specialize=["num_words", "num_messages"])
def _find(words, begins, first_block, headers, num_words, num_messages, BLOCK: tl.constexpr):
    """Copy all headers; write [P + 1] where messages begin, in words, and their first blocks.

    From a size that cannot be, the way goes nowhere: what follows is found at the same place.
    """
    at, block, p = tl.cast(0, tl.int64), tl.cast(0, tl.int64), tl.cast(0, tl.int64)
    k = tl.arange(0, _HEADER)
    while p < num_messages:
        is_there = at + _HEADER <= num_words
        header = tl.load(words + at + k, mask=is_there & (k >= 0), other=0)
        tl.store(headers + p * _HEADER + k, header)
        nbytes = tl.load(words + at + 2, mask=is_there, other=0)
        size = nbytes >> 3
        is_sound = ((nbytes & 7) == 0) & (size >= _HEADER) & (size <= num_words - at)
        size = tl.where(is_sound, size, 0)
        tl.store(begins + p, at)
        tl.store(first_block + p, block)
        at, block, p = at + size, block + (size + BLOCK - 1) // BLOCK, p + 1
    tl.store(begins + p, at)
    tl.store(first_block + p, block)


@triton.jit(do_not_specialize=["num_messages"])
def _add_up(
    words, begins, first_block, sums, num_messages, STEPS: tl.constexpr, BLOCK: tl.constexpr
):
    """Add a block of a message to its checksum, see frame.checksum."""
    block = tl.program_id(0).to(tl.int64)
    if block < tl.load(first_block + num_messages):
        message = segment_of(block, first_block, num_messages, STEPS)
        begin = tl.load(begins + message)
        place = (block - tl.load(first_block + message)) * BLOCK + tl.arange(0, BLOCK)
        counts = (place < tl.load(begins + message + 1) - begin) & (place != 3)
        word = tl.load(words + begin + place, mask=counts, other=0)
        total = tl.sum(terms_of_words(place, word, counts))
        tl.atomic_add(sums + message, total.to(tl.int64, bitcast=True))
