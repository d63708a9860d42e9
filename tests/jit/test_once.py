"""Work that processes share: each job once, whoever dies."""

import subprocess
import sys
import threading
import time

import pytest

from trec_qcomm.jit import cache, once
from trec_qcomm.jit.once import Job, compile_once, missing

_HOLDER = """
import fcntl, sys, time
handle = open(sys.argv[1], "a")
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def hold():
    """Let another process hold a job's lock, as one does that compiles; return the process."""
    holders = []

    def hold(folder, job):
        lock = once._mark(folder, job).with_suffix(".lock")
        holder = subprocess.Popen([sys.executable, "-c", _HOLDER, lock], stdout=subprocess.PIPE)
        holders.append(holder)
        assert holder.stdout.readline() == b"held\n"
        return holder

    yield hold
    for holder in holders:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def jobs(*names, runs, seconds=0.0):
    def run(name):
        time.sleep(seconds)
        runs.append((name, threading.get_ident()))

    return [Job(name, lambda name=name: run(name)) for name in names]


def test_two_share_the_work_and_both_return_when_all_is_done(folder):
    """Threads stand for processes: each opens the lock's file anew, so their locks are apart."""
    runs, done = [], []
    ours = jobs("a", "b", "c", "d", runs=runs, seconds=0.2)

    def compile_and_look():
        compile_once(ours)
        done.append(missing(ours))

    threads = [threading.Thread(target=compile_and_look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(name for name, _ in runs) == ["a", "b", "c", "d"]
    assert len({thread for _, thread in runs}) == 2
    assert done == [[], []]


def test_what_a_killed_process_left_is_taken_over(folder, hold):
    runs = []
    ours = jobs("a", "b", runs=runs)
    holder = hold(folder, ours[0])
    waiting = threading.Thread(target=compile_once, args=(ours,))
    waiting.start()
    time.sleep(0.3)
    assert [name for name, _ in runs] == ["b"]
    assert waiting.is_alive()
    holder.kill()
    waiting.join(10)
    assert [name for name, _ in runs] == ["b", "a"]


def test_a_stopped_process_is_not_waited_for_without_end(folder, hold):
    runs = []
    ours = jobs("a", runs=runs)
    hold(folder, ours[0])
    compile_once(ours, patience_s=0.2)
    assert [name for name, _ in runs] == ["a"]
    assert missing(ours) == []


def test_an_error_is_told_and_leaves_neither_mark_nor_lock(folder):
    def fail():
        raise ValueError("no such kernel")

    failing = [Job("a", fail)]
    for _ in range(2):
        with pytest.raises(ValueError, match="no such kernel"):
            compile_once(failing)
    assert missing(failing) == failing


def test_without_a_folder_each_process_compiles_everything(monkeypatch):
    monkeypatch.setattr(cache, "folder", lambda: None)
    runs = []
    ours = jobs("a", "b", runs=runs)
    compile_once(ours)
    assert [name for name, _ in runs] == ["a", "b"]
    assert missing(ours) == ours


def test_a_mark_that_cannot_be_left_is_told_and_does_not_loop(folder, monkeypatch):
    runs = []
    ours = jobs("a", runs=runs)

    def fail(*_args, **_options):
        raise OSError

    monkeypatch.setattr("pathlib.Path.touch", fail)
    with pytest.warns(RuntimeWarning, match="cannot be written any more"):
        compile_once(ours)
    assert len(runs) == 1
