"""The thread that reads batches ahead: order, epochs, errors, and that it ends."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from data import reader as reader_module
from data.dataset import Batches, prepare
from data.reader import BatchReader
from data.synthetic import generate
from torchrec.datasets.utils import Batch

ROWS = prepare(generate(80, seed=3), min_count=1, hash_buckets=None).rows
BATCHES = Batches(ROWS, 10, rank=1, world_size=2, drop_last=True)  # 4 of them


class Watched(Sequence[Batch]):
    """Batches that call `before` with the index of each batch before it is read."""

    def __init__(self, before: Callable[[int], object]) -> None:
        self.before = before
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(BATCHES)

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]
        self.before(index)
        self.read.append(index)
        return BATCHES[index]


def assert_equal(batch: Batch, expected: Batch) -> None:
    assert torch.equal(batch.labels, expected.labels)
    assert np.array_equal(batch.dense_features, expected.dense_features, equal_nan=True)
    assert torch.equal(batch.sparse_features.values(), expected.sparse_features.values())


@pytest.mark.parametrize(("first", "last"), [(0, 4), (3, 10), (2, 2)])
def test_steps_take_the_batches_of_their_epoch(first: int, last: int) -> None:
    with BatchReader(BATCHES, first, last) as reader:
        batches = list(reader)
        assert reader.num_read == last - first == len(batches)
        assert next(reader, None) is None
    for step, batch in zip(range(first, last), batches, strict=True):
        assert_equal(batch, BATCHES[step % 4])


def test_no_more_batches_are_ready_than_asked_for() -> None:
    ready = threading.Semaphore(0)
    batches = Watched(lambda index: ready.release())
    with BatchReader(batches, 1, 4, ahead=2) as reader:
        assert ready.acquire(timeout=5)
        assert ready.acquire(timeout=5)
        assert not ready.acquire(timeout=0.05)
        next(reader)
        assert ready.acquire(timeout=5)
    assert batches.read == [1, 2, 3]


def test_waits_are_counted_and_batches_that_are_ready_cost_none() -> None:
    with BatchReader(Watched(lambda index: time.sleep(0.1 if index == 0 else 0)), 0, 3) as reader:
        next(reader)
        slow = reader.waited_s
        time.sleep(0.05)
        next(reader), next(reader)
        assert 0.05 < slow < 5
        assert reader.waited_s == slow


def test_an_error_comes_after_the_batches_before_it() -> None:
    def fail(index: int) -> None:
        if index == 2:
            raise OSError("disk gone")

    with BatchReader(Watched(fail), 0, 4, ahead=3) as reader:
        assert_equal(next(reader), BATCHES[0])
        assert_equal(next(reader), BATCHES[1])
        for _ in range(2):
            with pytest.raises(OSError, match="disk gone"):
                next(reader)


def test_a_closed_reader_has_no_thread_and_no_batches() -> None:
    before = threading.active_count()
    reader = BatchReader(BATCHES, 0, 1000)
    next(reader)
    begin = time.monotonic()
    reader.close()
    assert time.monotonic() - begin < 1
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="the reader is closed"):
        next(reader)
    reader.close()


def test_close_does_not_wait_for_a_batch_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader_module.CLOSE_S <= 1
    monkeypatch.setattr(reader_module, "CLOSE_S", 0.05)
    stuck = threading.Event()
    reader = BatchReader(Watched(lambda index: stuck.wait(5)), 0, 1)
    begin = time.monotonic()
    reader.close()
    assert time.monotonic() - begin < 1
    stuck.set()


@pytest.mark.parametrize(
    ("batches", "arguments", "message"),
    [
        (BATCHES, {"first": -1, "last": 4}, "first -1, last 4: expected 0 <= first <= last"),
        (BATCHES, {"first": 5, "last": 4}, "first 5, last 4: expected"),
        (BATCHES, {"first": 0, "last": 4, "ahead": 0}, "ahead 0: must be positive"),
        ([], {"first": 0, "last": 4}, "batches: none, and steps 0 to 4 need some"),
    ],
)
def test_wrong_arguments_are_errors_at_once(
    batches: Sequence[Batch], arguments: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BatchReader(batches, **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what a machine without a GPU says")
def test_pinning_without_a_gpu_is_an_error() -> None:
    with pytest.raises(ValueError, match="pin: there is no CUDA device"):
        BatchReader(BATCHES, 0, 4, pin=True)
