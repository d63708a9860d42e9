"""Frames in slots leave a GPU before the host has waited for anything."""

import pytest
import torch

from tests.virtual.dry_run import dry_run
from tests.virtual.exchanges import made_up_slots, make, step_of
from trec_qcomm.comm.slots.history import SlotOptions

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(torch.cuda.is_available(), reason="counts what the interpreter would run"),
]


@pytest.mark.parametrize("slots", [SlotOptions(), None])
def test_no_wait_before_the_frames_go(slots):
    with made_up_slots(), dry_run() as run:
        op = make("all-to-all", "error_bounded", slots)
        before = []
        real = run.collective
        run.collective = lambda *given: before.append(run.counts.copy()) or real(*given)
        with run:
            step_of(op)()
    frames = [counts for counts in before if not counts["nccl"]][-1]
    assert frames["waits"] == frames["downloads"] == (slots is None)
    assert frames["gloo"] == (slots is None)
    assert run.counts["waits"] == 1
