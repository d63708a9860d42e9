"""What an exchange makes the host and a GPU do is what costs.txt says, and nothing is mixed.

A change that costs something shows here. If it is meant: python -m tests.virtual.costs --write
"""

import pytest
import torch

from tests.virtual.costs import differences, read_table
from tests.virtual.dry_run import GPU, dry_run
from tests.virtual.exchanges import row_runs, runs
from trec_qcomm.core.transfer import download, upload
from trec_qcomm.ops.device import launch
from trec_qcomm.wire import frame

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
    "indices on the host": lambda x, host: x[host],
    "written from the host": lambda x, host: x.copy_(host),
    "read from the host": lambda x, host: host.copy_(x),
    "copied past core.transfer": lambda x, host: host.to(GPU),
    "made from a list": lambda x, host: torch.tensor([1, 2, 3], device=GPU),
    "read by item": lambda x, host: x[0].item(),
    "read by tolist": lambda x, host: x.tolist(),
    "read by numpy": lambda x, host: x.numpy(),
    "read by cpu": lambda x, host: x.cpu(),
    "asked by bool": lambda x, host: bool((x > 1).any()),
    "a size that depends on values": lambda x, host: x.nonzero(),
    "a mask": lambda x, host: x[x > 1],
    "repeats on the GPU": lambda x, host: torch.repeat_interleave(x, x),
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


def test_what_is_counted():
    with dry_run() as run, run:
        (x,) = upload(GPU, torch.empty(3, dtype=torch.int64))
        assert download((x + 1).view(3, 1)).shape == (3, 1)
    costs, _ = run.taken()
    assert (costs.uploads, costs.torch, costs.downloads, costs.waits) == (1, 1, 1, 1)


def test_an_operation_more_changes_the_costs(monkeypatch):
    """What is put into the decoding of a frame is seen in every row of the table."""

    def unseal(buffer, *args, **options):
        buffer.add_(0)
        download(buffer)
        return real(buffer, *args, **options)

    real = frame.unseal
    monkeypatch.setattr(frame, "unseal", unseal)
    name = "all-to-all rowwise"
    measured = {f"{name} {direction}": run.costs for direction, run in row_runs(*name.split())}
    table = {row: costs for row, costs in read_table().items() if row in measured}
    added = {line.split()[3] for line in differences(table, measured)}
    assert {"torch", "downloads", "waits"} <= added
