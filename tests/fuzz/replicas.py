"""Search with damaged messages of replicas: numbers of rows, and frames of their values.

Promise: rows that the tables have, ascending, with values of the right shape, or a
CorruptFrameError that names the sender.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from tests.fuzz.frames import mutant
from trec_qcomm import Identity, Rowwise
from trec_qcomm.comm import exchange
from trec_qcomm.comm.frames.coding import SealedFrames
from trec_qcomm.comm.peers import Peers
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.ext.replicas import messages
from trec_qcomm.ext.replicas.banks import Bank

NUM_ROWS = [40, 7, 1000]


class Damaging(messages.RowMessages):
    """Messages to the rank itself, of which the numbers of rows or the frame are damaged."""

    generator: torch.Generator
    hits_frame: bool

    def _exchange_bytes(self, sent: messages.PackedMessages, call: int) -> Tensor:
        buffer = super()._exchange_bytes(sent, call)
        return buffer if self.hits_frame else mutant(buffer, self.generator)


def search(num_cases: int, seed: int) -> int:
    """Send `num_cases` damaged messages; return how many were refused.

    Raises: AssertionError: rows that no table has, or no sender named. Whatever is raised that is
        no CorruptFrameError.
    """
    generator, refused = torch.Generator().manual_seed(seed), 0
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for n in range(num_cases):
            refused += _case(n, generator)
    finally:
        dist.destroy_process_group()
    return refused


def _case(number: int, generator: torch.Generator) -> bool:
    """Send one message to this rank; return whether it was refused."""
    tables = [f"t{n}" for n in range(len(NUM_ROWS))]
    matrices = {"weights": torch.randn(sum(NUM_ROWS), 4), "sum": torch.rand(sum(NUM_ROWS), 1)}
    bank = Bank(tables, tables, NUM_ROWS, [(0, 0)] * len(tables), matrices)
    group = dist.group.WORLD
    codecs = [[(Rowwise(8), Identity())[number % 2], Identity()]]
    sender = Damaging(Peers(group, group), [bank], codecs, Traffic("sync", tables))
    sender.generator, sender.hits_frame = generator, number % 4 == 3
    rows = (torch.rand(sum(NUM_ROWS), generator=generator) < 0.05).nonzero().view(-1)
    part = messages.Rows([rows], [bank.take(rows)])
    start = exchange.start_exchange

    def start_damaged(peers: Peers, sealed: SealedFrames, *args: object, **options: object):
        damaged = mutant(sealed.buffer, generator) if sender.hits_frame else sealed.buffer
        fits = damaged.numel() == sealed.buffer.numel()  # gloo itself refuses another size
        sealed = replace(sealed, buffer=damaged if fits else sealed.buffer)
        return start(peers, sealed, *args, **options)

    messages.start_exchange = start_damaged
    try:
        (received,), _ = sender.exchange([part], call=number, seed=1, decodes=False)
    except CorruptFrameError as error:
        if error.rank != 0:
            raise AssertionError(f"{error} names no sender") from error
        return True
    finally:
        messages.start_exchange = start
    (got,), values = received.rows, received.values[0]
    assert bool((got.diff() > 0).all())
    assert bool(((got >= 0) & (got < sum(NUM_ROWS))).all())
    assert [tuple(v.shape) for v in values] == [(len(got), 4), (len(got), 1)]
    return False
