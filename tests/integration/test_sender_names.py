"""Errors in messages of ids name the sender by its global rank, whatever the group."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.dist_data import KJTAllToAll
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trec_qcomm import CorruptFrameError
from trec_qcomm.core.counters import Traffic
from trec_qcomm.integration.ids.sent_ids import record_sent_ids
from trec_qcomm.testing import run_ranks

GROUPS = ((0, 1), (2, 3), (1, 3))


def named():
    """Return for each group of this rank which ranks are named when each message is damaged."""
    names = {}
    groups = {ranks: dist.new_group(list(ranks)) for ranks in GROUPS}
    for ranks, pg in groups.items():
        if dist.get_rank() in ranks:
            names[ranks] = [sender_named(pg, place) for place in (0, 1)]
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


@pytest.mark.dist
def test_a_damaged_message_of_ids_names_the_global_rank():
    outcomes = run_ranks(named, 4)
    assert outcomes == [
        {ranks: list(ranks) for ranks in GROUPS if rank in ranks} for rank in range(4)
    ]
