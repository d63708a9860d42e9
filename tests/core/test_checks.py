"""An error that a check found is raised by every later call."""

import pytest
import torch

from trec_qcomm.core.checks import DeferredChecks, deferring, new_flag, raise_first
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.transfer import Download


def error_of(segment):
    return CorruptFrameError(f"segment {segment}", rank=1)


def test_the_first_error_is_raised_every_time():
    checks = DeferredChecks()
    with deferring(checks):
        for first in (-1, 3, 5):
            raise_first(torch.tensor([first], dtype=torch.int32), error_of)
    raised = []
    for wait in (False, True, False):
        with pytest.raises(CorruptFrameError, match="frame from rank 1: segment 3") as info:
            checks.raise_found(wait=wait)
        raised.append(info.value)
    assert len(set(map(id, raised))) == 3  # each has a traceback of its own, which holds tensors


def test_flags_of_a_context_are_one_copy_and_keep_their_order():
    checks, flags = DeferredChecks(), []
    with deferring(checks):
        for number in range(3):
            flags.append(new_flag(torch.device("cpu")))
            raise_first(flags[-1], lambda n, number=number: error_of(10 * number + n))
        flags[2].fill_(4)
        flags[1].fill_(3)
    assert len({flag.untyped_storage().data_ptr() for flag in flags}) == 1
    assert all(flag.data_ptr() % 16 == 0 for flag in flags)  # else kernels are compiled anew
    with pytest.raises(CorruptFrameError, match="segment 13"):
        checks.raise_found(wait=True)


def test_more_flags_than_one_copy_has_are_all_read_late(monkeypatch):
    monkeypatch.setattr("trec_qcomm.core.checks.Download", lambda flags: Download(flags.clone()))
    checks, flags = DeferredChecks(), []
    with deferring(checks):
        for _ in range(100):
            flags.append(new_flag(torch.device("cpu")))
            raise_first(flags[-1], error_of)
        flags[7].fill_(77)
    with pytest.raises(CorruptFrameError, match="segment 77"):
        checks.raise_found(wait=True)


def test_flags_that_no_check_reads_are_none():
    checks = DeferredChecks()
    with deferring(checks):
        new_flag(torch.device("cpu")).fill_(5)
        raise_first(torch.tensor([-1], dtype=torch.int32), error_of)
    checks.raise_found(wait=True)


def test_flags_are_fetched_also_after_an_error():
    checks = DeferredChecks()

    def fail():
        with deferring(checks):
            flag = new_flag(torch.device("cpu"))
            raise_first(flag, error_of)
            flag.fill_(6)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(CorruptFrameError, match="segment 6"):
        checks.raise_found(wait=True)
