"""What a rank of the Criteo example says and leaves behind when it fails."""

import json
import logging
import tempfile
from argparse import Namespace

import pytest
import ranks
import torch
import torch.distributed as dist
from failures import EveryRankError, Once


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Options of the only rank of a group, which a launcher has started: this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    where = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (where | {"MASTER_PORT": str(ranks._free_port())}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "show_warnings", lambda once: None)  # pytest has handlers of its own
    return Namespace(ranks_per_node=None, device="cpu", timeout=20, out=tmp_path / "runs")


def test_a_rank_that_fails_writes_its_last_collectives(options, tmp_path, capsys):
    def run(_options):
        dist.barrier()
        raise RuntimeError("rank 0: lost rank 1")

    assert ranks.join(run, options) == ranks.FAILED
    log = tmp_path / "runs" / "errors.log"
    said = capsys.readouterr().err
    assert said == f"error: rank 0: RuntimeError: rank 0: lost rank 1 (traceback: {log})\n"
    (file,) = tmp_path.glob("collectives_*_rank0.json")
    assert f"The last collectives of this rank: {file}" in log.read_text()
    names = [entry["profiling_name"] for entry in json.loads(file.read_text())["entries"]]
    assert "gloo:barrier" in names


def test_a_user_s_error_comes_without_its_class(options, tmp_path, capsys):
    def run(_options):
        raise EveryRankError("rows.tsv: no rows")

    assert ranks.join(run, options) == ranks.FAILED
    assert capsys.readouterr().err.startswith("error: rows.tsv: no rows (traceback: ")
    assert not list(tmp_path.glob("collectives_*"))


def test_what_several_ranks_say_is_shown_once():
    store = dist.HashStore()
    ours, theirs = Once(store), Once(store)
    record = logging.makeLogRecord({"msg": "%d lines", "args": (3,)})
    assert [once.filter(record) for once in (ours, theirs, ours)] == [True, False, False]
    assert theirs.is_first("4 lines")
    assert Once().is_first("4 lines")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_missing_gpu_is_told_before_the_ranks_meet(options, capsys):
    options.device = "cuda"
    assert ranks.join(lambda _: True, options) == ranks.FAILED
    said = "error: --device cuda: 1 ranks on this machine need a GPU each, there are 0 (traceback: "
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(("device", "method"), [("cuda", "spawn"), ("cpu", "forkserver")])
def test_ranks_on_gpus_are_no_forks(monkeypatch, device, method):
    """The server has imported FBGEMM, which asks for CUDA; a fork of it could not use a GPU."""
    methods = []
    monkeypatch.setattr(ranks, "start_processes", lambda *_, **how: methods.append(how))
    ranks._start_children(lambda _: True, Namespace(device=device, ranks=2))
    assert [how["start_method"] for how in methods] == [method]
