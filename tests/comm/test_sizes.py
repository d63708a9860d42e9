"""exchange_sizes: ranks of different calls see it also where they send one another no frame."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.sizes import exchange_sizes
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.testing import run_ranks

# Neither rank owns a segment, so no frame travels whose header could be compared.
NO_FRAMES = SimpleNamespace(
    plan=SimpleNamespace(segments_per_frame=(0, 0)), raw_nbytes=torch.zeros(0, dtype=torch.int64)
)


def sizes_of_calls(calls):
    call = calls[dist.get_rank()]
    try:
        return exchange_sizes(Peers(dist.group.WORLD), [0, 0], call, NO_FRAMES, "test")
    except CorruptFrameError as error:
        return str(error)


@pytest.mark.dist
def test_ranks_of_different_calls_are_out_of_step():
    assert run_ranks(sizes_of_calls, 2, (2**16 + 5, 5)) == [[0, 0], [0, 0]]  # modulo 2^16
    told = run_ranks(sizes_of_calls, 2, (5, 7))
    for rank, text in enumerate(told):
        assert f"rank {1 - rank}: of another call: the ranks are out of step" in text
