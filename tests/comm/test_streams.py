"""Streams: without a GPU only the order of calls can be tested."""

from contextlib import contextmanager
from unittest import mock

import pytest
import torch

from trec_qcomm.comm import streams


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of torch.cuda, in order."""
    noted = []

    @contextmanager
    def stream(_side):
        noted.append("enter")
        try:
            yield
        finally:
            noted.append("leave")

    side = mock.Mock(wait_stream=lambda other: noted.append(f"wait for {other}"))
    monkeypatch.setattr(streams, "_stream", lambda device, use: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return noted


def given(noted):
    return mock.Mock(record_stream=lambda stream: noted.append("record"))


def test_the_allocator_is_told_after_an_error_too(calls):
    side = streams.side_stream(torch.device("cuda", 0), given(calls))
    with pytest.raises(ValueError, match="within"), side:
        raise ValueError("within")
    assert calls == ["wait for current", "enter", "leave", "record"]
