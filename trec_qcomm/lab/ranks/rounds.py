"""Run the rounds of all ranks of a collective in one process, without threads and process groups.

Knows: ranks, bytes. Does not know: process groups, frames, codecs.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.rounds import ReceivedMessages, Round, Rounds


def play(ranks: Sequence[Rounds]) -> None:
    """Run the generators of all ranks to their ends, each as soon as its messages are there.

    Raises: RuntimeError: all wait for messages that nobody sends.  Errors of a generator.
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
            messages = [mail[source, rank].popleft() for source in _sources(wanted)]
            sizes = _sizes(wanted, messages, range(len(ranks)))
            buffer = torch.cat(messages) if messages else torch.empty(0, dtype=torch.uint8)
            _advance(ranks[rank], ReceivedMessages(buffer, sizes), rank, waiting, mail)


def _advance(
    generator: Rounds,
    received: ReceivedMessages | None,
    rank: int,
    waiting: dict[int, Round],
    mail: dict[tuple[int, int], deque[Tensor]],
) -> None:
    try:
        wanted = next(generator) if received is None else generator.send(received)
    except StopIteration:
        return
    waiting[rank] = wanted
    for peer, message in wanted.sends:
        if message.numel():
            mail[rank, peer].append(message)


def _sources(wanted: Round) -> list[int]:
    """Return the ranks that send a message in this round."""
    limits = wanted.max_nbytes if wanted.nbytes is None else wanted.nbytes
    return [source for source, limit in zip(wanted.sources, limits, strict=True) if limit]


def _is_there(wanted: Round, rank: int, mail: dict[tuple[int, int], deque[Tensor]]) -> bool:
    sources = _sources(wanted)
    return all(len(mail[source, rank]) >= sources.count(source) for source in set(sources))


def _sizes(wanted: Round, messages: Sequence[Tensor], ranks: Sequence[int]) -> list[int]:
    """Return the size of each source's message, checked; 0 where none comes."""
    limits = wanted.max_nbytes if wanted.nbytes is None else wanted.nbytes
    sizes, coming = [], iter(messages)
    for limit in limits:
        sizes.append(next(coming).numel() if limit else 0)
    return wanted.checked_sizes(sizes, ranks)
