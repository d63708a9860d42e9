"""Pieces of the chaos driver that need neither root nor a network; the driver itself is no test."""

import importlib

import pytest

from tests.chaos.__main__ import Events, compare, growths, last_error, verdict
from tests.chaos.rank import Step

LOG = """\
[rank1]:   File "exchange.py", line 204, in wait
[rank1]: RuntimeError: [/a/b/gloo/transport/tcp/pair.cc:537] Connection reset by peer
try:  50%|#####     | 6/12 [00:01<00:01, 4.0step/s]\rtry: done
Exception raised from run at socket.cpp:820 (most recent call first):
"""


def test_the_words_are_those_of_the_last_error():
    assert last_error(LOG).startswith("RuntimeError: [/a/b/gloo")
    assert last_error("all is well\nerrors: 0\n") == ""
    assert last_error("error: rank 1: lost rank 0\n") == "error: rank 1: lost rank 0"
    assert last_error(f"{LOG}error: rank 1: no rows\n") == "error: rank 1: no rows"
    assert last_error("torch.distributed.DistStoreError: Timed out\n").startswith("torch.dist")


def test_what_the_driver_wraps_is_there():
    assert callable(importlib.import_module("trainer").Trainer.train_next)


@pytest.mark.parametrize(("again", "word"), [("0x1p-1", ": good"), ("0x1p-2", ": NOT GOOD")])
def test_a_long_training_compares_what_it_did_again_after_a_kill(tmp_path, again, word):
    for kind, steps in (("faulty", f"7 1 0x1p-1 9\n8 1 {again} 9\n"), ("undisturbed", "")):
        (tmp_path / kind).mkdir()
        for rank in range(4):
            text = steps or "9 1 0x1p-1 9\n"
            (tmp_path / kind / f"rank{rank}.txt").write_text(text)
    Events(tmp_path / "events").add("kill", ended_after_s=2.0)
    figures = compare(tmp_path, Events(tmp_path / "events"))
    assert (figures["losses_compared"], figures["kills"]) == (8, 1)
    assert verdict("best", figures).endswith(word)


def test_memory_grows_from_the_second_quarter_to_the_last():
    steps = [Step(7, n, "", 100 + (n >= 75)) for n in range(100)]
    assert growths([*steps, Step(8, 1, "", 900)]) == [pytest.approx(0.01)]
