"""The fake GPU notes every call that would wait for a real one."""

import pytest
import torch

from tests.ops.fake_gpu import HostReads

WAITS = {
    "item": lambda x: x[0].item(),
    "to cpu": lambda x: x.to("cpu"),
    "to cpu by name": lambda x: (x + 1).to(device="cpu", non_blocking=True),
    "where of one": lambda x: torch.where(x > 1),
    "mask": lambda x: x[x > 1],
    "mask beside a slice": lambda x: x.view(2, 2)[:, x[:2] > 1],
    "written mask": lambda x: x.__setitem__(x > 1, torch.arange(3)),
    "put mask": lambda x: x.index_put_((x > 1,), torch.arange(3)),
    "repeats": lambda x: x.repeat_interleave(x),
    "repeats by name": lambda x: torch.repeat_interleave(input=x, repeats=x, dim=0),
}
DOES_NOT_WAIT = {
    "to device": lambda x: x.to(x.device),
    "to dtype": lambda x: x.to(torch.float32),
    "where of three": lambda x: torch.where(x > 1, x, 0),
    "numbers": lambda x: x[torch.tensor([0, 1])],
    "written numbers": lambda x: x.__setitem__(torch.tensor([0, 1]), 5),
    "written mask of one number": lambda x: x.__setitem__(x > 1, 0),
    "repeats of known sum": lambda x: x.repeat_interleave(x, output_size=10),
    "equal repeats": lambda x: x.repeat_interleave(2),
    "another's": lambda x: torch.arange(3).tolist(),
}


def waits_of(call):
    numbers = torch.tensor([1, 2, 3, 4])
    with HostReads(numbers) as reads:
        call(numbers)
    return reads.calls


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_noted(name):
    assert len(waits_of(WAITS[name])) == 1


@pytest.mark.parametrize("name", DOES_NOT_WAIT)
def test_what_does_not_wait_is_not_noted(name):
    assert waits_of(DOES_NOT_WAIT[name]) == []
