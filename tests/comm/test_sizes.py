"""Sizes of segments before frames, between hosts, in a gloo group beside a group of NCCL's."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from trec_qcomm.comm.peers import Peers, host_group
from trec_qcomm.comm.sizes import exchange_tables
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.testing import run_ranks
from trec_qcomm.wire.frame import Announced

pytestmark = pytest.mark.dist

A_SEGMENT_EACH = SimpleNamespace(
    plan=SimpleNamespace(segments_per_frame=(1, 1), tables=("a", "b"), frame=torch.tensor([0, 1])),
    raw_nbytes=torch.tensor([64, 64]),
)


def tables_of(call, peers):
    sizes = 8 + 16 * dist.get_rank() + torch.tensor([0, 8])
    announced = Announced(torch.tensor([255, 7]), sizes)
    traffic = Traffic("embedding_forward", ["a", "b"])
    got = exchange_tables(peers, announced, [1, 1], call, A_SEGMENT_EACH, traffic, "test")
    return got.codecs.tolist(), got.nbytes.tolist(), traffic.header_nbytes


def tried(calls, peers):
    try:
        return tables_of(calls[dist.get_rank()], peers)
    except CorruptFrameError as error:
        return str(error)


def everything():
    pg = dist.group.WORLD
    with mock.patch.object(dist, "get_backend_config", return_value="cpu:gloo,cuda:nccl"):
        host = host_group(pg)
        groups = {"of NCCL": host is not pg, "once": host_group(pg) is host}
    groups["of gloo"] = host_group(pg) is pg and Peers(pg).host is pg
    peers = Peers(pg, host)
    called, real = [], dist.all_to_all_single
    with mock.patch.object(
        dist, "all_to_all_single", lambda *args, **o: called.append(o["group"]) or real(*args, **o)
    ):
        tables = {calls: tried(calls, peers) for calls in CALLS}
    groups["of tables"] = called == [host] * len(CALLS)
    return {"groups": groups, "tables": tables}


CALLS = ((2**16 + 5, 5), (5, 7))  # modulo 2^16, the first two are equal


@pytest.fixture(scope="module")
def results():
    return run_ranks(everything, 2)


def test_sizes_of_segments(results):
    first, second = (rank["tables"][CALLS[0]] for rank in results)
    assert first == ([255, 255], [8, 24], 8)
    assert second == ([7, 7], [16, 32], 8)


def test_ranks_of_different_calls_are_out_of_step(results):
    for rank, result in enumerate(results):
        text = result["tables"][CALLS[1]]
        assert f"rank {1 - rank}: of another call: the ranks are out of step" in text


@pytest.mark.parametrize("what", ["of NCCL", "once", "of gloo", "of tables"])
def test_the_hosts_group(results, what):
    """Sizes of segments have a group of their own beside one of NCCL, which is made once."""
    assert all(rank["groups"][what] for rank in results)
