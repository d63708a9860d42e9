"""Rounds: what a rank of a collective sends and receives, one round after the other.

A collective is written once, as a generator for one rank: it yields a `Round` and is sent the bytes
that arrived. `transport.py` runs it on a process group; `play` runs all ranks in one process, so
what is emulated is the very code that runs on real ranks.

Knows: ranks, bytes. Does not know: process groups, frames, codecs.
"""

from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError


@dataclass(frozen=True, eq=False)
class Arrived:
    """One message from each source, in order.

    Args: buffer: [W] uint8, one behind the other.  nbytes: of each.
    """

    buffer: Tensor
    nbytes: list[int]

    def parts(self) -> list[Tensor]:
        """Each message, [nbytes] uint8 in place."""
        return list(torch.split(self.buffer, self.nbytes))


@dataclass(frozen=True, eq=False)
class Round:
    """What one rank sends, and what it waits for.

    Args:
        sends: (rank, [W] uint8 contiguous), in this order; of no bytes: nothing is sent.
        sources: the ranks of the messages to wait for; of one rank in the order it sends them.
        nbytes: of each, 0 where none comes; None: sizes travel before the bytes.
        most: of each, beyond which a size is refused.
    """

    sends: Sequence[tuple[int, Tensor]]
    sources: Sequence[int]
    nbytes: Sequence[int] | None
    most: Sequence[int]

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Raise CorruptFrameError for a size that no sender has reason to announce."""
        for source, size, most in zip(self.sources, sizes, self.most, strict=True):
            if not 0 <= size <= most or size % 8:
                raise CorruptFrameError(f"{size} bytes announced, at most {most}", rank=source)


SIZE_NBYTES = 8  # of a message that announces the size of the next one
Rounds = Generator[Round, Arrived, None]


def play(ranks: Sequence[Rounds]) -> None:
    """Run the generators of all ranks to their ends, each as soon as its messages are there.

    Raises: what a generator raises.  RuntimeError: all wait for messages that nobody sends.
    """
    mail: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
    waiting: dict[int, Round] = {}
    for rank, generator in enumerate(ranks):
        _advance(generator, None, rank, waiting, mail)
    while waiting:
        ready = [r for r, wanted in waiting.items() if _is_there(wanted, r, mail)]
        if not ready:
            raise RuntimeError(f"ranks {sorted(waiting)} wait for messages that nobody sends")
        for rank in ready:
            wanted = waiting.pop(rank)
            found = [mail[source, rank].popleft() for source in _sources(wanted)]
            sizes = _sizes(wanted, found)
            buffer = torch.cat(found) if found else torch.empty(0, dtype=torch.uint8)
            _advance(ranks[rank], Arrived(buffer, sizes), rank, waiting, mail)


def _advance(
    generator: Rounds,
    arrived: Arrived | None,
    rank: int,
    waiting: dict[int, Round],
    mail: dict[tuple[int, int], deque[Tensor]],
) -> None:
    try:
        wanted = next(generator) if arrived is None else generator.send(arrived)
    except StopIteration:
        return
    waiting[rank] = wanted
    for peer, message in wanted.sends:
        if message.numel():
            mail[rank, peer].append(message)


def _sources(wanted: Round) -> list[int]:
    """Those of which a message comes."""
    most = wanted.most if wanted.nbytes is None else wanted.nbytes
    return [source for source, size in zip(wanted.sources, most, strict=True) if size]


def _is_there(wanted: Round, rank: int, mail: dict[tuple[int, int], deque[Tensor]]) -> bool:
    sources = _sources(wanted)
    return all(len(mail[source, rank]) >= sources.count(source) for source in set(sources))


def _sizes(wanted: Round, found: Sequence[Tensor]) -> list[int]:
    """Of each source's message, as `Round.nbytes` where that is known."""
    most = wanted.most if wanted.nbytes is None else wanted.nbytes
    sizes, arrived = [], iter(found)
    for size in most:
        sizes.append(next(arrived).numel() if size else 0)
    wanted.check_sizes(sizes)
    return sizes
