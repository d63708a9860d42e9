"""Pieces of the chaos driver that need neither root nor a network; the driver itself is no test."""

import importlib
import os
from dataclasses import asdict

import pytest

from tests.chaos.faults import Phases, read_marks
from tests.chaos.long import Events, compare, growths, verdict
from tests.chaos.long_rank import Step
from tests.chaos.run import RankEnd, last_error
from tests.chaos.verdict import problems

LOG = """\
[rank1]:   File "exchange.py", line 204, in wait
[rank1]: RuntimeError: [/a/b/gloo/transport/tcp/pair.cc:537] Connection reset by peer
try:  50%|#####     | 6/12 [00:01<00:01, 4.0step/s]\rtry: done
Exception raised from run at socket.cpp:820 (most recent call first):
"""


def outcome(*ends: RankEnd, name="2 hosts, kill rank 1 in training", orphans=0, resumed="same"):
    ranks = [asdict(end) for end in ends]
    return {
        "name": name, "ranks": ranks, "timeout_s": 10.0, "orphans": orphans, "resumed": resumed,
    }  # fmt: skip


KILLED = RankEnd(status=-9, after_s=0.0, phase="training", words="")
SURVIVOR = RankEnd(status=1, after_s=2.0, phase="training", words="RuntimeError: lost")


def test_the_words_are_those_of_the_last_error():
    assert last_error(LOG).startswith("RuntimeError: [/a/b/gloo")
    assert last_error("all is well\nerrors: 0\n") == ""
    assert last_error("error: rank 1: lost rank 0\n") == "error: rank 1: lost rank 0"
    assert last_error(f"{LOG}error: rank 1: no rows\n") == "error: rank 1: no rows"
    assert last_error("torch.distributed.DistStoreError: Timed out\n").startswith("torch.dist")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (outcome(SURVIVOR, KILLED), []),
        (outcome(RankEnd(None, None, "save", ""), KILLED), ["rank 0 hangs"]),
        (outcome(RankEnd(1, 31.0, "save", "x"), KILLED), ["rank 0 ended only after 31.0 s"]),
        (outcome(RankEnd(1, 1.0, "save", ""), KILLED), ["rank 0 ended without words"]),
        (outcome(RankEnd(-6, 1.0, "save", "x"), KILLED), ["rank 0 died by signal 6"]),
        (outcome(*2 * [RankEnd(0, None, "", "")]), ["the fault never came"]),
        (outcome(SURVIVOR, KILLED, orphans=2), ["2 orphans"]),
        (outcome(SURVIVOR, KILLED, resumed="differs: 1"), ["resume differs: 1"]),
        (
            outcome(SURVIVOR, RankEnd(None, None, "save", ""), name="2 hosts, stop rank 1 in save"),
            [],
        ),
    ],
)
def test_what_is_not_as_it_should_be_is_said(changed, problem):
    assert problems(changed) == problem


def test_a_phase_is_marked_once_and_a_fault_comes_in_its_own_alone(tmp_path, monkeypatch):
    signals = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    phases = Phases(tmp_path / "marks", "kill", "training")
    for name in ("first_step", "training", "training", "end"):
        phases.reach(name)
    assert signals == [(os.getpid(), 9)]
    assert list(read_marks(tmp_path / "marks")) == ["first_step", "training", "fault", "end"]
    assert read_marks(tmp_path / "none") == {}


def test_what_the_driver_wraps_is_there():
    for module, name in (("ranks", "join"), ("train", "build_trainer"), ("train", "main")):
        assert callable(getattr(importlib.import_module(module), name))
    trainer = importlib.import_module("trainer").Trainer
    assert callable(trainer.train_next)
    assert callable(trainer.predict)


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
