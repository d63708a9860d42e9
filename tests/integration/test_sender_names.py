"""Messages in groups of ranks, and packed ids on ranks without features.

An error in a message names its sender by the global rank. Ids and lengths keep their dtypes.
"""

import itertools
import re
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.dist_data import KJTAllToAll
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration.gradients.test_device import net, train
from trec_qcomm import CorruptFrameError, compress_ddp
from trec_qcomm.codecs import ErrorBounded, Identity, Rowwise
from trec_qcomm.comm import transport
from trec_qcomm.comm.peers import Peers
from trec_qcomm.config import Config, GradientRule
from trec_qcomm.core.counters import Traffic
from trec_qcomm.ext.replicas import messages
from trec_qcomm.ext.replicas.banks import Bank
from trec_qcomm.integration.ids.sent_ids import record_sent_ids
from trec_qcomm.testing import run_ranks

GROUPS = ((0, 1), (2, 3), (1, 3))
GRADIENT_CODECS = Rowwise(8), ErrorBounded(0.01, encoder="bitpack")  # fixed sizes, and announced


def named():
    """Return for each group of this rank which ranks are named when each message is damaged."""
    names = {}
    groups = {ranks: dist.new_group(list(ranks)) for ranks in GROUPS}
    for ranks, pg in groups.items():
        if dist.get_rank() in ranks:
            kinds = [sender_named, *(partial(replica_named, hits_frame=f) for f in (False, True))]
            kinds += [partial(gradient_named, codec=codec) for codec in GRADIENT_CODECS]
            names[ranks] = [[named(pg, place) for place in (0, 1)] for named in kinds]
    return names


def sender_named(pg, place):
    """Return the rank that is named when the message of a place in the group is damaged."""
    inner = KJTAllToAll(pg, [1, 1])
    record_sent_ids(SimpleNamespace(_dist=inner), Traffic("input", ["all"]), lambda: True)
    ids, lengths = torch.arange(12), torch.ones(12, dtype=torch.int32)
    tensors = inner(KeyedJaggedTensor(["a", "b"], ids, lengths=lengths)).wait()
    for pending in tensors._awaitables:
        pending.wait()
    messages = tensors._output_tensors[0].view(2, -1)
    messages[place, -1] ^= 255
    with pytest.raises(CorruptFrameError) as error:
        tensors.wait()
    return error.value.rank


def replica_named(pg, place, hits_frame):
    """Return the rank that is named when a message of replicas from that place is damaged."""
    bank = Bank(["a"], ["a"], [4], [(0, 0)], {"weights": torch.arange(16.0).view(4, 4)})
    peers = Peers(pg, pg)
    replicas = messages.RowMessages(peers, [bank], [[Identity()]], Traffic("sync", ["a"]))
    exchange_bytes, start_exchange = replicas._exchange_bytes, messages.start_exchange

    def damaged_bytes(sent, call):
        buffer = exchange_bytes(sent, call)
        buffer.view(2, -1)[place, -1] ^= 255
        return buffer

    def damaged_frames(peers, sealed, *args, **options):
        if pg.rank() == place:
            sealed.buffer.view(2, -1)[:, -1] ^= 255
        return start_exchange(peers, sealed, *args, **options)

    if hits_frame:
        patched = mock.patch.object(messages, "start_exchange", damaged_frames)
    else:
        patched = mock.patch.object(replicas, "_exchange_bytes", damaged_bytes)
    rows = torch.tensor([1, 3])
    part = messages.Rows([rows], [bank.take(rows)])
    with patched, pytest.raises(CorruptFrameError) as error:
        replicas.exchange([part], call=0, seed=0, decodes=False)
    return error.value.rank


def gradient_named(pg, place, codec):
    """Return the rank that is named when a message of gradients from that place is damaged.

    All messages are damaged, as nobody then waits for a rank that has stopped.
    """
    ddp = DistributedDataParallel(net(), process_group=pg)
    compress_ddp(ddp, Config(dense=GradientRule(codec=codec, block=16, min_numel=8)))
    run = transport.run_round

    def damaged(*args, **options):
        received = run(*args, **options)
        received.buffer[40:41] ^= 255  # behind the header, before any padding
        return received

    with mock.patch.object(transport, "run_round", damaged), pytest.raises(RuntimeError) as error:
        train(ddp, [0])
    named = re.search(r"CorruptFrameError: frame from rank (\d+)", str(error.value))
    return dist.get_rank() if place == pg.rank() else int(named[1])


def dtypes():
    """Return the dtypes of ids and lengths that arrive, of each kind that is sent."""
    arrived = {}
    for sent in itertools.product((torch.int32, torch.int64), repeat=2):
        inner = KJTAllToAll(dist.group.WORLD, [2, 0])
        record_sent_ids(SimpleNamespace(_dist=inner), Traffic("input", ["all"]), lambda: True)
        ids, lengths = torch.arange(12, dtype=sent[0]), torch.ones(12, dtype=sent[1])
        batch = inner(KeyedJaggedTensor(["a", "b"], ids, lengths=lengths)).wait().wait()
        arrived[sent] = batch.values().dtype, batch.lengths().dtype
    return arrived


@pytest.mark.dist
def test_ids_and_lengths_keep_their_dtypes_on_a_rank_without_features():
    for arrived in run_ranks(dtypes, 2):
        assert all(sent == kept for sent, kept in arrived.items())


@pytest.mark.dist
def test_a_damaged_message_names_the_global_rank():
    outcomes = run_ranks(named, 4)
    assert outcomes == [
        {ranks: [list(ranks)] * 5 for ranks in GROUPS if rank in ranks} for rank in range(4)
    ]
