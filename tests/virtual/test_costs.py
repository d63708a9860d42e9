"""What an exchange makes the host and a GPU do is what costs.txt says, and nothing is mixed.

A change that costs something shows here. If it is meant: python -m tests.virtual.costs --write
"""

import pytest
import torch

from tests.virtual.costs import differences, read_table
from tests.virtual.dry_run import GPU, dry_run
from tests.virtual.exchanges import runs
from trec_qcomm.core.transfer import upload
from trec_qcomm.ops.device import launch

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(torch.cuda.is_available(), reason="counts what the interpreter would run"),
]


def test_exchanges_cost_what_the_table_says():
    wrong = differences(read_table(), {name: run.costs for name, run in runs()})
    assert not wrong, "\n".join([*wrong, "if meant: python -m tests.virtual.costs --write"])


RAISED = (AssertionError, RuntimeError, NotImplementedError, TypeError)
FAULTS = {
    "a GPU's and the host's tensors": lambda x, host: x + host,
    "copied past core.transfer": lambda x, host: host.to(GPU),
    "made from a list": lambda x, host: torch.tensor([1, 2, 3], device=GPU),
    "read by item": lambda x, host: x[0].item(),
    "a size that depends on values": lambda x, host: x.nonzero(),
    "a kernel on the host's memory": lambda x, host: launch(kernel(), 1, x, host),
    "an upload of what is on the GPU": lambda x, host: upload(GPU, x),
}


def kernel():
    from trec_qcomm.ops.batch.rank_sum import gpu

    return gpu._rank_sum


@pytest.mark.parametrize("name", FAULTS)
def test_the_dry_run_finds(name):
    with dry_run() as run:
        x = torch.empty(3, dtype=torch.int64, device=GPU)
        host = torch.arange(3)
        with run, pytest.raises(RAISED):
            FAULTS[name](x, host)
