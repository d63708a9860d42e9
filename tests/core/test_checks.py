"""An error that a check found is raised by every later call."""

import pytest
import torch

from trec_qcomm.core.checks import DeferredChecks
from trec_qcomm.core.errors import CorruptFrameError


def error_of(segment):
    return CorruptFrameError(f"segment {segment}", rank=1)


def test_the_first_error_is_raised_every_time():
    checks = DeferredChecks()
    for first in (-1, 3, 5):
        checks.add(torch.tensor([first], dtype=torch.int32), error_of)
    raised = []
    for wait in (False, True, False):
        with pytest.raises(CorruptFrameError, match="frame from rank 1: segment 3") as info:
            checks.raise_found(wait=wait)
        raised.append(info.value)
    assert (
        len(set(map(id, raised))) == 3
    )  # each with a traceback of its own: tracebacks hold tensors


def test_nothing_found_is_no_error():
    checks = DeferredChecks()
    for _ in range(2):
        checks.add(torch.tensor([-1], dtype=torch.int32), error_of)
        checks.raise_found(wait=True)
